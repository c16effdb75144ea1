mod sources;

use keygate_core::guard::Decision;
use keygate_core::spki::RsaExponents;

use self::sources::assert_encrypted;
use super::*;
use crate::config::example::{MINIMAL, changed, parse};
use crate::config::form::Form;
use crate::config::{ListenAddress, TracesConfig};

fn problem(text: &str) -> String {
    parse(text).unwrap_err().to_string()
}

#[test]
fn the_shortest_configuration_has_safe_defaults_and_paths_relative_to_the_file() {
    let config = parse(MINIMAL).unwrap();
    let service = &config.services[0];
    assert_eq!(config.filters[0].path, Path::new("/etc/keygate/lost.pkbf"));
    assert_eq!(service.policy.decisions.on_probable, Decision::Reject);
    assert_eq!(service.policy.decisions.on_unchecked, Decision::Reject);
    assert_eq!(service.policy.header, "client-key-status");
    assert_eq!(service.upstream.servers[0].to_string(), "http://127.0.0.1:8080");
    assert_eq!(config.admin.listen, ListenAddress::Tcp("127.0.0.1:9464".parse().unwrap()));
}

#[test]
fn an_unknown_key_is_an_error_with_its_line() {
    let message = problem(&changed("path = \"lost.pkbf\"", "path = \"lost.pkbf\"\nmax_sice = 1"));
    assert!(message.starts_with("/etc/keygate/keygate.toml:4:"), "{message}");
    assert!(message.contains("did you mean \"max_size\"?"), "{message}");
}

#[test]
fn a_service_overrides_single_keys_of_the_policy() {
    let text = format!(
        "{MINIMAL}policy = {{ on_probable = \"header\" }}\n[policy]\non_unchecked = \"flag\"\nheader = \"X-Key\""
    );
    let service = parse(&text).unwrap().services.remove(0);
    assert_eq!(service.policy.decisions.on_probable, Decision::Annotate);
    assert_eq!(service.policy.decisions.on_unchecked, Decision::Flag);
    assert_eq!(service.policy.header, "x-key");
}

#[test]
fn the_path_of_a_unix_socket_has_107_bytes_at_most() {
    let path = |length: usize| format!("unix:/{}", "s".repeat(length - 1));
    let admin = |length| format!("{MINIMAL}[admin]\nlisten = {:?}\n", path(length));
    let server = |length| changed("http://127.0.0.1:8080", &path(length));
    let authorizer = |length| {
        format!(
            "{MINIMAL}[[authorizers]]\nname = \"edge\"\nlisten = {:?}\nprotocol = \"spop\"\n",
            path(length)
        )
    };
    for text in [admin(107), server(107), authorizer(107)] {
        parse(&text).unwrap();
    }
    for (text, field) in [
        (admin(108), "admin.listen"),
        (server(108), "services.orders.upstream.servers"),
        (authorizer(108), "authorizers.edge.listen"),
    ] {
        let message = problem(&text);
        assert!(message.contains(field), "{message}");
        let remedy = "has 108 bytes; give a path for the socket with at most 107";
        assert!(message.contains(remedy), "{message}");
    }
}

#[test]
fn an_error_names_the_field_of_the_invalid_value() {
    for (from, to, field, found) in [
        ("[[filters]]", "[[ignored]]", ":1:", "there is no key \"ignored\""),
        ("name = \"lost\"", "name = \"a b\"", ":2:8: filters.name", "\"a b\""),
        ("127.0.0.1:8443", "localhost", "services.orders.listen", "\"localhost\""),
        ("http://127", "https://127", "services.orders.upstream.tls", "https://127"),
        ("http://127", "ftp://127", "services.orders.upstream.servers", "ftp://127"),
        ("http://127", "127", "services.orders.upstream.servers", "\"127"),
        ("\"lost.pkbf\"", "\"\"", ":3:8: filters.lost.path", "empty; give a path"),
        ("\"server.pem\"", "\"\"", "services.orders.tls.certificate", "empty; give a path"),
        ("\"server.key\"", "\"\"", "services.orders.tls.private_key", "empty; give a path"),
        ("\"ca.pem\"", "\"\"", "services.orders.client_auth.trust_anchors", "empty; give a path"),
        (
            "http://127.0.0.1:8080",
            "unix:",
            "services.orders.upstream.servers",
            "empty; give a path",
        ),
        ("8080\"", "8080/path\"", "services.orders.upstream.servers", "/path"),
    ] {
        let message = problem(&changed(from, to));
        assert!(message.contains(field) && message.contains(found), "{message}");
    }
    for (extra, field) in [
        ("limits = { idle_timeout = \"0s\" }", "services.orders.limits.idle_timeout"),
        ("limits = { idle_timeout = \"5 parsecs\" }", "5 parsecs"),
        ("limits = { max_header_size = \"1B\" }", "services.orders.limits.max_header_size"),
        ("limits = { max_connections = 0 }", "services.orders.limits.max_connections"),
        ("policy = { header = \"a b\" }", "services.orders.policy.header"),
        ("policy = { header = \"Host\" }", "services.orders.policy.header"),
        ("policy = { header = \"X_Request-Id\" }", "\"X_Request-Id\" is reserved"),
        ("policy = { header = \"Keep-Alive\" }", "\"Keep-Alive\" is reserved"),
        (
            "policy = { on_probable = \"admit\" }",
            "\"admit\" is not one of \"flag\", \"header\", \"reject\"",
        ),
        ("limits = { max_streams = 0 }", "services.orders.limits.max_streams"),
        ("protocol = \"tcp\"", "services.orders.upstream.servers"),
        ("accept_proxy = { from = [\"10.0.0.0/33\"] }", "services.orders.accept_proxy.from"),
        ("forward = { send_proxy = \"v2\" }", "services.orders.forward.send_proxy"),
        ("server_names = [\"a b\"]", "services.orders.server_names"),
        ("server_names = [\"a..b\"]", "is not a host name"),
        ("server_names = [\"a.b..\"]", "is not a host name"),
        ("server_names = [\".\"]", "is not a host name"),
        ("server_names = [\"*.\"]", "is not a host name"),
        ("server_names = [\"a.*.b\"]", "is not a host name"),
        ("server_names = [\"bücher.example\"]", "is not a host name"),
        ("server_names = [\"10.0.0.1\"]", "is not a host name"),
        ("server_names = [\"[::1]\"]", "is not a host name"),
        ("server_names = [\"a.b:443\"]", "is not a host name"),
        ("server_names = [\"a.b\", \"a.B.\"]", "\"a.b\" occurs twice"),
        ("server_names = [\"a.b\", \"A.b\"]", "\"a.b\" occurs twice"),
    ] {
        let message = problem(&format!("{MINIMAL}{extra}"));
        assert!(message.contains(field), "{extra} gave {message}");
    }
}

#[test]
fn a_server_name_loses_the_dot_of_a_fully_qualified_name() {
    let config = parse(&format!("{MINIMAL}server_names = [\"A.Example.\", \"*.b.\"]"));
    assert_eq!(config.unwrap().services[0].server_names, ["a.example", "*.b"]);
}

#[test]
fn two_services_cannot_both_be_the_default_of_an_address() {
    let second = MINIMAL.split_once("[[services]]").unwrap().1.replace("orders", "billing");
    let message = problem(&format!("{MINIMAL}[[services]]{second}"));
    assert!(message.contains("services.billing.server_names"), "{message}");
    let named = format!("{MINIMAL}[[services]]{second}server_names = [\"b.example\"]");
    assert!(parse(&named).is_ok());
}

#[test]
fn the_number_of_problems_is_bounded() {
    let unknown: String = (0..20_000).map(|number| format!("key{number} = 1\n")).collect();
    let error = parse(&format!("{unknown}{MINIMAL}")).unwrap_err();
    let ConfigError::Invalid { problems, .. } = error else { panic!("{error}") };
    assert_eq!(problems.len(), crate::config::input::MAX_PROBLEMS);
}

#[test]
fn the_number_of_problems_of_meaning_is_bounded() {
    let list: String = (0..20_000)
        .map(|number| format!("[[lists]]\nname = \"{number} \"\npath = \"l\"\n"))
        .collect();
    let error = parse(&format!("{MINIMAL}{list}")).unwrap_err();
    let ConfigError::Invalid { problems, .. } = error else { panic!("{error}") };
    assert_eq!(problems.len(), crate::config::input::MAX_PROBLEMS);
}

#[test]
fn a_message_has_the_beginning_of_a_long_text() {
    let long = "x".repeat(100_000);
    for text in [
        format!("{MINIMAL}{long} = 1"),
        format!("{MINIMAL}server_names = [\"{long}\"]"),
        format!("{MINIMAL}limits = {{ idle_timeout = \"{long}\" }}"),
        format!("{MINIMAL}limits = {{ max_body_size = \"{long}\" }}"),
        format!("{MINIMAL}limits = {{ max_body_size = \"{}\" }}", "1".repeat(100_000)),
        format!("{MINIMAL}limits = {{ max_streams = {} }}", "1".repeat(100_000)),
        format!("{MINIMAL}policy = {{ header = \" {long}\" }}"),
        format!("{MINIMAL}accept_proxy = {{ from = [\"{long}\"] }}"),
        format!("{MINIMAL}[admin]\nlisten = \"{long}\""),
        format!("{MINIMAL}[admin]\nlisten = \"unix:{long}\""),
        format!("{MINIMAL}[log]\nlevel = \"{long}\""),
        format!("{MINIMAL}[confirm]\nurl = \"{long}\""),
        format!("{MINIMAL}[[lists]]\nname = \"{long}\"\npath = \"l\""),
    ] {
        let message = parse(&text).unwrap_err().to_string();
        assert!(message.len() < 1000, "{} bytes: {message:.300}", message.len());
    }
}

/// Why a configuration with this text after it is rejected. Empty if it is not.
fn problem_with(text: &str) -> String {
    parse(&format!("{MINIMAL}{text}")).err().map_or_else(String::new, |it| it.to_string())
}

#[test]
fn a_filter_has_related_exponents() {
    let with = |value: &str| {
        let keys = format!("path = \"lost.pkbf\"\nrelated_exponents = {value}");
        parse(&changed("path = \"lost.pkbf\"", &keys)).unwrap().filters[0].related_exponents
    };
    assert_eq!(with("[]"), RsaExponents::NONE);
    assert_eq!(with("[65537, 3]"), RsaExponents::default());
    assert_eq!(with("[3, 5, 17, 35, 37, 257, 65537]"), RsaExponents::ALL);
    assert_eq!(parse(MINIMAL).unwrap().filters[0].related_exponents, RsaExponents::default());
}

/// A service and an authorizer.
#[test]
fn a_table_or_list_without_rules_is_an_error() {
    for allow in ["{}", "{ dns = [] }", "{ dns = [\"a.example\"], spki = [] }"] {
        let service = changed("\"ca.pem\" }", &format!("\"ca.pem\", allow = {allow} }}"));
        let keys = "name = \"edge\"\nlisten = \"unix:/run/ask\"\nprotocol = \"spop\"";
        let authorizer =
            format!("{MINIMAL}[[authorizers]]\n{keys}\nclient_auth = {{ allow = {allow} }}\n");
        for problem in [problem(&service), problem(&authorizer)] {
            assert!(problem.contains("empty, "), "{allow}: {problem}");
            assert!(problem.contains("remove the"), "{allow}: {problem}");
        }
    }
}

#[test]
fn without_rules_by_name_every_client_is_allowed() {
    assert_eq!(parse(MINIMAL).unwrap().services[0].policy.decisions.allow, None);
}

#[test]
fn the_policies_of_services_and_authorizers_have_their_rules_by_name() {
    let allow = "allow = { dns = [\"a.example\"] }";
    let service = changed("\"ca.pem\" }", &format!("\"ca.pem\", {allow} }}"));
    let keys = "name = \"edge\"\nlisten = \"unix:/run/ask\"\nprotocol = \"spop\"";
    let authorizer = format!("[[authorizers]]\n{keys}\nclient_auth = {{ {allow} }}\n");
    let config = parse(&format!("{service}{authorizer}")).unwrap();
    assert!(config.services[0].policy.decisions.allow.is_some());
    assert!(config.authorizers[0].policy.decisions.allow.is_some());
}

#[cfg(feature = "opentelemetry")]
#[test]
fn a_collector_has_a_url_and_secrets_for_it_are_encrypted() {
    for (url, sent_to) in [
        ("https://collector.example:4318", "https://collector.example:4318/v1/traces"),
        ("https://collector.example:4318/", "https://collector.example:4318/v1/traces"),
        ("https://collector.example/otlp", "https://collector.example/otlp"),
    ] {
        let table = format!("[traces]\nendpoint = {url:?}\ntrust_anchors = \"ca.pem\"");
        let config = parse(&format!("{MINIMAL}{table}")).unwrap();
        assert_eq!(config.traces.unwrap().endpoint.to_string(), sent_to);
    }
    assert_encrypted(|url| format!("[traces]\nendpoint = {url:?}\nheaders = \"h\""));
    assert_eq!(problem_with("[traces]\nendpoint = \"http://collector.example:4318\""), "");
}

#[test]
fn a_build_without_the_feature_rejects_the_table_of_traces() {
    let document =
        Document::parse("[traces]\nendpoint = \"http://localhost\"", &Config::form()).unwrap();
    let file = Path::new("keygate.toml");
    let problems = take::<TracesOfSmallBuild>(file, &document, "traces").unwrap_err();
    let [problem] = &problems[..] else { panic!("one problem") };
    assert!(problem.problem.contains("with the cargo feature opentelemetry"), "{problem}");
    assert_eq!(problem.field, "traces");
    if !cfg!(feature = "opentelemetry") {
        assert!(
            problem_with("[traces]\nendpoint = \"http://localhost\"").contains(&problem.problem)
        );
    }
}

/// The table of traces in a build that cannot export any.
struct TracesOfSmallBuild;

impl Takes for TracesOfSmallBuild {
    type Value = ();

    fn form() -> Form {
        TracesConfig::form()
    }

    fn take(input: &Input<'_>) -> Taken<()> {
        fetch::collector(&TracesConfig::take(input)?, input, false);
        Ok(())
    }
}

/// Values, keys of one table and missing keys are reported in one pass.
#[test]
fn problems_of_several_tables_are_reported_together() {
    let text = changed("name = \"lost\"", "name = \"a b\"\nmax_sice = 1");
    let text = text.replace("127.0.0.1:8443", "nowhere");
    let text = format!("{text}[admin]\nlisten = \"x\"\n[log]\nlevel = \"loud\"\n[confirm]\n");
    let fields = |text: &str| match parse(text).unwrap_err() {
        ConfigError::Invalid { problems, .. } => {
            problems.into_iter().map(|it| it.field).collect::<Vec<_>>()
        }
        error @ ConfigError::Read { .. } => panic!("{error}"),
    };
    let expected = [
        "filters.name",
        "filters.max_sice",
        "services.orders.listen",
        "admin.listen",
        "log.level",
        "confirm",
    ];
    assert_eq!(fields(&text), expected);
}

/// A key of the global policy is read for each service.
#[test]
fn a_problem_of_the_global_policy_is_reported_once() {
    let found = problem_with("[policy]\nheader = \"Host\"\non_weak = \"admit\"");
    assert_eq!(found.matches("policy.header").count(), 1, "{found}");
    assert_eq!(found.matches("policy.on_weak").count(), 1, "{found}");
}

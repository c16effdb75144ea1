use keygate_core::guard::Decision;

use super::*;
use crate::config::example::{MINIMAL, changed, parse};

fn problem(text: &str) -> String {
    parse(text).unwrap_err().to_string()
}

#[test]
fn the_shortest_configuration_has_safe_defaults_and_paths_relative_to_the_file() {
    let config = parse(MINIMAL).unwrap();
    let service = &config.services[0];
    assert_eq!(config.filters[0].path, Path::new("/etc/keygate/lost.pkbf"));
    assert_eq!(service.policy.on_probable, Decision::Reject);
    assert_eq!(service.policy.on_unchecked, Decision::Reject);
    assert_eq!(service.status_header, "client-key-status");
    assert_eq!(service.upstream.servers[0].to_string(), "http://127.0.0.1:8080");
    assert_eq!(config.admin, ListenAddress::Tcp("127.0.0.1:9464".parse().unwrap()));
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
    assert_eq!(service.policy.on_probable, Decision::Annotate);
    assert_eq!(service.policy.on_unchecked, Decision::Flag);
    assert_eq!(service.status_header, "x-key");
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
        ("server_names = [\"a..b\"]", "\"a..b\" has an empty label"),
        ("server_names = [\"a.b..\"]", "\"a.b..\" has an empty label"),
        ("server_names = [\".\"]", "\".\" has an empty label"),
        ("server_names = [\"*.\"]", "\"*.\" has '*' elsewhere"),
        ("server_names = [\"a.*.b\"]", "has '*' elsewhere"),
        ("server_names = [\"bücher.example\"]", "A-label"),
        ("server_names = [\"10.0.0.1\"]", "is an address"),
        ("server_names = [\"[::1]\"]", "is an address"),
        ("server_names = [\"a.b:443\"]", "without scheme, user, port"),
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

//! The tables `[[authorizers]]`: accepted values, and errors that name the remedy
//! (`src/config/check/authorizer.rs`).

use std::path::Path;

use keygate::config::{
    AuthorizerProtocol, CertificateSource, Config, HeaderEncoding, ListenAddress,
};
use keygate_core::guard::Decision;

use crate::support;

/// A pure authorizer: no service, no TLS.
const MINIMAL: &str = r#"
[[filters]]
name = "lost"
path = "lost.pkbf"

[[authorizers]]
name = "edge"
listen = "unix:ask.sock"
protocol = "http"
certificate_from = "client-cert"
"#;

fn parse(text: &str) -> Result<Config, String> {
    Config::parse(Path::new("/etc/keygate/keygate.toml"), text).map_err(|error| error.to_string())
}

/// [`MINIMAL`] with one piece replaced by another.
fn changed(from: &str, to: &str) -> String {
    assert!(MINIMAL.contains(from), "{from} is not in the example");
    MINIMAL.replacen(from, to, 1)
}

#[test]
fn an_authorizer_without_services_has_safe_defaults() {
    let config = parse(MINIMAL).unwrap();
    assert!(config.services.is_empty());
    let edge = &config.authorizers[0];
    assert_eq!(edge.listen, ListenAddress::Unix("/etc/keygate/ask.sock".into()));
    assert_eq!((edge.socket_mode, &edge.socket_group), (0o660, &None));
    assert_eq!(edge.protocol, AuthorizerProtocol::Http);
    assert_eq!(edge.certificate_from, CertificateSource::ClientCert);
    assert!(edge.cache_for.is_zero() && edge.tls.is_none() && edge.address_from.is_none());
    assert_eq!(edge.policy.decisions.on_unchecked, Decision::Reject);
    assert_eq!(edge.policy.header, "client-key-status");
    let limits = edge.limits;
    assert_eq!(
        (limits.max_connections, limits.max_streams, limits.max_question_size),
        (1000, 1000, 64 << 10)
    );
    assert_eq!(limits.idle_timeout.as_secs(), 600);
}

#[test]
fn the_certificate_comes_from_one_place_that_the_protocol_has() {
    for (text, expected) in [
        ("\"client-cert\"", CertificateSource::ClientCert),
        ("\"xfcc\"", CertificateSource::Xfcc),
        ("\"traefik\"", CertificateSource::Traefik),
        ("\"ingress-nginx\"", CertificateSource::IngressNginx),
        (
            "{ header = \"X-SSL-Cert\", encoding = \"escaped-pem\", verify = \"X-SSL-Verify\" }",
            CertificateSource::Header {
                header: "x-ssl-cert".parse().unwrap(),
                encoding: HeaderEncoding::EscapedPem,
                verify: Some("x-ssl-verify".parse().unwrap()),
            },
        ),
    ] {
        let config = parse(&changed("\"client-cert\"", text)).unwrap();
        assert_eq!(config.authorizers[0].certificate_from, expected);
    }
    let source = "certificate_from = \"client-cert\"\n";
    for (protocol, expected) in
        [("ext-authz", CertificateSource::Attributes), ("spop", CertificateSource::Argument)]
    {
        let text = changed(source, "").replace("\"http\"", &format!("{protocol:?}"));
        assert_eq!(parse(&text).unwrap().authorizers[0].certificate_from, expected);
    }
}

#[test]
fn each_mistake_names_its_line_and_its_remedy() {
    let end = "certificate_from = \"client-cert\"\n";
    let add = |text: &str| format!("{MINIMAL}{text}");
    let tcp = |address: &str| changed("unix:ask.sock", address);
    for (text, expected) in [
        (
            changed(end, ""),
            "certificate_from: the key is missing; name the one header that the host sets",
        ),
        (changed("\"client-cert\"", "\"header\""), "\"header\" is none of \"attributes\""),
        (changed("\"client-cert\"", "\"attributes\""), "are of protocol = \"ext-authz\""),
        (
            changed("\"http\"", "\"ext-authz\""),
            "protocol = \"ext-authz\" reads \"attributes\" or \"xfcc\"",
        ),
        (changed("\"http\"", "\"spop\""), "always reads the argument cert; remove it"),
        (
            changed(
                "\"client-cert\"",
                "{ header = \"x-a\", encoding = \"rfc9440\", verify = \"X-A\" }",
            ),
            "header and verify name one header",
        ),
        (
            changed("\"client-cert\"", "{ header = \"x a\", encoding = \"rfc9440\" }"),
            "\"x a\" is not a header name",
        ),
        (changed("\"http\"", "\"grpc\""), "protocol"),
        (
            tcp("10.0.0.1:9191"),
            "is not loopback, so every peer could ask about copied certificates",
        ),
        (tcp("0.0.0.0:9191"), "give tls.client_ca or askers.from"),
        (
            format!("{}[authorizers.askers]\nuids = [33]\n", tcp("127.0.0.1:9191")),
            "askers.uids: the kernel reports user ids for Unix sockets only",
        ),
        (add("[authorizers.askers]\nfrom = [\"10.0.0.0/8\"]\n"), "a Unix socket has no networks"),
        (
            add("[authorizers.tls]\ncertificate = \"a\"\nprivate_key = \"b\"\n"),
            "a Unix socket needs no TLS",
        ),
        (
            tcp("127.0.0.1:9191").replace(end, &format!("{end}socket_mode = \"0660\"\n")),
            "socket_mode: is of a Unix socket",
        ),
        (changed(end, &format!("{end}socket_mode = \"0999\"\n")), "is not a file mode"),
        (changed(end, &format!("{end}socket_group = \"a:b\"\n")), "is not a group"),
        (
            add("[authorizers.policy]\nreject_with = \"http-403\"\n"),
            "policy.reject_with: there is no key",
        ),
        (
            add("[authorizers.policy]\nreject_with = \"no-such-word\"\n"),
            "policy.reject_with: there is no key",
        ),
        (add("[authorizers.policy]\nevict_within = 1\n"), "policy.evict_within: there is no key"),
        (
            add("[authorizers.policy]\nevict_within = \"1s\"\n"),
            "policy.evict_within: there is no key",
        ),
        (
            add("[authorizers.client_auth]\nmode = \"optional\"\n"),
            "set on_unchecked to \"flag\" or \"header\"",
        ),
        (
            add("[authorizers.client_auth]\ncrls = [\"a.crl\"]\n"),
            "client_auth.crls: needs trust_anchors",
        ),
        (
            changed("\"client-cert\"", "\"ingress-nginx\"") + "[policy]\njudge = \"chain\"\n",
            "authorizers.edge.policy.judge: judge = \"chain\" needs client_auth.trust_anchors",
        ),
        (
            changed(end, "cache_for = \"1s\"\n").replace("\"http\"", "\"spop\""),
            "cache_for: has no effect with protocol = \"spop\"",
        ),
        (add("[authorizers.limits]\nmax_question_size = \"1KiB\"\n"), "between 8KiB and 4MiB"),
        (add("[authorizers.limits]\nmax_connections = 0\n"), "0 is not between 1"),
        (
            changed(end, "[authorizers.policy]\nheader = \"a-b-c-d_e-f-g-h\"\n")
                .replace("\"http\"", "\"ext-authz\""),
            "policy.header: \"a-b-c-d_e-f-g-h\" has 7 hyphens and underscores, and Envoy must remove",
        ),
        (add("[authorizers.limits]\nidle_timeout = \"0s\"\n"), "0 would expire at once"),
        (
            add(&MINIMAL[MINIMAL.find("[[auth").unwrap()..].replace("ask.sock", "b.sock")),
            "another of the authorizers has the name \"edge\"",
        ),
        (
            add(&MINIMAL[MINIMAL.find("[[auth").unwrap()..].replace("edge", "other")),
            "give the authorizer an address of its own",
        ),
        (
            format!("admin = {{ listen = \"unix:ask.sock\" }}\n{MINIMAL}"),
            "give the authorizer an address of its own",
        ),
        (MINIMAL.split("[[auth").next().unwrap().to_owned(), "or an [[authorizers]] table"),
    ] {
        let error = parse(&text).unwrap_err();
        assert!(error.contains(expected), "{expected:?} is not in {error:?}");
        assert!(error.starts_with("/etc/keygate/keygate.toml"), "{error}");
    }
}

/// Without trust anchors, the key of an issuer that the client or the host leaves out is not
/// judged.
#[test]
fn a_judged_chain_needs_trust_anchors_whatever_the_host_sends() {
    let end = "certificate_from = \"client-cert\"\n";
    let all = "[policy]\njudge = \"chain\"\n";
    let verifying = format!("{end}client_auth = {{ trust_anchors = \"ca.pem\" }}\n");
    for (protocol, source) in [
        ("http", "certificate_from = \"client-cert\"\n"),
        ("http", "certificate_from = \"ingress-nginx\"\n"),
        ("http", "certificate_from = \"traefik\"\n"),
        ("http", "certificate_from = \"xfcc\"\n"),
        ("ext-authz", "certificate_from = \"attributes\"\n"),
        ("ext-authz", "certificate_from = \"xfcc\"\n"),
        ("spop", ""),
    ] {
        let of =
            |text: String| text.replace(end, source).replace("\"http\"", &format!("{protocol:?}"));
        let one = format!("{MINIMAL}[authorizers.policy]\njudge = \"chain\"\n");
        for text in [of(format!("{MINIMAL}{all}")), of(one)] {
            let error = parse(&text).unwrap_err();
            assert!(error.contains("needs client_auth.trust_anchors"), "{error}");
            assert!(error.contains("set judge = \"leaf\" for this authorizer"), "{error}");
        }
        parse(&of(changed(end, &verifying) + all)).unwrap();
        parse(&of(format!("{MINIMAL}policy = {{ judge = \"leaf\" }}\n{all}"))).unwrap();
    }
}

/// Envoy removes each spelling of the header; the other hosts have patterns for them.
#[test]
fn a_status_header_with_many_hyphens_is_for_other_hosts_than_envoy() {
    let end = "certificate_from = \"client-cert\"\n";
    let envoy = |text: &str| text.replace(end, "").replace("\"http\"", "\"ext-authz\"");
    let header = |name: &str| format!("{MINIMAL}[authorizers.policy]\nheader = {name:?}\n");
    parse(&header("a-b-c-d-e-f-g-h")).unwrap();
    parse(&envoy(&header("a-b-c-d-e-f-g"))).unwrap();
    let inherited = format!("policy = {{ header = \"a-b-c-d-e-f-g-h\" }}\n{MINIMAL}");
    parse(&inherited).unwrap();
    parse(&envoy(&inherited)).unwrap_err();
}

#[test]
fn a_service_and_an_authorizer_have_distinct_names() {
    let (_, service) = support::MINIMAL.split_once("[[services]]").unwrap();
    let service = format!("{MINIMAL}[[services]]{service}");
    parse(&service).unwrap();
    let error = parse(&service.replace("\"orders\"", "\"edge\"")).unwrap_err();
    assert!(error.contains("a service has the name \"edge\" too"), "{error}");
}

#[test]
fn networks_or_client_certificates_open_an_address_that_is_not_loopback() {
    let tcp = changed("unix:ask.sock", "10.0.0.1:9191");
    parse(&format!("{tcp}[authorizers.askers]\nfrom = [\"10.0.0.0/8\"]\n")).unwrap();
    let tls = "[authorizers.tls]\ncertificate = \"a\"\nprivate_key = \"b\"\n";
    parse(&format!("{tcp}{tls}client_ca = \"c\"\n")).unwrap();
    let error = parse(&format!("{tcp}{tls}")).unwrap_err();
    assert!(error.contains("is not loopback"), "TLS alone names no asker: {error}");
}

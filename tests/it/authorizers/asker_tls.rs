//! Askers over TLS with client certificates (`authorizers.tls`): Envoy and grpcio over HTTP/2,
//! HAProxy over SPOP. `askers.rs` has the same of hosts that ask over HTTP.

use std::net::TcpStream;
use std::sync::Arc;

use rustls::version::{TLS12, TLS13};
use rustls::{ClientConfig, ClientConnection};
use serde_json::json;

use crate::support::authorizer::{Authorizer, RunningAuthorizer};
use crate::support::client::{Client, Presents, config, config_of};
use crate::support::envoy::{Envoy, GET, GrpcHost};
use crate::support::haproxy::{Haproxy, HaproxyFiles};
use crate::support::http_host::escaped_pem;
use crate::support::pki::{Kind, Party, Pki};
use crate::support::proxy::Configure;
use crate::support::{TIMEOUT, wait_until};

/// The CA of the hosts that may ask, and a CA that is accepted only after a reload; with a host of
/// each. Neither is the CA of the clients.
struct Hosts {
    accepted_ca: Pki,
    accepted: Party,
    foreign_ca: Pki,
    foreign: Party,
}

impl Hosts {
    fn new() -> Self {
        let [accepted_ca, foreign_ca] = ["Hosts CA", "Foreign CA"].map(Pki::named);
        let [accepted, foreign] =
            [&accepted_ca, &foreign_ca].map(|ca| ca.client("host", Kind::P256));
        Self { accepted_ca, accepted, foreign_ca, foreign }
    }

    /// keygate on a TCP address with TLS, for the hosts of the accepted CA.
    fn authorizer(&self, name: &str) -> Authorizer {
        let authorizer = Authorizer::of(name);
        std::fs::copy(self.accepted_ca.path("ca.pem"), authorizer.pki.path("hosts.pem")).unwrap();
        authorizer.set("authorizers.listen", "127.0.0.1:0").add(
            "authorizers.tls",
            "certificate = \"server.pem\"\nprivate_key = \"server.key\"\nclient_ca = \"hosts.pem\"",
        )
    }

    /// Accepts hosts of the other CA alone.
    fn swap(&self, keygate: &RunningAuthorizer) {
        let open = keygate.metric(ASKERS) > 0.0;
        assert!(open, "a host has an open connection");
        std::fs::copy(self.foreign_ca.path("ca.pem"), keygate.pki.path("hosts.pem")).unwrap();
        keygate.wait_for_generation(2);
        wait_until("the close of open connections", || keygate.metric(ASKERS) < 1.0);
    }
}

const NOT_ALLOWED: &str = r#"keygate_questions_total{result="not_allowed",service="edge"}"#;
const ASKERS: &str = r#"keygate_askers_active{service="edge"}"#;

fn questions(keygate: &RunningAuthorizer, result: &str) -> f64 {
    keygate.metric(&format!("keygate_questions_total{{result=\"{result}\",service=\"edge\"}}"))
}

/// Envoy with the deployed configuration, as a host that has a certificate or not.
fn envoy(
    keygate: &RunningAuthorizer,
    host: Option<&Party>,
    version: &str,
    is_checked: bool,
) -> Option<Envoy> {
    let ca = keygate.pki.path("ca.pem").display().to_string();
    let certificate = host.map_or_else(String::new, |host| {
        format!(
            "          tls_certificates:\n          - certificate_chain: {{ filename: {} }}\n            private_key: {{ filename: {} }}\n",
            host.certificate.display(),
            host.private_key.display()
        )
    });
    let tls = format!(
        "    transport_socket:
      name: envoy.transport_sockets.tls
      typed_config:
        \"@type\": type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.UpstreamTlsContext
        sni: localhost
        common_tls_context:
          tls_params: {{ tls_minimum_protocol_version: {version}, tls_maximum_protocol_version: {version} }}
{certificate}          validation_context: {{ trusted_ca: {{ filename: {ca} }} }}
"
    );
    let address = keygate.keygate.authorizer_address("edge");
    let port = address.rsplit_once(':').unwrap().1;
    let change = |text: String| {
        let pipe = format!("pipe: {{ path: {} }}", keygate.socket().display());
        let tcp = format!("socket_address: {{ address: 127.0.0.1, port_value: {port} }}");
        let cluster = "  - name: keygate\n    type: STATIC\n";
        assert!(text.contains(&pipe) && text.contains(cluster));
        let text = text.replace(&pipe, &tcp).replace(cluster, &format!("{cluster}{tls}"));
        if is_checked {
            return text;
        }
        // Without health checks each request of a client is a question.
        let (before, rest) = text.split_once("    health_checks:").unwrap();
        let (_, after) = rest.split_once("    common_lb_config:").unwrap();
        format!("{before}    common_lb_config:{after}")
    };
    Envoy::start("envoy", keygate.pki.directory(), keygate.origin.address(), change)
}

#[test]
fn envoy_asks_over_tls_if_its_certificate_is_of_the_ca() {
    let hosts = Hosts::new();
    let keygate = hosts.authorizer("envoy").start();
    let [good, lost] = [&keygate.good, &keygate.lost].map(|client| config(&keygate.pki, client));
    let accepted = [("TLSv1_2", true), ("TLSv1_3", false)]
        .map(|(version, is_checked)| envoy(&keygate, Some(&hosts.accepted), version, is_checked));
    let [Some(first), Some(second)] = accepted else { return };
    for envoy in [&first, &second] {
        for _ in 0..2 {
            assert_eq!([envoy.get(&good), envoy.get(&lost)], ["200", "403"]);
        }
    }
    assert_eq!((questions(&keygate, "allowed"), questions(&keygate, "denied")), (4.0, 4.0));
    let anonymous = envoy(&keygate, None, "TLSv1_3", false).unwrap();
    let foreign = envoy(&keygate, Some(&hosts.foreign), "TLSv1_2", false).unwrap();
    for envoy in [&anonymous, &foreign] {
        let rejected = keygate.metric(NOT_ALLOWED);
        let exchange = envoy.exchange(&good, GET);
        assert_eq!(exchange.status(), "403");
        assert!(!exchange.text.contains("client-key-status"), "an answer: {exchange:?}");
        keygate.wait_for_counter(NOT_ALLOWED, rejected + 1.0);
    }
    assert_eq!((questions(&keygate, "allowed"), questions(&keygate, "denied")), (4.0, 4.0));
    hosts.swap(&keygate);
    for envoy in [&first, &second, &anonymous] {
        let exchange = envoy.exchange(&good, GET);
        assert_eq!(exchange.status(), "403", "of the CA from before: {exchange:?}");
    }
    assert_eq!([foreign.get(&good), foreign.get(&lost)], ["200", "403"]);
}

#[test]
fn grpcio_asks_over_tls_if_its_certificate_is_of_the_ca() {
    let hosts = Hosts::new();
    let keygate = hosts.authorizer("envoy").start();
    let address = keygate.keygate.authorizer_address("edge");
    let connect = |host| GrpcHost::over_tls(&address, &keygate.pki.path("ca.pem"), host);
    let certificate = escaped_pem(&keygate.good.der);
    let question = json!({ "attributes": { "source": { "certificate": certificate } } });
    let code = |host: &mut GrpcHost| {
        let outcome = host.run(json!(["check", question]));
        outcome["code"].as_str().unwrap().to_owned()
    };
    let Some(mut accepted) = connect(Some(&hosts.accepted)) else { return };
    assert_eq!(code(&mut accepted), "OK");
    assert_eq!(accepted.run(json!(["serving", ""]))["message"]["status"], "SERVING");
    let [mut anonymous, mut foreign] =
        [None, Some(&hosts.foreign)].map(|host| connect(host).unwrap());
    for host in [&mut anonymous, &mut foreign] {
        let rejected = keygate.metric(NOT_ALLOWED);
        assert_eq!(code(host), "UNAVAILABLE");
        keygate.wait_for_counter(NOT_ALLOWED, rejected + 1.0);
    }
    assert_eq!(questions(&keygate, "allowed"), 1.0);
    hosts.swap(&keygate);
    assert_eq!(code(&mut accepted), "UNAVAILABLE");
    // grpcio waits before it connects again.
    let mut again = connect(Some(&hosts.foreign)).unwrap();
    assert_eq!(code(&mut again), "OK");
    assert_eq!(questions(&keygate, "allowed"), 2.0);
}

/// The server of a HAProxy that keygate accepts.
const CHECKED: &str = "check inter 500ms fall 2 on-marked-down shutdown-sessions";
/// Without health checks each request of a client is a question.
const UNCHECKED: &str = "";

#[test]
fn haproxy_asks_over_tls_if_its_certificate_is_of_the_ca() {
    let hosts = Hosts::new();
    let keygate = hosts.authorizer("haproxy").start();
    let pki = &keygate.pki;
    let [good, lost] = [&keygate.good, &keygate.lost].map(|client| config(pki, client));
    let start = |host: Option<&Party>, version: &str, check: &str| {
        let files = HaproxyFiles::of("haproxy", pki, keygate.origin.address())?;
        // HAProxy waits for the answers of a closed connection, too.
        let files = match check {
            UNCHECKED => files
                .replace_in_engine("timeout processing 30s", "timeout processing 50ms")
                .replace_in_engine("timeout hello 30s", "timeout hello 1s"),
            _ => files,
        };
        let crt = host.map_or_else(String::new, |host| {
            let pem = [&host.certificate, &host.private_key].map(|it| std::fs::read(it).unwrap());
            let path = host.certificate.with_extension("both.pem");
            std::fs::write(&path, pem.concat()).unwrap();
            format!(" crt {}", path.display())
        });
        let unix = format!("server keygate unix@{} {CHECKED}", keygate.socket().display());
        let tls = format!(
            "server keygate {} ssl verify required ca-file {} sni str(localhost) force-{version}{crt} {check}",
            keygate.keygate.authorizer_address("edge"),
            pki.path("ca.pem").display()
        );
        Some(files.replace(&unix, &tls).start(pki))
    };
    let code = |haproxy: &Haproxy, config: &ClientConfig| {
        let mut client = Client::with(config.clone(), haproxy.address);
        client.send(GET);
        client.whatever_comes().get(9..12).map(str::to_owned)
    };
    let accepted =
        ["tlsv12", "tlsv13"].map(|version| start(Some(&hosts.accepted), version, CHECKED));
    let [Some(first), Some(second)] = accepted else { return };
    for haproxy in [&first, &second] {
        for _ in 0..2 {
            assert_eq!(code(haproxy, &good).as_deref(), Some("200"));
            assert_eq!(code(haproxy, &lost).as_deref(), Some("403"));
        }
    }
    let allowed = questions(&keygate, "allowed");
    let is_rejected = |host: Option<&Party>| {
        for version in ["tlsv12", "tlsv13"] {
            let haproxy = start(host, version, UNCHECKED).unwrap();
            let rejected = keygate.metric(NOT_ALLOWED);
            assert_eq!(code(&haproxy, &good).as_deref(), Some("403"));
            keygate.wait_for_counter(NOT_ALLOWED, rejected + 1.0);
        }
    };
    is_rejected(None);
    is_rejected(Some(&hosts.foreign));
    hosts.swap(&keygate);
    is_rejected(Some(&hosts.accepted));
    assert_eq!(questions(&keygate, "allowed"), allowed);
    let foreign = start(Some(&hosts.foreign), "tlsv13", CHECKED).unwrap();
    assert_eq!(code(&foreign, &good).as_deref(), Some("200"));
    assert_eq!(code(&foreign, &lost).as_deref(), Some("403"));
}

/// The protocol of ALPN, or the error of the handshake.
fn negotiated(keygate: &RunningAuthorizer, config: ClientConfig) -> Result<String, String> {
    let address = keygate.keygate.authorizer_address("edge");
    let mut tcp = TcpStream::connect(address).unwrap();
    tcp.set_read_timeout(Some(TIMEOUT)).unwrap();
    let name = "localhost".try_into().unwrap();
    let mut connection = ClientConnection::new(Arc::new(config), name).unwrap();
    while connection.is_handshaking() {
        connection.complete_io(&mut tcp).map_err(|error| error.to_string())?;
    }
    let protocol = connection.alpn_protocol().unwrap_or_default();
    Ok(String::from_utf8_lossy(protocol).into_owned())
}

/// Guard: `asker_config` in `crates/core/src/tls/server_config.rs`.
#[test]
fn alpn_is_that_of_the_protocol() {
    let hosts = Hosts::new();
    for (name, both, old) in [
        ("envoy", Ok("h2"), Err("NoApplicationProtocol")),
        ("caddy", Ok("h2"), Ok("http/1.1")),
        ("haproxy", Ok(""), Ok("")),
    ] {
        let keygate = hosts.authorizer(name).start();
        for version in [&TLS12, &TLS13] {
            for (offered, expected) in
                [(&["h2", "http/1.1"][..], both), (&["http/1.1"], old), (&[], Ok(""))]
            {
                let mut config = config_of(&keygate.pki, &[version], None);
                config.client_auth_cert_resolver = Presents::new(&hosts.accepted, &hosts.accepted);
                config.alpn_protocols = offered.iter().map(|it| it.as_bytes().to_vec()).collect();
                let found = negotiated(&keygate, config);
                match (&found, expected) {
                    (Ok(found), Ok(expected)) if found == expected => {}
                    (Err(error), Err(expected)) if error.contains(expected) => {}
                    _ => panic!("{name} {version:?} {offered:?}: {found:?}"),
                }
            }
        }
    }
}

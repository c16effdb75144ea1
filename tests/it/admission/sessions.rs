//! A resumed session is judged like a full handshake, and a copied certificate counts for nothing.
//!
//! Guards: `ExpiringSessions` in `crates/core/src/tls/server_config.rs` (a session expires with its
//! certificate), `Ticketer::new` in `crates/core/src/tls/server_config.rs` (a session ends with its snapshot),
//! `identity.judge` in `src/proxy/connection.rs` (resumed sessions, handshakes during a reload),
//! `self.inner.verify_client_cert` in `crates/core/src/tls/verifier.rs` (a copied certificate).

use std::fs::{rename, write};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use rustls::client::Tls12Resumption;
use rustls::{
    AlertDescription, ClientConfig, ClientConnection, HandshakeKind, StreamOwned,
    SupportedProtocolVersion,
};

use crate::support::client::config_of;
use crate::support::keygate::Keygate;
use crate::support::origin::{Origin, Received};
use crate::support::pki::{Kind, Party, Pki};
use crate::support::proxy::{Configuration, Configure};
use crate::support::{TIMEOUT, before, write_filter, write_revision};

const VERSIONS: [Way; 3] = [
    Way { version: &rustls::version::TLS12, stored: false },
    Way { version: &rustls::version::TLS12, stored: true },
    Way { version: &rustls::version::TLS13, stored: false },
];

/// How a session is resumed.
#[derive(Debug, Clone, Copy)]
struct Way {
    version: &'static SupportedProtocolVersion,
    /// With the session store of the server, not with the ticket of the client.
    stored: bool,
}

/// A client that keeps its sessions for the next connection.
fn client(pki: &Pki, way: Way, party: &Party) -> Arc<ClientConfig> {
    let mut config = config_of(pki, &[way.version], Some(party));
    if way.stored {
        config.resumption = config.resumption.tls12_resumption(Tls12Resumption::SessionIdOnly);
    }
    Arc::new(config)
}

/// Sends a GET on a new connection. Returns the kind of the handshake and the response.
fn get(
    keygate: &Keygate,
    config: &Arc<ClientConfig>,
) -> (Option<HandshakeKind>, std::io::Result<String>) {
    let name = "localhost".try_into().unwrap();
    let connection = ClientConnection::new(Arc::clone(config), name).unwrap();
    let tcp = TcpStream::connect(keygate.address()).unwrap();
    tcp.set_read_timeout(Some(TIMEOUT)).unwrap();
    let mut tls = StreamOwned::new(connection, tcp);
    let mut exchange = || {
        write!(tls, "GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")?;
        let mut response = String::new();
        tls.read_to_string(&mut response).map(|_| response)
    };
    let response = exchange();
    (tls.conn.handshake_kind(), response)
}

fn is_denied(response: std::io::Result<String>) -> bool {
    let Err(error) = response else { return false };
    let error = error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>());
    error == Some(&rustls::Error::AlertReceived(AlertDescription::AccessDenied))
}

#[test]
fn a_resumed_session_forwards_verdict_and_certificate_like_a_full_handshake() {
    for version in VERSIONS {
        let (pki, origin) = (Pki::new(), Origin::start());
        let lost = pki.client("lost", Kind::P256);
        write_filter(&pki.path("lost.pkbf"), &[&lost.spki]);
        let keygate =
            Configuration::new(origin.address()).policy("on_probable = \"header\"").start(&pki);
        let config = client(&pki, version, &lost);

        let mut forwarded = Vec::new();
        for kind in [HandshakeKind::Full, HandshakeKind::Resumed] {
            let (found, response) = get(&keygate, &config);
            assert!(response.unwrap().ends_with("hello\n"));
            assert_eq!(found, Some(kind), "{version:?}");
            let request: Received = origin.next();
            forwarded
                .push(["client-key-status", "client-cert"].map(|it| request.fields(it).concat()));
        }
        assert_eq!(forwarded[0], forwarded[1], "{version:?}");
        assert!(forwarded[0][0].starts_with("probable;"), "{forwarded:?}");
        for stage in ["handshake", "resumed"] {
            let series = format!(
                "keygate_key_checks_total{{service=\"test\",stage=\"{stage}\",verdict=\"probable\"}}"
            );
            assert_eq!(keygate.metric(&series), 1.0, "{series}");
        }
    }
}

#[test]
fn a_session_from_before_the_filter_changed_does_not_admit_a_listed_key() {
    for version in VERSIONS {
        let (pki, origin) = (Pki::new(), Origin::start());
        let turned = pki.client("turned", Kind::P256);
        write_filter(&pki.path("lost.pkbf"), &[]);
        let keygate = Configuration::new(origin.address()).start(&pki);
        let config = client(&pki, version, &turned);
        assert!(get(&keygate, &config).1.is_ok());
        assert_eq!(get(&keygate, &config).0, Some(HandshakeKind::Resumed), "{version:?}");

        write_revision(&pki.path("lost.pkbf"), &[&turned.spki], 2);
        keygate.wait_for_generation(2);
        let (_, response) = get(&keygate, &config);
        assert!(is_denied(response), "{version:?}");
    }
}

#[test]
fn a_session_older_than_a_list_a_ca_or_a_revocation_list_is_not_resumed() {
    for version in VERSIONS {
        let (pki, origin) = (Pki::new(), Origin::start());
        let [client_of, other] = ["client", "other"].map(|name| pki.client(name, Kind::P256));
        write_filter(&pki.path("lost.pkbf"), &[]);
        write(pki.path("deny.txt"), "").unwrap();
        let crl = |name: &str| pki.crl(name, &[&other], Duration::from_secs(3600));
        crl("clients.crl");
        let lists = "lists = [{ name = \"march\", path = \"deny.txt\" }]";
        let keygate = Configuration::new(origin.address())
            .global(lists)
            .client_auth("crls = [\"clients.crl\"]")
            .start(&pki);
        let config = client(&pki, version, &client_of);
        let kind = || {
            let (kind, response) = get(&keygate, &config);
            assert!(response.unwrap().ends_with("hello\n"), "{version:?}");
            kind.unwrap()
        };
        assert_eq!(kind(), HandshakeKind::Full);
        assert_eq!(kind(), HandshakeKind::Resumed);

        let pem = |pki: &Pki| std::fs::read_to_string(pki.path("ca.pem")).unwrap();
        let anchors = pem(&pki) + &pem(&Pki::named("Another CA"));
        let replace = |name: &str, content: &str| {
            write(pki.path("next"), content).unwrap();
            rename(pki.path("next"), pki.path(name)).unwrap();
        };
        let updates: [(&str, &dyn Fn()); 3] = [
            ("a list", &|| replace("deny.txt", &"0".repeat(64))),
            ("a CA", &|| replace("ca.pem", &anchors)),
            ("a revocation list", &|| rename(crl("next"), pki.path("clients.crl")).unwrap()),
        ];
        for (generation, (what, update)) in (2..).zip(updates) {
            update();
            keygate.wait_for_generation(generation);
            assert_eq!(kind(), HandshakeKind::Full, "{version:?}, after {what}");
            assert_eq!(kind(), HandshakeKind::Resumed, "{version:?}, after {what}");
        }
    }
}

/// A session has the path of its client by position among the CAs, so no other order may be used
/// with it.
#[test]
fn a_session_older_than_the_order_of_cas_or_another_depth_is_not_resumed() {
    for version in VERSIONS {
        let (pki, origin) = (Pki::new(), Origin::start());
        let client_of = pki.client("client", Kind::P256);
        write_filter(&pki.path("lost.pkbf"), &[]);
        pki.crl("clients.crl", &[], Duration::from_secs(3600));
        let pem = |pki: &Pki| std::fs::read_to_string(pki.path("ca.pem")).unwrap();
        let [ours, other] = [pem(&pki), pem(&Pki::named("Another CA"))];
        write(pki.path("clients.pem"), ours.clone() + &other).unwrap();
        let configuration = Configuration::new(origin.address())
            .client_auth("trust_anchors = \"clients.pem\", crls = [\"clients.crl\"]");
        let leaf = configuration.clone().client_auth("revocation = \"leaf\"");
        let keygate = leaf.start(&pki);
        let config = client(&pki, version, &client_of);
        let kind = || {
            let (kind, response) = get(&keygate, &config);
            assert!(response.unwrap().ends_with("hello\n"), "{version:?}");
            kind.unwrap()
        };
        assert_eq!(kind(), HandshakeKind::Full);
        assert_eq!(kind(), HandshakeKind::Resumed);
        let replace = |name: &str, content: &str| {
            write(pki.path("next"), content).unwrap();
            rename(pki.path("next"), pki.path(name)).unwrap();
        };
        let [path, chain] =
            [configuration.clone(), configuration.policy("judge = \"chain\"")].map(|it| it.text());
        for (generation, (name, content)) in (2..).zip([
            ("clients.pem", other + &ours),
            ("keygate.toml", path),
            ("keygate.toml", chain),
        ]) {
            replace(name, &content);
            keygate.wait_for_generation(generation);
            assert_eq!(kind(), HandshakeKind::Full, "{version:?}, {generation}");
            assert_eq!(kind(), HandshakeKind::Resumed, "{version:?}, {generation}");
        }
    }
}

#[test]
fn a_session_does_not_outlive_the_ca_of_its_client_or_a_revocation() {
    for version in VERSIONS {
        for is_revoked in [false, true] {
            let (pki, origin) = (Pki::new(), Origin::start());
            let client_of = pki.client("client", Kind::P256);
            write_filter(&pki.path("lost.pkbf"), &[]);
            pki.crl("clients.crl", &[], Duration::from_secs(3600));
            std::fs::copy(pki.path("ca.pem"), pki.path("clients.pem")).unwrap();
            let files = "trust_anchors = \"clients.pem\", crls = [\"clients.crl\"]";
            let keygate = Configuration::new(origin.address()).client_auth(files).start(&pki);
            let config = client(&pki, version, &client_of);
            assert_eq!(get(&keygate, &config).0, Some(HandshakeKind::Full));
            assert_eq!(get(&keygate, &config).0, Some(HandshakeKind::Resumed));
            if is_revoked {
                let list = pki.crl("next", &[&client_of], Duration::from_secs(3600));
                rename(list, pki.path("clients.crl")).unwrap();
            } else {
                let other = Pki::named("Another CA");
                std::fs::copy(other.path("ca.pem"), pki.path("next")).unwrap();
                rename(pki.path("next"), pki.path("clients.pem")).unwrap();
            }
            keygate.wait_for_generation(2);
            let error = get(&keygate, &config).1.unwrap_err().to_string();
            let alert = if is_revoked { "CertificateRevoked" } else { "UnknownCA" };
            assert!(error.contains(alert), "{version:?}: {error}");
        }
    }
}

#[test]
fn a_session_whose_certificate_expired_is_not_resumed() {
    for version in VERSIONS {
        let (pki, origin) = (Pki::new(), Origin::start());
        write_filter(&pki.path("lost.pkbf"), &[]);
        let (ends, (keygate, config)) = before(Duration::from_secs(5), |ends| {
            let mut parameters = rcgen::CertificateParams::default();
            parameters.not_after = ends.into();
            let brief = pki.client_with("brief", Kind::P256, parameters);
            let keygate = Configuration::new(origin.address()).start(&pki);
            let config = client(&pki, version, &brief);
            assert!(get(&keygate, &config).1.is_ok());
            assert_eq!(get(&keygate, &config).0, Some(HandshakeKind::Resumed), "{version:?}");
            (keygate, config)
        });
        // The clock alone shows that a certificate expires, and its last second is still valid.
        let left = ends.duration_since(SystemTime::now()).unwrap_or_default();
        std::thread::sleep(left + Duration::from_secs(1));
        let (_, response) = get(&keygate, &config);
        let error = response.unwrap_err().to_string();
        assert!(error.contains("CertificateExpired"), "{version:?}: {error}");
        let expired =
            r#"keygate_handshakes_total{result="expired",resumed="false",service="test"}"#;
        keygate.wait_for_metric(expired, 1.0);
        let resumed = r#"keygate_handshakes_total{result="ok",resumed="true",service="test"}"#;
        assert_eq!(keygate.metric(resumed), 1.0, "{version:?}: the one before");
    }
}

#[test]
fn a_handshake_that_began_before_a_reload_is_judged_by_the_new_filter() {
    for version in VERSIONS {
        let (pki, origin) = (Pki::new(), Origin::start());
        let turned = pki.client("turned", Kind::P256);
        write_filter(&pki.path("lost.pkbf"), &[]);
        let keygate = Configuration::new(origin.address()).start(&pki);
        let config = client(&pki, version, &turned);

        let mut tcp = TcpStream::connect(keygate.address()).unwrap();
        tcp.set_read_timeout(Some(TIMEOUT)).unwrap();
        let name = "localhost".try_into().unwrap();
        let mut connection = ClientConnection::new(config, name).unwrap();
        connection.write_tls(&mut tcp).unwrap(); // the ClientHello
        assert_eq!(tcp.peek(&mut [0]).unwrap(), 1); // answered, by the old snapshot
        write_revision(&pki.path("lost.pkbf"), &[&turned.spki], 2);
        keygate.wait_for_generation(2);

        let mut tls = StreamOwned::new(connection, tcp);
        let mut response = String::new();
        let requested = write!(tls, "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
            .and_then(|()| tls.read_to_string(&mut response));
        let error = requested.unwrap_err().to_string();
        assert!(error.contains("AccessDenied"), "{version:?}: {error}: {response}");
        let series =
            r#"keygate_key_checks_total{service="test",stage="handshake",verdict="probable"}"#;
        keygate.wait_for_metric(series, 1.0);
        assert_eq!(origin.untaken(), 0);
    }
}

#[test]
fn without_resumption_every_handshake_is_full() {
    for version in VERSIONS {
        let (pki, origin) = (Pki::new(), Origin::start());
        let good = pki.client("good", Kind::P256);
        write_filter(&pki.path("lost.pkbf"), &[]);
        let keygate = Configuration::new(origin.address())
            .add("services.tls", "resumption = false")
            .start(&pki);
        let config = client(&pki, version, &good);
        for _ in 0..2 {
            assert_eq!(get(&keygate, &config).0, Some(HandshakeKind::Full), "{version:?}");
        }
    }
}

#[test]
fn a_copied_certificate_without_its_key_counts_no_hit() {
    for version in VERSIONS {
        let (pki, origin) = (Pki::new(), Origin::start());
        let (lost, thief) = (pki.client("lost", Kind::P256), pki.client("thief", Kind::P256));
        write_filter(&pki.path("lost.pkbf"), &[&lost.spki]);
        let keygate = Configuration::new(origin.address()).start(&pki);
        let copied = Party { der: lost.der.clone(), ..thief };
        let config = client(&pki, version, &copied);

        let (_, response) = get(&keygate, &config);
        assert!(response.is_err() && !is_denied(response), "{version:?}");
        let failed =
            r#"keygate_handshakes_total{result="bad_signature",resumed="false",service="test"}"#;
        keygate.wait_for_metric(failed, 1.0);
        for verdict in ["clean", "probable", "unchecked"] {
            let series = format!(
                "keygate_key_checks_total{{service=\"test\",stage=\"handshake\",verdict=\"{verdict}\"}}"
            );
            assert_eq!(keygate.metric(&series), 0.0, "{series}");
        }
        assert_eq!(origin.untaken(), 0);
    }
}

//! A resumed session is judged like a new one, and nobody is judged by a copied certificate.

#![allow(clippy::panic, clippy::unwrap_used, reason = "a test fails where it stands")]

mod support;

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Arc;

use rustls::{
    AlertDescription, ClientConfig, ClientConnection, HandshakeKind, StreamOwned,
    SupportedProtocolVersion,
};
use support::client::config_of;
use support::keygate::Keygate;
use support::origin::{Origin, Received};
use support::pki::{Kind, Party, Pki};
use support::{PATIENCE, write_filter, write_revision};

const VERSIONS: [&SupportedProtocolVersion; 2] = [&rustls::version::TLS12, &rustls::version::TLS13];

/// A client that keeps its sessions for the next connection.
fn client(
    pki: &Pki,
    version: &'static SupportedProtocolVersion,
    party: &Party,
) -> Arc<ClientConfig> {
    Arc::new(config_of(pki, &[version], Some(party)))
}

/// One GET on a connection of its own: how the handshake went, and the response.
fn get(
    keygate: &Keygate,
    config: &Arc<ClientConfig>,
) -> (Option<HandshakeKind>, std::io::Result<String>) {
    let name = "localhost".try_into().unwrap();
    let connection = ClientConnection::new(Arc::clone(config), name).unwrap();
    let tcp = TcpStream::connect(keygate.address()).unwrap();
    tcp.set_read_timeout(Some(PATIENCE)).unwrap();
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
fn a_resumed_session_carries_verdict_and_certificate_as_a_full_one() {
    for version in VERSIONS {
        let (pki, origin) = (Pki::new(), Origin::start());
        let lost = pki.client("lost", Kind::P256);
        write_filter(&pki.path("lost.pkbf"), &[&lost.spki]);
        let keygate = Keygate::start(&pki, &origin, "policy = { on_probable = \"header\" }");
        let config = client(&pki, version, &lost);

        let mut told = Vec::new();
        for kind in [HandshakeKind::Full, HandshakeKind::Resumed] {
            let (found, response) = get(&keygate, &config);
            assert!(response.unwrap().ends_with("hello\n"));
            assert_eq!(found, Some(kind), "{version:?}");
            let request: Received = origin.next();
            told.push(["client-key-status", "client-cert"].map(|it| request.fields(it).concat()));
        }
        assert_eq!(told[0], told[1], "{version:?}");
        assert!(told[0][0].starts_with("probable;"), "{told:?}");
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
        let keygate = Keygate::start(&pki, &origin, "");
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
fn a_handshake_that_began_before_a_swap_is_judged_by_the_filter_after_it() {
    for version in VERSIONS {
        let (pki, origin) = (Pki::new(), Origin::start());
        let turned = pki.client("turned", Kind::P256);
        write_filter(&pki.path("lost.pkbf"), &[]);
        let keygate = Keygate::start(&pki, &origin, "");
        let config = client(&pki, version, &turned);

        let mut tcp = TcpStream::connect(keygate.address()).unwrap();
        tcp.set_read_timeout(Some(PATIENCE)).unwrap();
        let name = "localhost".try_into().unwrap();
        let mut connection = ClientConnection::new(config, name).unwrap();
        connection.write_tls(&mut tcp).unwrap(); // the ClientHello
        assert_eq!(tcp.peek(&mut [0]).unwrap(), 1); // answered, by the old snapshot
        write_revision(&pki.path("lost.pkbf"), &[&turned.spki], 2);
        keygate.wait_for_generation(2);

        let mut tls = StreamOwned::new(connection, tcp);
        let mut response = String::new();
        let asked = write!(tls, "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
            .and_then(|()| tls.read_to_string(&mut response));
        let error = asked.unwrap_err().to_string();
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
        let configuration = support::keygate::configuration(origin.address(), "", "");
        let full = configuration.replace("server.key\" }", "server.key\", resumption = false }");
        let keygate = Keygate::configured(&pki, &full);
        let config = client(&pki, version, &good);
        for _ in 0..2 {
            assert_eq!(get(&keygate, &config).0, Some(HandshakeKind::Full), "{version:?}");
        }
    }
}

#[test]
fn a_copied_certificate_without_its_key_raises_no_alarm() {
    for version in VERSIONS {
        let (pki, origin) = (Pki::new(), Origin::start());
        let (lost, thief) = (pki.client("lost", Kind::P256), pki.client("thief", Kind::P256));
        write_filter(&pki.path("lost.pkbf"), &[&lost.spki]);
        let keygate = Keygate::start(&pki, &origin, "");
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

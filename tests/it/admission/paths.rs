//! The path from a client's certificate to a trust anchor: which certificates are judged, forwarded
//! and dated, and what a client without the key learns.
//!
//! Guards: `MAX_CERTIFICATES` in `crates/core/src/tls/client_verifier.rs` (number of certificates), `fn check` in
//! `crates/core/src/tls/client_verifier/search.rs` (dates of trust anchors), `fn judge_handshake` in
//! `crates/core/src/tls/verifier.rs` (nothing is judged before the proof of possession), `fn with_path` and
//! `fn is_due_for_check` in `crates/core/src/tls/identity.rs`, `verify_again` in `src/proxy/open_connection.rs`.

use std::fs::write;
use std::io::Read;
use std::net::TcpStream;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use data_encoding::BASE64;
use keygate_core::spki::Fingerprint;
use rcgen::CertificateParams;
use rustls::pki_types::CertificateDer;
use rustls::{ClientConnection, HandshakeKind, StreamOwned};
use serde_json::json;

use crate::support::client::{Client, config_with_chain};
use crate::support::keygate::{Keygate, keygate};
use crate::support::origin::Origin;
use crate::support::pki::{Kind, Party, Pki};
use crate::support::proxy::{Configuration, Configure};
use crate::support::{TIMEOUT, before, output_text, write_filter};

const GET: &str = "GET / HTTP/1.1\r\nhost: localhost\r\n\r\n";
const LIST: &str = "lists = [{ name = \"march\", path = \"deny.txt\" }]";
const JUDGE_CHAIN: &str = "judge = \"chain\", allow_compromised_own_key = true";

/// A proxy whose list holds `listed`.
fn start(pki: &Pki, origin: &Origin, listed: &[&[u8]], policy: &str) -> Keygate {
    configuration(pki, origin, listed, policy).start(pki)
}

fn configuration(pki: &Pki, origin: &Origin, listed: &[&[u8]], policy: &str) -> Configuration {
    write_filter(&pki.path("lost.pkbf"), &[]);
    let lines = listed.iter().map(|spki| format!("{}\n", Fingerprint::of(spki)));
    write(pki.path("deny.txt"), lines.collect::<String>()).unwrap();
    Configuration::new(origin.address())
        .global(LIST)
        .add("services.forward", "client_cert_chain = true")
        .policy(policy)
}

fn admits(keygate: &Keygate, client: &Party, arguments: &[&str]) {
    let response = keygate.curl(client, arguments);
    assert_eq!(response.stdout, b"hello\n", "{}: {}", client.name, output_text(&response));
}

fn rejects(keygate: &Keygate, client: &Party, arguments: &[&str], alert: &str) {
    let response = keygate.curl(client, arguments);
    let text = output_text(&response);
    assert!(text.contains(alert), "{} {arguments:?}: {text}", client.name);
}

fn chain_field(certificates: &[&CertificateDer<'_>]) -> String {
    let members = certificates.iter().map(|der| format!(":{}:", BASE64.encode(der)));
    members.collect::<Vec<_>>().join(", ")
}

#[test]
fn unrelated_certificates_are_neither_judged_nor_forwarded() {
    let (pki, origin) = (Pki::new(), Origin::start());
    let (issuing, unrelated) = (pki.subordinate("Issuing CA"), Pki::named("Unrelated CA"));
    let client = issuing.client("client", Kind::P256);
    let chain = vec![client.der.clone(), unrelated.ca().clone(), issuing.ca().clone()];
    let listed = unrelated.spki();
    let keygate = start(&pki, &origin, &[&listed], JUDGE_CHAIN);
    for version in [&rustls::version::TLS12, &rustls::version::TLS13] {
        let config = Arc::new(config_with_chain(&pki, version, chain.clone(), &client));
        for kind in [HandshakeKind::Full, HandshakeKind::Resumed] {
            let name = "localhost".try_into().unwrap();
            let connection = ClientConnection::new(Arc::clone(&config), name).unwrap();
            let tcp = TcpStream::connect(keygate.address()).unwrap();
            tcp.set_read_timeout(Some(TIMEOUT)).unwrap();
            let mut tls = StreamOwned::new(connection, tcp);
            let request = GET.replace("\r\n\r\n", "\r\nconnection: close\r\n\r\n");
            std::io::Write::write_all(&mut tls, request.as_bytes()).unwrap();
            let mut response = String::new();
            tls.read_to_string(&mut response).unwrap();
            assert!(response.ends_with("hello\n"), "{response}");
            assert_eq!(tls.conn.handshake_kind(), Some(kind), "{version:?}");
            let request = origin.next();
            assert_eq!(request.fields("client-cert-chain"), [chain_field(&[issuing.ca()])]);
        }
    }
}

#[test]
fn a_listed_trust_anchor_rejects_its_clients_if_the_chain_is_judged() {
    for (judge, is_rejected) in [("leaf", false), ("chain", true)] {
        let (pki, origin) = (Pki::new(), Origin::start());
        let client = pki.client("client", Kind::P256);
        let policy = format!("judge = \"{judge}\", allow_compromised_own_key = true");
        let listed = pki.spki();
        let keygate = start(&pki, &origin, &[&listed], &policy);
        if !is_rejected {
            admits(&keygate, &client, &[]);
            assert!(origin.next().fields("client-cert-chain").is_empty(), "no intermediate");
            continue;
        }
        let tls13 = ["--tlsv1.3"];
        let tls12 = ["--tlsv1.2", "--tls-max", "1.2"];
        // The client's first key share is of a group that keygate does not have.
        let hello_retry_request = ["--tlsv1.3", "--curves", "X448:X25519"];
        for arguments in [&tls13[..], &tls12, &hello_retry_request] {
            rejects(&keygate, &client, arguments, "access denied");
        }
        let line = keygate.wait_for("its line", |line| line["message"] == "client key rejected");
        assert_eq!((&line["subject"], &line["verdict"]), (&json!("CN=client"), &json!("listed")));
        assert_eq!(line["found_subject"], "CN=Test CA");
        assert_eq!(line["found_fingerprint"], Fingerprint::of(&listed).to_string());
        assert_eq!(origin.untaken(), 0);
    }
}

#[test]
fn a_listed_trust_anchor_is_judged_after_the_handshake_too() {
    let (pki, origin) = (Pki::new(), Origin::start());
    let client = pki.client("client", Kind::P256);
    let keygate = start(&pki, &origin, &[], JUDGE_CHAIN);
    let mut open = Client::connect(&pki, keygate.address(), &client);
    open.send(GET);
    assert!(open.head().starts_with("HTTP/1.1 200 "));
    open.exactly(6);
    write(pki.path("deny.txt"), Fingerprint::of(&pki.spki()).to_string()).unwrap();
    assert_eq!(open.rest(), "", "an open connection");
    keygate.wait_for("its line", |line| {
        line["message"] == "client key rejected, closing connection"
            && line["found_subject"] == "CN=Test CA"
    });
}

/// The error that a client gets that has the certificates, and another key.
fn error_of_copy(keygate: &Keygate, pki: &Pki, chain: &[&CertificateDer<'static>]) -> String {
    let thief = pki.client("thief", Kind::P256);
    let chain = chain.iter().map(|der| (*der).clone()).collect();
    let config = config_with_chain(pki, &rustls::version::TLS13, chain, &thief);
    let name = "localhost".try_into().unwrap();
    let connection = ClientConnection::new(Arc::new(config), name).unwrap();
    let tcp = TcpStream::connect(keygate.address()).unwrap();
    tcp.set_read_timeout(Some(TIMEOUT)).unwrap();
    let mut tls = StreamOwned::new(connection, tcp);
    tls.read_to_end(&mut Vec::new()).unwrap_err().to_string()
}

#[test]
fn a_copied_certificate_with_a_listed_one_behind_it_learns_nothing() {
    let (pki, origin) = (Pki::new(), Origin::start());
    let issuing = pki.subordinate("Issuing CA");
    let (clean, listed) = (Pki::named("Clean CA"), Pki::named("Listed CA"));
    let victim = pki.client("victim", Kind::P256);
    let below = issuing.client("below", Kind::P256);
    let keys = [issuing.spki(), listed.spki()];
    let keygate = start(&pki, &origin, &[&keys[0], &keys[1]], JUDGE_CHAIN);
    let of_clean = error_of_copy(&keygate, &pki, &[&victim.der, clean.ca()]);
    assert!(of_clean.contains("DecryptError"), "{of_clean}");
    assert_eq!(error_of_copy(&keygate, &pki, &[&victim.der, listed.ca()]), of_clean);
    // On the verified path.
    assert_eq!(error_of_copy(&keygate, &pki, &[&below.der, issuing.ca()]), of_clean);
    let failed =
        r#"keygate_handshakes_total{result="bad_signature",resumed="false",service="test"}"#;
    keygate.wait_for_metric(failed, 3.0);
    for verdict in ["clean", "listed", "unchecked"] {
        let series = format!(
            "keygate_key_checks_total{{service=\"test\",stage=\"handshake\",verdict=\"{verdict}\"}}"
        );
        assert_eq!(keygate.metric(&series), 0.0, "{series}");
    }
    // The client with the key is rejected, and hers is the first line.
    let below = below.present_with(&[issuing.ca()]);
    rejects(&keygate, &below, &[], "access denied");
    keygate.wait_for("her line", |line| line["message"] == "client key rejected");
    assert_eq!(keygate.lines("client key rejected").len(), 1);
}

#[test]
fn a_copied_certificate_that_is_revoked_raises_no_alarm() {
    let (pki, origin) = (Pki::new(), Origin::start());
    let victim = pki.client("victim", Kind::P256);
    pki.crl("clients.crl", &[&victim], Duration::from_secs(3600));
    let text = configuration(&pki, &origin, &[&victim.spki], JUDGE_CHAIN);
    let keygate = text.client_auth("crls = [\"clients.crl\"]").start(&pki);
    let error = error_of_copy(&keygate, &pki, &[&victim.der]);
    assert!(error.contains("CertificateRevoked"), "{error}");
    keygate.wait_for("its line", |line| {
        line["message"] == "handshake failed" && line["result"] == "revoked"
    });
    assert!(keygate.lines("client key rejected").is_empty());
    let series =
        "keygate_key_checks_total{service=\"test\",stage=\"handshake\",verdict=\"listed\"}";
    assert_eq!(keygate.metric(series), 0.0);
}

#[test]
fn ten_certificates_are_accepted_and_eleven_are_not() {
    let (pki, origin) = (Pki::new(), Origin::start());
    let keygate = start(&pki, &origin, &[], JUDGE_CHAIN);
    let unrelated = Pki::named("Unrelated CA");
    let ten = pki.client("ten", Kind::P256).present_with(&[unrelated.ca(); 9]);
    let eleven = pki.client("eleven", Kind::P256).present_with(&[unrelated.ca(); 10]);
    admits(&keygate, &ten, &[]);
    rejects(&keygate, &eleven, &[], "certificate unknown");
    let line = keygate.wait_for("its line", |line| line["message"] == "handshake failed");
    assert_eq!(line["result"], "unsuitable");
    assert!(line["error"].as_str().unwrap().contains("at most 10"), "{line}");
}

fn dates(from: SystemTime, until: SystemTime) -> CertificateParams {
    let mut parameters = CertificateParams::default();
    parameters.not_before = from.into();
    parameters.not_after = until.into();
    parameters
}

const A_DAY: Duration = Duration::from_secs(86_400);
/// Time between the ends of two certificates. A connection that ends with the wrong one ends early.
const LATER: Duration = Duration::from_secs(6);

#[test]
fn a_trust_anchor_outside_its_validity_is_not_used_and_another_path_is() {
    let now = SystemTime::now();
    let (pki, origin) = (Pki::new(), Origin::start());
    let expired = Pki::with_parameters("Expired CA", dates(now - 30 * A_DAY, now - A_DAY));
    let future = Pki::with_parameters("Future CA", dates(now + A_DAY, now + 30 * A_DAY));
    let pem = |pki: &Pki| std::fs::read_to_string(pki.path("ca.pem")).unwrap();
    write(pki.path("all.pem"), pem(&expired) + &pem(&future) + &pem(&pki)).unwrap();
    let text =
        configuration(&pki, &origin, &[], JUDGE_CHAIN).client_auth("trust_anchors = \"all.pem\"");
    write(pki.path("keygate.toml"), text.text()).unwrap();
    let validated = keygate(&["validate", "--config", pki.path("keygate.toml").to_str().unwrap()]);
    let validated = output_text(&validated);
    assert!(validated.contains("all.pem: the CA CN=Expired CA expired at "), "{validated}");
    assert!(validated.contains("all.pem: the CA CN=Future CA is not valid before "), "{validated}");

    let keygate = text.start(&pki);
    for ca in ["Expired CA", "Future CA"] {
        keygate.wait_for("a warning", |line| {
            line["message"] == "trust anchor is not valid now, its clients are rejected"
                && line["problem"].as_str().unwrap().contains(ca)
        });
    }
    for ca in [&expired, &future] {
        rejects(&keygate, &ca.client("client", Kind::P256), &[], "certificate expired");
    }
    // One CA below both roots: the path to the valid root is found.
    let issuing = pki.subordinate("Issuing CA");
    let by_expired = expired.cross_sign(&issuing);
    let client = issuing.client("client", Kind::P256);
    let both = client.present_with(&[&by_expired, issuing.ca()]);
    admits(&keygate, &both, &[]);
    assert_eq!(origin.next().fields("client-cert-chain"), [chain_field(&[issuing.ca()])]);
    let one = issuing.client("one", Kind::P256).present_with(&[&by_expired]);
    rejects(&keygate, &one, &[], "certificate expired");

    let ended = (now - A_DAY).duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs();
    let series =
        "keygate_certificate_not_after_timestamp_seconds{role=\"trust_anchor\",service=\"test\"}";
    assert_eq!(keygate.metric(series), ended as f64);
    assert_eq!(keygate.status()["services"][0]["trust_anchor_not_after"], ended);
    let (_, page) = keygate.admin("/");
    assert!(page.contains("CA of clients"), "{page}");
}

#[test]
fn an_open_connection_ends_with_the_path_of_its_client() {
    let (pki, origin) = (Pki::new(), Origin::start());
    // Both are on a clock: nothing else shows that a certificate expires.
    let (first, (keygate, mut open)) = before(Duration::from_secs(6), |first| {
        let (past, last) = (first - A_DAY, first + LATER);
        let issuing = pki.subordinate_with("Brief issuing CA", dates(past, last));
        let anchor = Pki::with_parameters("Brief root", dates(past, last));
        let unrelated = Pki::with_parameters("Unrelated CA", dates(past, first));
        let pem = |pki: &Pki| std::fs::read_to_string(pki.path("ca.pem")).unwrap();
        write(pki.path("all.pem"), pem(&anchor) + &pem(&pki)).unwrap();
        let text = configuration(&pki, &origin, &[], "judge = \"leaf\"");
        let keygate = text.client_auth("trust_anchors = \"all.pem\"").start(&pki);
        let of_intermediate = issuing.client("of-intermediate", Kind::P256);
        let of_anchor = anchor.client("of-anchor", Kind::P256);
        let chains = [
            (
                vec![of_intermediate.der.clone(), unrelated.ca().clone(), issuing.ca().clone()],
                &of_intermediate,
            ),
            (vec![of_anchor.der.clone(), unrelated.ca().clone()], &of_anchor),
        ];
        let open = chains.map(|(chain, party)| {
            let config = config_with_chain(&pki, &rustls::version::TLS13, chain, party);
            let mut client = Client::with(config, keygate.address());
            client.send(GET);
            assert!(client.head().starts_with("HTTP/1.1 200 "));
            client.exactly(6);
            client
        });
        (keygate, open)
    });
    for client in &mut open {
        assert_eq!(client.rest(), "");
        // Times in certificates are whole seconds.
        let last = first + LATER - Duration::from_secs(1);
        assert!(SystemTime::now() >= last, "not before its time");
    }
    let closed = "client certificate is no longer accepted, closing connection";
    keygate.wait_for_lines("both lines", 2, |line| {
        line["message"] == closed && line["result"] == "expired"
    });
}

#[test]
fn a_connection_whose_path_has_expired_goes_on_over_another_path_that_is_judged() {
    let (pki, origin) = (Pki::new(), Origin::start());
    let issuing = pki.subordinate("Issuing CA");
    let client = issuing.client("client", Kind::P256);
    let other = Pki::named("Other root");
    let listed = other.spki();
    let text = configuration(&pki, &origin, &[&listed], JUDGE_CHAIN);
    let text = text.client_auth("trust_anchors = \"all.pem\"");
    let (first, (keygate, mut open)) = before(Duration::from_secs(8), |first| {
        let brief = Pki::with_parameters("Brief root", dates(first - A_DAY, first));
        let [by_brief, by_other] = [&brief, &other].map(|root| root.cross_sign(&issuing));
        let pem = |pki: &Pki| std::fs::read_to_string(pki.path("ca.pem")).unwrap();
        write(pki.path("all.pem"), pem(&brief) + &pem(&other)).unwrap();
        let chain = vec![client.der.clone(), by_brief, by_other];
        let keygate = text.start(&pki);
        let config = config_with_chain(&pki, &rustls::version::TLS13, chain, &client);
        let mut open = Client::with(config, keygate.address());
        open.send(GET);
        assert!(open.head().starts_with("HTTP/1.1 200 "), "the first path is clean");
        open.exactly(6);
        (keygate, open)
    });
    assert_eq!(open.rest(), "");
    assert!(SystemTime::now() + Duration::from_secs(1) >= first, "not before its time");
    keygate.wait_for("its line", |line| {
        line["message"] == "client key rejected, closing connection"
            && line["found_subject"] == "CN=Other root"
    });
}

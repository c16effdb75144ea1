//! Handshakes with the large certificates of ML-DSA, at the limits of TLS messages.
//!
//! Guards: `MAX_TICKET` in `crates/core/src/tls/sessions.rs`, `MAX_CERTIFICATES` in
//! `crates/core/src/tls/client_verifier.rs`, `HandshakePayloadTooLarge` in
//! `crates/core/src/tls/handshake_result.rs`. The maximum of a message is in rustls.

use std::fs::write;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Arc;

use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, SignatureAlgorithm,
};
use rustls::pki_types::CertificateDer;
use rustls::{ClientConnection, HandshakeKind, StreamOwned};

use crate::support::client::config_with_chain;
use crate::support::keygate::Keygate;
use crate::support::origin::Origin;
use crate::support::pki::{Party, Pki};
use crate::support::proxy::{Configuration, Configure};
use crate::support::{TIMEOUT, write_filter};

/// A root of ML-DSA in `root.pem`, and a client below it with a chain of `count` certificates of the
/// same algorithm, leaf first, without the root.
fn chain(
    pki: &Pki,
    algorithm: &'static SignatureAlgorithm,
    count: usize,
) -> (Party, Vec<CertificateDer<'static>>) {
    let ca = |number: usize| {
        let mut parameters = CertificateParams::default();
        parameters.distinguished_name.push(DnType::CommonName, format!("CA {number}"));
        parameters.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        parameters.key_usages = vec![KeyUsagePurpose::KeyCertSign];
        (parameters, KeyPair::generate_for(algorithm).unwrap())
    };
    let (parameters, key) = ca(0);
    write(pki.path("root.pem"), parameters.self_signed(&key).unwrap().pem()).unwrap();
    let mut issuer = Issuer::new(parameters, key);
    let mut certificates = Vec::new();
    for number in 1..count {
        let (parameters, key) = ca(number);
        let certificate = parameters.signed_by(&key, &issuer).unwrap();
        certificates.insert(0, certificate.der().clone());
        issuer = Issuer::new(parameters, key);
    }
    let mut parameters = CertificateParams::default();
    parameters.distinguished_name.push(DnType::CommonName, "client");
    parameters.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
    let key = KeyPair::generate_for(algorithm).unwrap();
    let der = parameters.signed_by(&key, &issuer).unwrap().der().clone();
    certificates.insert(0, der.clone());
    let (certificate, private_key) = (pki.path("client.pem"), pki.path("client.key"));
    let key = key.serialize_der();
    let party =
        Party { name: "client".to_owned(), certificate, private_key, der, spki: Vec::new(), key };
    (party, certificates)
}

fn start(pki: &Pki, origin: &Origin) -> Keygate {
    write_filter(&pki.path("lost.pkbf"), &[]);
    let configuration = Configuration::new(origin.address());
    configuration.client_auth("trust_anchors = \"root.pem\"").start(pki)
}

/// The kinds of two handshakes, one after the other, or the first error.
fn connect(
    pki: &Pki,
    keygate: &Keygate,
    party: &Party,
    chain: Vec<CertificateDer<'static>>,
) -> Result<[HandshakeKind; 2], String> {
    let config = Arc::new(config_with_chain(pki, &rustls::version::TLS13, chain, party));
    let mut kinds = Vec::new();
    for _ in 0..2 {
        let name = "localhost".try_into().unwrap();
        let connection = ClientConnection::new(Arc::clone(&config), name).unwrap();
        let tcp = TcpStream::connect(keygate.address()).unwrap();
        tcp.set_read_timeout(Some(TIMEOUT)).unwrap();
        let mut tls = StreamOwned::new(connection, tcp);
        let request = b"GET / HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n";
        let mut response = String::new();
        let sent = tls.write_all(request).and_then(|()| tls.read_to_string(&mut response));
        sent.map_err(|error| error.to_string())?;
        assert!(response.ends_with("hello\n"), "{response}");
        kinds.push(tls.conn.handshake_kind().unwrap());
    }
    Ok(kinds.try_into().unwrap())
}

/// A ticket has all certificates of the client and must fit into a ClientHello.
#[test]
fn a_chain_of_three_ml_dsa_certificates_is_accepted_without_a_ticket() {
    let (pki, origin) = (Pki::new(), Origin::start());
    for (count, second) in [(2, HandshakeKind::Resumed), (3, HandshakeKind::Full)] {
        let (party, certificates) = chain(&pki, &rcgen::PKCS_ML_DSA_65, count);
        assert!(certificates.iter().all(|it| it.len() > 5 << 10));
        let keygate = start(&pki, &origin);
        let kinds = connect(&pki, &keygate, &party, certificates).unwrap();
        assert_eq!(kinds, [HandshakeKind::Full, second], "{count}");
    }
}

#[test]
fn ten_ml_dsa_certificates_are_accepted_up_to_the_maximum_of_a_message() {
    let (pki, origin) = (Pki::new(), Origin::start());
    // The path has six intermediates at most, and the rest is beside the path.
    let (party, mut certificates) = chain(&pki, &rcgen::PKCS_ML_DSA_65, 4);
    let others: Vec<_> = certificates.iter().cycle().take(6).cloned().collect();
    certificates.extend(others);
    assert_eq!(certificates.len(), 10);
    assert!(certificates.iter().map(|it| it.len()).sum::<usize>() > 50 << 10);
    let keygate = start(&pki, &origin);
    connect(&pki, &keygate, &party, certificates.clone()).unwrap();
    certificates.push(certificates[9].clone());
    let error = connect(&pki, &keygate, &party, certificates).unwrap_err();
    assert!(error.contains("CertificateUnknown"), "{error}");
    let line = keygate.wait_for("the line", |line| line["result"] == "unsuitable");
    assert!(line["error"].as_str().unwrap().contains("11 certificates"), "{line}");
}

#[test]
fn a_chain_above_the_maximum_of_a_message_ends_the_connection_and_is_logged() {
    let (pki, origin) = (Pki::new(), Origin::start());
    let (party, certificates) = chain(&pki, &rcgen::PKCS_ML_DSA_87, 2);
    let certificates: Vec<_> = certificates.iter().cycle().take(10).cloned().collect();
    assert!(certificates.iter().map(|it| it.len()).sum::<usize>() > 64 << 10);
    let keygate = start(&pki, &origin);
    let error = connect(&pki, &keygate, &party, certificates).unwrap_err();
    // rustls queues no alert for this error.
    assert!(error.contains("without sending TLS close_notify"), "{error}");
    let line = keygate.wait_for("the line", |line| line["message"] == "handshake failed");
    assert_eq!(line["result"], "unsupported", "{line}");
    assert!(line["error"].as_str().unwrap().contains("payload too large"), "{line}");
}

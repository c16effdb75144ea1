//! A service with an alternative certificate: its selection, its reload, its expiry, and its key as
//! an own key.
//!
//! Guards: `OfferedCertificates` in `crates/core/src/tls/server_config.rs`,
//! `CredentialUnit::AlternativeServer` in `src/sources/key_pair.rs`,
//! `CertificateRole::AlternativeServer` in `src/sources/service_credentials.rs`.

use std::fs::{copy, rename, write};
use std::io::Write;
use std::net::TcpStream;
use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::aws_lc_rs::default_provider;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{
    ClientConfig, ClientConnection, DigitallySignedStruct, SignatureScheme, StreamOwned,
    SupportedProtocolVersion,
};

use super::ml_dsa::openssl_client;
use crate::support::client::Presents;
use crate::support::keygate::keygate;
use crate::support::pki::{Kind, Party};
use crate::support::proxy::{Configure, Proxy, Running};
use crate::support::{TIMEOUT, output_text, write_filter};

/// Accepts every certificate, and offers these signature schemes.
#[derive(Debug)]
struct Schemes(Vec<SignatureScheme>);

impl ServerCertVerifier for Schemes {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn verify_tls13_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.clone()
    }
}

/// The certificate that the service presents to a client with these schemes, or the error.
fn presented(
    proxy: &Running,
    version: &'static SupportedProtocolVersion,
    schemes: &[SignatureScheme],
) -> Result<CertificateDer<'static>, String> {
    let config = ClientConfig::builder_with_provider(Arc::new(default_provider()))
        .with_protocol_versions(&[version])
        .unwrap()
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(Schemes(schemes.to_vec())))
        .with_client_cert_resolver(Presents::new(&proxy.good, &proxy.good));
    let name = "localhost".try_into().unwrap();
    let connection = ClientConnection::new(Arc::new(config), name).unwrap();
    let tcp = TcpStream::connect(proxy.address()).unwrap();
    tcp.set_read_timeout(Some(TIMEOUT)).unwrap();
    let mut tls = StreamOwned::new(connection, tcp);
    tls.flush().map_err(|error| error.to_string())?;
    while tls.conn.is_handshaking() {
        tls.conn.complete_io(&mut tls.sock).map_err(|error| error.to_string())?;
    }
    Ok(tls.conn.peer_certificates().unwrap()[0].clone().into_owned())
}

const ALTERNATIVE: &str =
    "alternative = { certificate = \"second.pem\", private_key = \"second.key\" }";

/// A proxy whose service has certificates of these kinds.
fn start(first: Kind, second: Kind) -> (Running, [Party; 2]) {
    let proxy = Proxy::new();
    let pair = [("server", first), ("second", second)]
        .map(|(name, kind)| proxy.pki.server_of_kind(name, kind));
    (proxy.add("services.tls", ALTERNATIVE).start(), pair)
}

#[test]
fn a_client_gets_the_first_certificate_whose_signatures_it_verifies() {
    use SignatureScheme as Scheme;
    let (tls12, tls13) = (&rustls::version::TLS12, &rustls::version::TLS13);
    let (ecdsa, rsa) = (Scheme::ECDSA_NISTP256_SHA256, Scheme::RSA_PSS_SHA256);
    for (kinds, cases) in [
        (
            (Kind::P256, Kind::Rsa2048),
            &[
                (tls13, &[rsa, ecdsa][..], Some(0)),
                (tls13, &[rsa], Some(1)),
                (tls12, &[ecdsa, rsa], Some(0)),
                (tls12, &[rsa], Some(1)),
                (tls13, &[Scheme::ED25519], None),
            ][..],
        ),
        (
            (Kind::MlDsa65, Kind::P256),
            &[
                (tls13, &[ecdsa, Scheme::ML_DSA_65], Some(0)),
                (tls13, &[ecdsa, Scheme::ML_DSA_87], Some(1)),
                (tls12, &[ecdsa], Some(1)),
            ],
        ),
    ] {
        let (proxy, pair) = start(kinds.0, kinds.1);
        for (version, schemes, expected) in cases {
            let found = presented(&proxy, version, schemes);
            match expected {
                Some(index) => {
                    let found = found.unwrap_or_else(|error| panic!("{schemes:?}: {error}"));
                    assert!(found == pair[*index].der, "{kinds:?} {schemes:?}");
                }
                None => assert!(found.unwrap_err().contains("HandshakeFailure")),
            }
        }
    }
}

#[test]
fn openssl_clients_get_the_certificate_for_their_signature_schemes() {
    let (proxy, _) = start(Kind::MlDsa65, Kind::P256);
    for (schemes, expected) in [
        ("mldsa65:ecdsa_secp256r1_sha256", "MLDSA65PublicKey"),
        ("ecdsa_secp256r1_sha256", "ECPublicKey"),
    ] {
        let settings = format!("SignatureAlgorithms = {schemes}");
        let Some(output) = openssl_client(&proxy, &proxy.pki, &proxy.good, &settings) else {
            return;
        };
        let output = output_text(&output);
        assert!(output.contains(&format!("\n{expected}\n")), "{schemes}: {output}");
    }
}

#[test]
fn each_certificate_is_replaced_by_itself_and_shown_with_its_expiry() {
    let (proxy, pair) = start(Kind::P256, Kind::Rsa2048);
    let tls13 = &rustls::version::TLS13;
    let [first, second] = [SignatureScheme::ECDSA_NISTP256_SHA256, SignatureScheme::RSA_PSS_SHA256]
        .map(|scheme| move |proxy: &Running| presented(proxy, tls13, &[scheme]).unwrap());
    let status = proxy.status();
    let kinds: Vec<_> = status["expiries"].as_array().unwrap().iter().collect();
    for (kind, file) in [("certificate", "server.pem"), ("alternative certificate", "second.pem")] {
        let of_kind = kinds.iter().find(|it| it["kind"] == kind).unwrap();
        assert!(of_kind["path"].as_str().unwrap().ends_with(file), "{of_kind}");
    }
    let expiry = "keygate_certificate_not_after_timestamp_seconds";
    assert!(
        proxy.metric(&format!("{expiry}{{role=\"alternative_server\",service=\"test\"}}")) > 0.0
    );

    // A broken alternative stays out, and does not keep the other one from being replaced.
    write(proxy.pki.path("broken"), "none").unwrap();
    rename(proxy.pki.path("broken"), proxy.pki.path("second.pem")).unwrap();
    let line = proxy.wait_for("the rejection", |line| line["files"] == "alternative_server");
    assert_eq!(line["reason"], "content", "{line}");
    let renewed = proxy.pki.server_of_kind("renewed", Kind::P256);
    copy(&renewed.private_key, proxy.pki.path("server.key")).unwrap();
    copy(&renewed.certificate, proxy.pki.path("server.pem")).unwrap();
    proxy.wait_for_generation(2);
    assert!(first(&proxy) == renewed.der);
    assert!(second(&proxy) == pair[1].der);
    let renewed_second = proxy.pki.server_of_kind("second", Kind::Rsa2048);
    proxy.wait_for_generation(3);
    assert!(first(&proxy) == renewed.der);
    assert!(second(&proxy) == renewed_second.der);
}

/// A client that offers the schemes of the second key offers the schemes of the first one as well.
#[test]
fn an_alternative_that_no_client_gets_is_a_warning() {
    for (first, second, is_warned) in [
        (Kind::P256, Kind::P256, true),
        (Kind::P256, Kind::Rsa2048, false),
        (Kind::Rsa2048, Kind::P256, true),
        (Kind::P256, Kind::MlDsa65, true),
        (Kind::MlDsa65, Kind::P256, false),
    ] {
        let (proxy, _) = start(first, second);
        let attention = proxy.status()["attention"].to_string();
        assert_eq!(attention.contains("so it is hardly ever sent"), is_warned, "{attention}");
    }
}

#[test]
fn settings_for_tls13_alone_are_a_warning_with_tls12() {
    const WARNING: &str = "permits TLS 1.3 alone";
    for (kind, groups, version, is_warned) in [
        (Kind::MlDsa65, "[]", "1.2", true),
        (Kind::MlDsa65, "[]", "1.3", false),
        (Kind::P256, "[\"X25519MLKEM768\"]", "1.2", true),
        (Kind::P256, "[\"X25519MLKEM768\"]", "1.3", false),
        (Kind::P256, "[\"X25519MLKEM768\", \"x25519\"]", "1.2", false),
    ] {
        let proxy = Proxy::new();
        proxy.pki.server_of_kind("server", kind);
        write_filter(&proxy.pki.path("lost.pkbf"), &[]);
        let tls = format!("min_version = \"{version}\"\nkey_exchange = {groups}");
        let text = proxy.configuration.add("services.tls", &tls).text();
        let file = proxy.pki.path("keygate.toml");
        write(&file, text).unwrap();
        let output = output_text(&keygate(&["validate", "--config", file.to_str().unwrap()]));
        assert_eq!(output.contains(WARNING), is_warned, "{groups} {version}: {output}");
    }
}

#[test]
fn a_compromised_alternative_key_stops_the_start() {
    let proxy = Proxy::new();
    proxy.pki.server("server");
    let second = proxy.pki.server_of_kind("second", Kind::MlDsa65);
    write_filter(&proxy.pki.path("lost.pkbf"), &[&second.spki]);
    let text = proxy.configuration.add("services.tls", ALTERNATIVE).text();
    let file = proxy.pki.path("keygate.toml");
    write(&file, text).unwrap();
    let output = output_text(&keygate(&["validate", "--config", file.to_str().unwrap()]));
    assert!(output.contains("the key of its alternative server"), "{output}");
}

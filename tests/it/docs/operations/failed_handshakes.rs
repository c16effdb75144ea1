//! Clients that cannot connect: every result, log line, alert and command on the page.

use std::collections::BTreeSet;
use std::fs::{read, read_to_string, write};
use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use keygate_core::tls::HandshakeResult;
use rcgen::CertificateParams;
use rustls::{ClientConnection, StreamOwned};

use super::{A_DAY, Scene, code, message, section, table, text};
use crate::support::client::{Presents, config_of};
use crate::support::keygate::Keygate;
use crate::support::pki::{Kind, Party, Pki};
use crate::support::{TIMEOUT, blocks, output_text, system, wait_until};

/// The output of OpenSSL as a client with an RSA key of 1,024 bits.
fn short_rsa(scene: &Scene, keygate: &Keygate) -> String {
    let path = |name: &str| scene.pki.path(name).to_str().unwrap().to_owned();
    let (key, public, certificate) = (path("short-rsa.key"), path("short.spki"), path("short.pem"));
    let bits = "rsa_keygen_bits:1024";
    system("openssl", &["genpkey", "-algorithm", "RSA", "-pkeyopt", bits, "-out", &key]);
    let made = ["pkey", "-in", &key, "-pubout", "-outform", "DER", "-out", &public];
    system("openssl", &made);
    let party = scene.pki.client_with_spki("short", &read(&public).unwrap(), &[]);
    write(&certificate, &party.der).unwrap();
    system("openssl", &["x509", "-inform", "DER", "-in", &certificate, "-out", &certificate]);
    let address = keygate.address().to_string();
    let mut arguments =
        vec!["s_client", "-ign_eof", "-connect", &address, "-servername", "localhost"];
    arguments.extend(["-cipher", "ALL:@SECLEVEL=0", "-cert", &certificate, "-key", &key]);
    let mut openssl = Command::new("openssl");
    openssl.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut openssl = openssl.spawn().unwrap();
    let _ = openssl.stdin.take().unwrap().write_all(b"hello"); // openssl may have exited
    output_text(&openssl.wait_with_output().unwrap())
}

/// A handshake that fails, with its metric, log line and alert.
struct Case {
    result: &'static str,
    /// Error in the log line, from the page or from rustls.
    error: &'static str,
    /// The alert that the client gets.
    alert: &'static str,
    /// More arguments of curl; `--no-ca` makes it trust no server.
    arguments: &'static [&'static str],
}

/// A proxy whose clients fail, and everything that they need for it.
struct Failures {
    scene: Scene,
    keygate: Keygate,
    /// A trusted CA without a revocation list.
    other: Pki,
    revoked: Party,
}

impl Failures {
    fn new() -> Self {
        Self::within("10m")
    }

    /// Handshakes that take longer have failed.
    fn within(handshake_timeout: &str) -> Self {
        let (scene, other) = (Scene::new(), Pki::named("Another CA"));
        let anchors = read_to_string(scene.pki.path("ca.pem")).unwrap()
            + &read_to_string(other.path("ca.pem")).unwrap();
        write(scene.pki.path("clients-ca.pem"), anchors).unwrap();
        let revoked = scene.pki.client("revoked", Kind::P256);
        scene.pki.crl("clients.crl.pem", &[&revoked], A_DAY);
        let limits = format!("limits = {{ handshake_timeout = \"{handshake_timeout}\" }}");
        let keygate = scene.keygate("", &limits);
        Self { scene, keygate, other, revoked }
    }

    /// Handshakes with this result so far.
    fn count(&self, result: &str) -> f64 {
        let result = format!("result=\"{result}\"");
        let metrics = self.keygate.metrics();
        let counters = metrics.iter().filter(|(name, _)| {
            name.starts_with("keygate_handshakes_total") && name.contains(&result)
        });
        counters.map(|(_, value)| value).sum()
    }

    fn wait_for_count(&self, result: &str, before: f64) {
        wait_until(&format!("{result} is counted"), || self.count(result) > before);
    }

    /// Connects with curl and compares alert, log line and metric with the case.
    fn check(&self, client: Option<&Party>, case: &Case) {
        let before = self.count(case.result);
        let seen = self.keygate.lines("connection failed").len();
        let ca = self.scene.pki.path("server-ca.pem");
        let mut arguments = vec!["--silent", "--show-error", "--max-time", "100"];
        let to = format!("::{}", self.keygate.address());
        arguments.extend(["--connect-to", &to]);
        if !case.arguments.contains(&"--no-ca") {
            arguments.extend(["--cacert", ca.to_str().unwrap()]);
        }
        if let Some(client) = client {
            arguments.extend(["--cert", client.certificate.to_str().unwrap()]);
            arguments.extend(["--key", client.private_key.to_str().unwrap()]);
        }
        arguments.extend(case.arguments.iter().filter(|argument| **argument != "--no-ca"));
        if !case.arguments.iter().any(|argument| argument.contains("://")) {
            arguments.push("https://orders.example.com/");
        }
        let output = system("curl", &arguments);
        let (name, text) = (case.result, output_text(&output));
        assert!(!output.status.success(), "{name}: {text}");
        assert!(text.to_lowercase().contains(case.alert), "{name}: {text}");
        let is_failure = message("connection failed");
        let lines = self.keygate.wait_for_lines("a failed handshake", seen + 1, is_failure);
        let line = lines.last().unwrap();
        assert_eq!(line["result"], case.result, "{line}");
        let error = line["error"].as_str().unwrap_or_default();
        assert!(error.contains(case.error), "{name}: {line}");
        self.wait_for_count(case.result, before);
    }
}

fn case(result: &'static str, error: &'static str, alert: &'static str) -> Case {
    Case { result, error, alert, arguments: &[] }
}

#[test]
fn every_handshake_result_is_on_the_page() {
    let listed: BTreeSet<_> =
        table("## A client cannot connect").iter().map(|row| code(row[0])[0]).collect();
    let all = HandshakeResult::ALL.iter().map(|result| result.as_str());
    assert_eq!(listed, all.filter(|result| *result != "ok").collect());
}

#[test]
fn every_failed_handshake_is_counted_logged_and_signalled_as_described() {
    let failures = Failures::new();
    let pki = &failures.scene.pki;
    let mut dates = CertificateParams::default();
    dates.not_before = (SystemTime::now() - 2 * A_DAY).into();
    dates.not_after = (SystemTime::now() - A_DAY).into();
    let expired = pki.client_with("expired", Kind::P256, dates);
    let version_1 = pki.client_of_version_1("version-1");
    let unlisted = failures.other.client("unlisted", Kind::P256);
    let unknown = Pki::named("Unknown CA");
    let stranger = unknown.client("stranger", Kind::P256);
    let server = pki.server("other-server");
    let (good, lost) = (&failures.scene.good, &failures.scene.billing);
    assert!(
        section("## A client cannot connect").contains("`no revocation list covers the issuer`")
    );
    for (client, case) in [
        (None, case("no_certificate", "no certificates", "certificate required")),
        (Some(&stranger), case("unknown_issuer", "no trust anchor issued", "unknown ca")),
        (Some(&expired), case("expired", "the certificate expired at 20", "certificate expired")),
        (Some(&failures.revoked), case("revoked", "is revoked", "certificate revoked")),
        (Some(&unlisted), case("revoked", "no revocation list covers the issuer", "alert")),
        (Some(lost), case("compromised", "", "access denied")),
        (Some(&version_1), case("unsuitable", "not of X.509 version 3", "certificate unknown")),
        (
            Some(&server),
            case(
                "unsuitable",
                "the extended key usage of the certificate has serverAuth only",
                "unsupported certificate",
            ),
        ),
        (Some(good), Case { arguments: &OLD_TLS, ..case("unsupported", "", "handshake failure") }),
        (
            Some(good),
            Case {
                arguments: &OTHER_NAME,
                ..case("unknown_name", "no service", "unrecognized name")
            },
        ),
        (Some(good), Case { arguments: &PLAIN_HTTP, ..case("plain_http", "", "error: 400") }),
        (
            Some(good),
            Case { arguments: &["mqtt://orders.example.com/"], ..case("not_tls", "", "") },
        ),
        (
            Some(good),
            Case { arguments: &["--no-ca"], ..case("service_rejected", "", "certificate problem") },
        ),
    ] {
        failures.check(client, &case);
    }
}

const OLD_TLS: [&str; 5] = ["--tls-max", "1.1", "--tlsv1.0", "--ciphers", "ALL:@SECLEVEL=0"];
const PLAIN_HTTP: [&str; 2] = ["--fail", "http://orders.example.com/"];
const OTHER_NAME: [&str; 2] = ["--insecure", "https://other.example.com/"];

#[test]
fn an_expired_revocation_list_is_logged_as_described() {
    let mut failures = Failures::new();
    let (pki, origin) = (&failures.scene.pki, &failures.scene.origin);
    pki.crl("clients.crl.pem", &[], Duration::ZERO);
    let strict = text(origin, "", "");
    let lenient = strict.replace("crls = [", "expired_crl = \"accept\", crls = [");
    assert_ne!(lenient, strict);
    failures.keygate = Keygate::configured(pki, &lenient);
    // The list in use has expired, and the configuration rejects it now.
    failures.scene.replace("keygate.toml", &strict);
    failures.keygate.wait_for_generation(2);
    let error = "certificate revocation list expired";
    assert!(section("## A client cannot connect").contains(&format!("`{error}`")));
    failures.check(Some(&failures.scene.good), &case("revoked", error, "alert"));
}

#[test]
fn a_certificate_with_another_key_is_a_bad_signature() {
    let failures = Failures::new();
    let mut config = config_of(&failures.scene.pki, rustls::ALL_VERSIONS, None);
    config.client_auth_cert_resolver = Presents::new(&failures.scene.good, &failures.scene.shop);
    let name = "localhost".try_into().unwrap();
    let connection = ClientConnection::new(Arc::new(config), name).unwrap();
    let tcp = TcpStream::connect(failures.keygate.address()).unwrap();
    let mut tls = StreamOwned::new(connection, tcp);
    let _ = tls.write_all(b"GET / HTTP/1.1\r\n\r\n"); // fails if the client is already rejected
    let _ = tls.read(&mut [0; 64]);
    failures.wait_for_count("bad_signature", 0.0);
    let line = failures.keygate.wait_for("the line", message("handshake failed"));
    assert_eq!(line["error"], "the client did not prove possession of its key", "{line}");
}

/// The CA has the name of the trust anchor and another key.
#[test]
fn a_certificate_of_a_forged_ca_is_of_an_unknown_issuer() {
    let failures = Failures::new();
    let namesake = Pki::named("Another CA");
    let forged = namesake.client("forged", Kind::P256);
    failures.check(Some(&forged), &case("unknown_issuer", "no trust anchor issued", "unknown ca"));
    assert_eq!(failures.count("bad_signature"), 0.0);
}

/// curl and rustls do not even start a handshake with such a key.
#[test]
fn a_key_that_is_too_short_is_unsuitable() {
    let failures = Failures::new();
    let text = short_rsa(&failures.scene, &failures.keygate);
    assert!(text.contains("certificate unknown"), "{text}");
    failures.wait_for_count("unsuitable", 0.0);
    assert_eq!(failures.count("bad_signature"), 0.0);
}

#[test]
fn a_client_that_sends_nothing_is_a_timeout() {
    let failures = Failures::within("1s");
    let mut silent = TcpStream::connect(failures.keygate.address()).unwrap();
    silent.set_read_timeout(Some(TIMEOUT)).unwrap();
    match silent.read(&mut [0; 64]) {
        Ok(read) => assert_eq!(read, 0),
        Err(error) => assert_eq!(error.kind(), ErrorKind::ConnectionReset),
    }
    failures.wait_for_count("timeout", 0.0);
}

#[test]
fn the_commands_about_clients_that_cannot_connect_work_as_described() {
    let failures = Failures::new();
    let unknown = Pki::named("Unknown CA");
    let stranger = unknown.client("stranger", Kind::P256);
    failures
        .check(Some(&stranger), &case("unknown_issuer", "no trust anchor issued", "unknown ca"));
    let page = section("## A client cannot connect");
    let [counts, verbose, checks]: [String; 3] = blocks(page, "sh").try_into().unwrap();
    let shown = failures.scene.run(&counts, &failures.keygate);
    assert!(shown.contains("result=\"unknown_issuer\"") && !shown.contains("} 0\n"), "{shown}");
    let shown = failures.scene.run(&verbose, &failures.keygate);
    assert!(shown.contains("hello") && shown.contains("TLSv1.3"), "{shown}");
    let shown = failures.scene.run(&checks, &failures.keygate);
    assert!(shown.contains("clean ") && shown.contains("client.pem: OK"), "{shown}");
}

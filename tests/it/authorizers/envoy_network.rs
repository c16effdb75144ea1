//! Envoy's network filter with keygate as its authorizer, with the files of
//! `deploy/authorizer/envoy-network`.

use std::io::{ErrorKind, Write};
use std::net::TcpListener;
use std::process::{Command, Stdio};

use rcgen::{CertificateParams, CustomExtension};
use rustls::version::{TLS12, TLS13};

use crate::support::authorizer::{Authorizer, RunningAuthorizer};
use crate::support::client::{Client, config_of};
use crate::support::envoy::{Envoy, GET};
use crate::support::origin::Origin;
use crate::support::pki::{Kind, Party};
use crate::support::proxy::Configure;
use crate::support::write_revision;

/// An authorizer whose upstream closes each connection after its response, as Envoy relays bytes.
pub(super) fn authorizer() -> Authorizer {
    let mut authorizer = Authorizer::of("envoy-network");
    authorizer.origin = Origin::responding(|_, tcp| {
        tcp.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 6\r\n\r\nhello\n")?;
        Err(ErrorKind::ConnectionAborted.into())
    });
    authorizer
}

impl RunningAuthorizer {
    pub(super) fn network_envoy(&self, change: impl FnOnce(String) -> String) -> Option<Envoy> {
        Envoy::start("envoy-network", self.pki.directory(), self.origin.address(), change)
    }

    /// The output of `openssl s_client` as `client`, and of the upstream.
    fn openssl(&self, envoy: &Envoy, client: &Party, arguments: &[&str]) -> String {
        let mut openssl = Command::new("openssl")
            .args(["s_client", "-ign_eof", "-servername", "localhost", "-connect"])
            .arg(envoy.address.to_string())
            .arg("-CAfile")
            .arg(self.pki.path("ca.pem"))
            .arg("-cert")
            .arg(&client.certificate)
            .arg("-key")
            .arg(&client.private_key)
            .args(arguments)
            .current_dir(self.pki.directory())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let _ = openssl.stdin.take().unwrap().write_all(GET.as_bytes()); // it may have ended
        let output = openssl.wait_with_output().unwrap();
        String::from_utf8_lossy(&output.stdout).into_owned()
            + &String::from_utf8_lossy(&output.stderr)
    }
}

#[test]
fn rustls_reads_the_alert_and_the_upstream_sees_no_connection() {
    let authorizer = Authorizer::of("envoy-network").start();
    let upstream = TcpListener::bind("127.0.0.1:0").unwrap();
    upstream.set_nonblocking(true).unwrap();
    let address = upstream.local_addr().unwrap();
    let envoy = Envoy::start("envoy-network", authorizer.pki.directory(), address, |text| text);
    let Some(envoy) = envoy else { return };
    for version in [&TLS12, &TLS13] {
        let config = config_of(&authorizer.pki, &[version], Some(&authorizer.lost));
        for _ in 0..2 {
            let mut client = Client::with(config.clone(), envoy.address);
            client.send(GET);
            let error = client.read_to_end().unwrap_err().to_string();
            assert!(error.contains("AccessDenied"), "{error}");
        }
    }
    assert_eq!(upstream.accept().unwrap_err().kind(), ErrorKind::WouldBlock);
    let line = authorizer.wait_for("the client", |line| line["message"] == "client key rejected");
    assert_eq!((&line["proof"], &line["sni"]), (&"host".into(), &"localhost".into()));
}

#[test]
fn openssl_reads_the_alert_in_full_and_resumed_sessions() {
    for version in ["-tls1_2", "-tls1_3"] {
        let authorizer = authorizer().start();
        let Some(envoy) = authorizer.network_envoy(|text| text) else { return };
        let (good, lost) = (&authorizer.good, &authorizer.lost);
        let first = authorizer.openssl(&envoy, good, &[version, "-sess_out", "session"]);
        assert!(first.contains("New, TLSv1.") && first.contains("hello"), "{first}");
        let again = authorizer.openssl(&envoy, good, &[version, "-sess_in", "session"]);
        assert!(again.contains("Reused, TLSv1.") && again.contains("hello"), "{again}");
        let alert = authorizer.openssl(&envoy, lost, &[version]);
        assert!(alert.contains("alert number 49") && !alert.contains("hello"), "{alert}");
        write_revision(&authorizer.pki.path("lost.pkbf"), &[&good.spki], 2);
        authorizer.keygate.wait_for_generation(2);
        let resumed = authorizer.openssl(&envoy, good, &[version, "-sess_in", "session"]);
        assert!(resumed.contains("Reused, TLSv1."), "{resumed}");
        assert!(resumed.contains("alert number 49") && !resumed.contains("hello"), "{resumed}");
    }
}

#[test]
fn clients_are_closed_while_keygate_is_stopped_unless_envoy_fails_open() {
    let open = "failure_mode_allow: true";
    for (is_open, expected) in [(false, ""), (true, "HTTP/1.1 200 OK")] {
        let mut authorizer = authorizer().start();
        let change = |text: String| {
            if is_open { text.replace("failure_mode_allow: false", open) } else { text }
        };
        let Some(envoy) = authorizer.network_envoy(change) else { return };
        let get = |authorizer: &RunningAuthorizer, version, client: &Party| {
            let config = config_of(&authorizer.pki, &[version], Some(client));
            let mut client = Client::with(config, envoy.address);
            client.send(GET);
            client.whatever_comes()
        };
        for version in [&TLS12, &TLS13] {
            let text = get(&authorizer, version, &authorizer.good);
            assert!(text.starts_with("HTTP/1.1 200 OK"), "{text}");
            assert_eq!(get(&authorizer, version, &authorizer.lost), "");
        }
        authorizer.keygate.signal("KILL");
        authorizer.keygate.ended();
        for version in [&TLS12, &TLS13] {
            let text = get(&authorizer, version, &authorizer.good);
            assert!(text.starts_with(expected) && (is_open || text.is_empty()), "{text}");
        }
    }
}

/// With `failure_mode_allow` an error of the authorizer admits every client. No input of a client
/// may cause an error.
#[test]
fn input_of_a_client_is_denied_although_errors_admit() {
    let authorizer = authorizer().set("authorizers.limits.max_question_size", "8KiB");
    // A URI with bytes that are not UTF-8.
    let names = [&[0x30, 9, 0x86, 7][..], b"a://\x80\xff\xc3"].concat();
    let mut parameters = CertificateParams::default();
    parameters.custom_extensions = vec![CustomExtension::from_oid_content(&[2, 5, 29, 17], names)];
    let broken = authorizer.pki.client_with("broken", Kind::P256, parameters);
    let large = authorizer.pki.large_client("large");
    let lost = &[&authorizer.lost.spki[..], &broken.spki];
    write_revision(&authorizer.pki.path("lost.pkbf"), lost, 1);
    let mut authorizer = authorizer.start();
    let open = |text: String| {
        let closed = "failure_mode_allow: false";
        assert!(text.contains(closed));
        text.replace(closed, "failure_mode_allow: true")
    };
    let Some(envoy) = authorizer.network_envoy(open) else { return };
    // More than Envoy keeps until the answer (16 KiB).
    let long =
        GET.replacen("\r\n\r\n", &format!("\r\nX-Large: {}\r\n\r\n", "a".repeat(60 << 10)), 1);
    let served = |authorizer: &RunningAuthorizer, version, client: &Party, head: &[u8]| {
        let config = config_of(&authorizer.pki, &[version], Some(client));
        let mut client = Client::with(config, envoy.address);
        let _ = client.try_send(head); // the end may come before its last bytes
        client.whatever_comes()
    };
    let invalid = b"GET / HTTP/1.1\r\nHost: localhost\r\nX-Text: \x80\xff\r\n\r\n";
    for version in [&TLS12, &TLS13] {
        for (client, head) in [
            (&large, GET.as_bytes()),
            (&broken, GET.as_bytes()),
            (&authorizer.lost, long.as_bytes()),
            (&authorizer.lost, &invalid[..]),
        ] {
            assert_eq!(served(&authorizer, version, client, head), "", "{version:?}");
        }
        for head in [GET.as_bytes(), long.as_bytes()] {
            let text = served(&authorizer, version, &authorizer.good, head);
            assert!(text.starts_with("HTTP/1.1 200 OK"), "{version:?}: {text}");
        }
    }
    let questions = |result: &str| {
        authorizer
            .metric(&format!("keygate_questions_total{{result=\"{result}\",service=\"edge\"}}"))
    };
    assert_eq!(["oversize", "denied", "allowed"].map(questions), [2.0, 6.0, 4.0]);
    // The hole: an error admits the listed client like the clean one.
    authorizer.signal("KILL");
    authorizer.keygate.ended();
    let text = served(&authorizer, &TLS13, &authorizer.lost, GET.as_bytes());
    assert!(text.starts_with("HTTP/1.1 200 OK"), "{text}");
}

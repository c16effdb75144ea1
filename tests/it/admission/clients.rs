//! Every kind of key, both versions of TLS and of HTTP, with third-party clients.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::{Command, Output, Stdio};
use std::sync::Arc;

use rustls::{AlertDescription, ClientConnection, StreamOwned};

use crate::support::client::config;
use crate::support::keygate::Keygate;
use crate::support::origin::Origin;
use crate::support::pki::{Kind, Party, Pki};
use crate::support::proxy::Configuration;
use crate::support::{TIMEOUT, output_text, write_filter};

struct Setting {
    pki: Pki,
    _origin: Origin,
    keygate: Keygate,
    good: Vec<Party>,
    lost: Vec<Party>,
}

/// A good and a lost client of every kind, before one proxy.
fn setting() -> Setting {
    let (pki, origin) = (Pki::new(), Origin::start());
    let clients = |name| {
        let each = Kind::ALL.map(|kind| pki.client(&format!("{name}-{kind:?}"), kind));
        Vec::from(each)
    };
    let (good, lost) = (clients("good"), clients("lost"));
    let spkis: Vec<&[u8]> = lost.iter().map(|client| client.spki.as_slice()).collect();
    write_filter(&pki.path("lost.pkbf"), &spkis);
    let keygate = Configuration::new(origin.address()).start(&pki);
    Setting { pki, _origin: origin, keygate, good, lost }
}

#[test]
fn curl_with_every_kind_of_key_is_served_or_rejected() {
    let setting = setting();
    let keygate = &setting.keygate;
    for tls in [["--tlsv1.3", "--tls-max", "1.3"], ["--tlsv1.2", "--tls-max", "1.2"]] {
        for (http, version) in [("--http1.1", "1.1"), ("--http2", "2")] {
            let arguments = [&tls[..], &[http, "-w", "%{http_version}"]].concat();
            for client in &setting.good {
                let served = keygate.curl(client, &arguments);
                let expected = format!("hello\n{version}");
                let context = || format!("{} {arguments:?}: {}", client.name, output_text(&served));
                assert_eq!(String::from_utf8_lossy(&served.stdout), expected, "{}", context());
            }
            for client in &setting.lost {
                let refused = keygate.curl(client, &arguments);
                let output_text = output_text(&refused);
                assert!(!refused.status.success(), "{} was served: {output_text}", client.name);
                assert!(
                    output_text.contains("access denied"),
                    "{} {arguments:?}: {output_text}",
                    client.name
                );
            }
        }
    }
    for verdict in ["clean", "probable"] {
        let series = format!(
            "keygate_key_checks_total{{service=\"test\",stage=\"handshake\",verdict=\"{verdict}\"}}"
        );
        keygate.wait_for_metric(&series, 24.0); // each connection counts once
    }
}

/// One GET by `openssl s_client`, which ends with the connection.
fn s_client(setting: &Setting, client: &Party, version: &str) -> Output {
    let mut openssl = Command::new("openssl")
        .args(["s_client", "-ign_eof", version, "-connect"])
        .arg(setting.keygate.address().to_string())
        .arg("-CAfile")
        .arg(setting.pki.path("ca.pem"))
        .arg("-cert")
        .arg(&client.certificate)
        .arg("-key")
        .arg(&client.private_key)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let request = b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
    // Fails if keygate rejects the client before openssl has read the request.
    let _ = openssl.stdin.take().unwrap().write_all(request);
    openssl.wait_with_output().unwrap()
}

#[test]
fn openssl_with_every_kind_of_key_is_served_or_reads_its_alert() {
    let setting = setting();
    for version in ["-tls1_3", "-tls1_2"] {
        for client in &setting.good {
            let output = output_text(&s_client(&setting, client, version));
            assert!(output.contains("hello"), "{} {version}: {output}", client.name);
        }
        for client in &setting.lost {
            let output = output_text(&s_client(&setting, client, version));
            assert!(
                output.contains("SSL alert number 49"),
                "{} {version} should read access_denied: {output}",
                client.name
            );
            assert!(!output.contains("hello"), "{} {version}: {output}", client.name);
        }
    }
}

fn get(setting: &Setting, client: &Party) -> std::io::Result<String> {
    let name = "localhost".try_into().unwrap();
    let connection = ClientConnection::new(Arc::new(config(&setting.pki, client)), name).unwrap();
    let tcp = TcpStream::connect(setting.keygate.address())?;
    tcp.set_read_timeout(Some(TIMEOUT))?;
    let mut tls = StreamOwned::new(connection, tcp);
    write!(tls, "GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")?;
    let mut response = String::new();
    tls.read_to_string(&mut response)?;
    Ok(response)
}

#[test]
fn rustls_with_every_kind_of_key_is_served_or_reads_its_alert() {
    let setting = setting();
    for client in &setting.good {
        assert!(get(&setting, client).unwrap().ends_with("hello\n"), "{}", client.name);
    }
    for client in &setting.lost {
        let error = get(&setting, client).unwrap_err();
        let alert = error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>());
        let denied = rustls::Error::AlertReceived(AlertDescription::AccessDenied);
        assert_eq!(alert, Some(&denied), "{}", client.name);
    }
}

//! A rejected client reads its alert even while it is still sending. Under TLS 1.3 the handshake of
//! the client ends before the alert. If a socket is closed with unread bytes, the kernel resets the
//! connection, and the alert is lost.
//!
//! Guards: `close` in `crates/wire/src/lingering_close.rs` for alerts, `discard` in
//! `crates/wire/src/upload.rs` for responses with status 403.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::{Command, Stdio};
use std::sync::Arc;

use rustls::{ClientConnection, StreamOwned};

use crate::support::client::config_of;
use crate::support::proxy::{Configure, Proxy, Running};
use crate::support::{TIMEOUT, output_text, read_alert, system};

/// More than the buffers of a connection hold.
const BODY: usize = 6 << 20;
/// Repetitions, because each connection is a race with the buffers of the kernel.
const ROUNDS: usize = 5;

fn scene(policy: &str) -> Running {
    let proxy = Proxy::new().service(policy);
    std::fs::write(proxy.pki.path("body"), vec![b'x'; BODY]).unwrap();
    proxy.start()
}

fn head() -> String {
    format!("POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: {BODY}\r\n\r\n")
}

#[test]
fn rustls_reads_its_alert_while_it_is_sending() {
    let scene = scene("");
    let config = Arc::new(config_of(&scene.pki, &[&rustls::version::TLS13], Some(&scene.lost)));
    for _ in 0..ROUNDS {
        read_alert(|| {
            let name = "localhost".try_into().unwrap();
            let connection = ClientConnection::new(Arc::clone(&config), name).unwrap();
            let tcp = TcpStream::connect(scene.keygate.address()).unwrap();
            tcp.set_read_timeout(Some(TIMEOUT)).unwrap();
            let mut tls = StreamOwned::new(connection, tcp);
            let requested = tls
                .write_all(head().as_bytes())
                .and_then(|()| tls.write_all(&vec![b'x'; BODY]))
                .and_then(|()| tls.read_to_end(&mut Vec::new()));
            contains("AccessDenied", requested.unwrap_err().to_string())
        });
    }
    assert_eq!(scene.origin.untaken(), 0);
}

fn contains(alert: &str, text: String) -> Result<(), String> {
    if text.contains(alert) { Ok(()) } else { Err(text) }
}

/// The output of OpenSSL as the rejected client, which sends the body.
fn send_with_openssl(scene: &Running) -> String {
    let mut openssl = Command::new("openssl")
        .args(["s_client", "-ign_eof", "-tls1_3", "-connect"])
        .arg(scene.keygate.address().to_string())
        .arg("-CAfile")
        .arg(scene.pki.path("ca.pem"))
        .arg("-cert")
        .arg(&scene.lost.certificate)
        .arg("-key")
        .arg(&scene.lost.private_key)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = openssl.stdin.take().unwrap();
    let sending = std::thread::spawn(move || {
        // The client ends when it has read its alert, and leaves the rest unread.
        let _ = stdin.write_all(head().as_bytes()).and_then(|()| stdin.write_all(&[b'x'; BODY]));
    });
    let output = openssl.wait_with_output().unwrap();
    sending.join().unwrap();
    output_text(&output)
}

#[test]
fn openssl_reads_its_alert_while_it_is_sending() {
    let scene = scene("");
    for _ in 0..ROUNDS {
        read_alert(|| contains("SSL alert number 49", send_with_openssl(&scene)));
    }
    assert_eq!(scene.origin.untaken(), 0);
}

#[test]
fn curl_reads_its_alert_or_403_while_it_is_sending() {
    for (policy, wanted) in
        [("", "access denied"), ("policy = { reject_with = \"http-403\" }", "probably compromised")]
    {
        let scene = scene(policy);
        let body = scene.pki.path("body");
        for version in ["--http1.1", "--http2"] {
            for _ in 0..ROUNDS {
                let upload = [version, "--tlsv1.3", "-T", body.to_str().unwrap()];
                let response = scene.keygate.curl(&scene.lost, &upload);
                assert!(
                    output_text(&response).contains(wanted),
                    "{version}: {}",
                    output_text(&response)
                );
            }
        }
        assert_eq!(scene.origin.untaken(), 0);
    }
}

/// Sends everything before it reads anything.
const PYTHON: &str = r#"
import socket, ssl, sys
host, port, ca, cert, key, head, size = sys.argv[1:]
context = ssl.create_default_context(cafile=ca)
context.load_cert_chain(cert, key)
context.minimum_version = ssl.TLSVersion.TLSv1_3
with socket.create_connection((host, int(port)), 30) as tcp:
    with context.wrap_socket(tcp, server_hostname="localhost") as tls:
        tls.sendall(head.encode() + b"x" * int(size))
        print(tls.recv(1000))
"#;

#[test]
fn python_reads_its_alert_while_it_is_sending() {
    let scene = scene("");
    let address = scene.keygate.address();
    let (host, port) = (address.ip().to_string(), address.port().to_string());
    let ca = scene.pki.path("ca.pem");
    let files = [&ca, &scene.lost.certificate, &scene.lost.private_key];
    let [ca, certificate, key] = files.map(|path| path.to_str().unwrap());
    let (head, size) = (head(), BODY.to_string());
    for _ in 0..ROUNDS {
        let arguments = ["-c", PYTHON, &host, &port, ca, certificate, key, &head, &size];
        read_alert(|| contains("ALERT_ACCESS_DENIED", output_text(&system("python3", &arguments))));
    }
    assert_eq!(scene.origin.untaken(), 0);
}

//! Clients that send nothing, half a request, or nothing more.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use crate::support::client::Client;
use crate::support::keygate::Keygate;
use crate::support::origin::Origin;
use crate::support::pki::{Kind, Party, Pki};
use crate::support::proxy::{Configuration, Configure};
use crate::support::{TIMEOUT, output_text, write_filter};

fn setting(origin: &Origin, limits: &str) -> (Pki, Party, Keygate) {
    let pki = Pki::new();
    let good = pki.client("good", Kind::P256);
    write_filter(&pki.path("lost.pkbf"), &[]);
    let keygate = Configuration::new(origin.address())
        .service(&format!("limits = {{ {limits} }}"))
        .start(&pki);
    (pki, good, keygate)
}

#[test]
fn a_client_that_starts_no_handshake_is_closed() {
    let (_pki, _, keygate) = setting(&Origin::start(), "handshake_timeout = \"200ms\"");
    let mut silent = TcpStream::connect(keygate.address()).unwrap();
    silent.set_read_timeout(Some(TIMEOUT)).unwrap();
    assert_eq!(silent.read(&mut [0]).unwrap(), 0, "closed without a word");
    let series = r#"keygate_handshakes_total{result="timeout",resumed="false",service=""}"#;
    keygate.wait_for_metric(series, 1.0);
}

#[test]
fn a_client_without_tls_is_counted_as_such() {
    let (_pki, _, keygate) = setting(&Origin::start(), "");
    let mut plain = TcpStream::connect(keygate.address()).unwrap();
    plain.set_read_timeout(Some(TIMEOUT)).unwrap();
    plain.write_all(b"EHLO localhost\r\n").unwrap();
    plain.read_to_end(&mut Vec::new()).unwrap();
    let series = r#"keygate_handshakes_total{result="not_tls",resumed="false",service=""}"#;
    keygate.wait_for_metric(series, 1.0);
}

/// The response of the proxy at `address` to these bytes without TLS, until it closes.
fn plain(address: SocketAddr, pieces: &[&[u8]]) -> Vec<u8> {
    let mut plain = TcpStream::connect(address).unwrap();
    plain.set_nodelay(true).unwrap();
    plain.set_read_timeout(Some(TIMEOUT)).unwrap();
    pieces.iter().for_each(|piece| plain.write_all(piece).unwrap());
    let mut response = Vec::new();
    plain.read_to_end(&mut response).unwrap();
    response
}

#[test]
fn plain_http_on_a_port_for_tls_gets_400() {
    let pki = Pki::new();
    write_filter(&pki.path("lost.pkbf"), &[]);
    let from = "accept_proxy = { from = [\"127.0.0.1\"] }";
    for (settings, header) in [("", ""), (from, "PROXY TCP4 192.0.2.1 192.0.2.2 4711 443\r\n")] {
        let keygate = Configuration::new("127.0.0.1:9").service(settings).start(&pki);
        for pieces in [
            &[&b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"[..]][..],
            &[b"P", b"OS", b"T", b" /upload HTTP/1.1\r\nContent-Length: 9\r\n\r\nunread"],
            &[b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"],
        ] {
            let pieces = [&[header.as_bytes()], pieces].concat();
            let response = String::from_utf8(plain(keygate.address(), &pieces)).unwrap();
            assert!(response.starts_with("HTTP/1.1 400 Bad Request\r\n"), "{response}");
            assert!(response.ends_with("use https:// here.\n"), "{response}");
        }
        let series = r#"keygate_handshakes_total{result="plain_http",resumed="false",service=""}"#;
        keygate.wait_for_metric(series, 3.0);
    }
}

#[test]
fn plain_bytes_that_are_no_http_or_for_a_tcp_service_get_an_alert() {
    let pki = Pki::new();
    write_filter(&pki.path("lost.pkbf"), &[]);
    let http = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n";
    for (protocol, bytes) in [("http", &b"GET key\r\n"[..]), ("http", b"PING\r\n"), ("tcp", http)] {
        let service = format!("protocol = \"{protocol}\"");
        let keygate = Configuration::new("127.0.0.1:9").servers(&[match protocol {
            "tcp" => "127.0.0.1:9",
            _ => "http://127.0.0.1:9",
        }]);
        let keygate = keygate.service(&service).start(&pki);
        let response = plain(keygate.address(), &[bytes]);
        assert_eq!(response.first(), Some(&21), "an alert: {response:?}");
        let series = r#"keygate_handshakes_total{result="not_tls",resumed="false",service=""}"#;
        keygate.wait_for_metric(series, 1.0);
    }
}

#[test]
fn half_a_request_head_gets_408() {
    let (pki, good, keygate) = setting(&Origin::start(), "header_timeout = \"400ms\"");
    let mut slow = Client::connect(&pki, keygate.address(), &good);
    slow.send("GET / HTTP/1.1\r\nHost: loc");
    let rest = slow.rest();
    assert!(rest.starts_with("HTTP/1.1 408 Request Timeout\r\n"), "{rest}");
}

#[test]
fn an_idle_connection_is_closed_after_the_idle_timeout() {
    let (pki, good, keygate) = setting(&Origin::start(), "idle_timeout = \"5s\"");
    let mut idle = Client::connect(&pki, keygate.address(), &good);
    idle.send("GET / HTTP/1.1\r\nHost: localhost\r\n\r\n");
    assert!(idle.head().starts_with("HTTP/1.1 200 OK\r\n"));
    assert_eq!(idle.rest(), "hello\n", "and the end of the connection");
}

#[test]
fn a_request_in_flight_may_take_longer_than_the_idle_timeout() {
    let origin = Origin::responding(|_, tcp| {
        // The passing of time is what is tested: longer than the idle time-out and its tick.
        std::thread::sleep(Duration::from_secs(5));
        tcp.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 6\r\n\r\nhello\n")
    });
    let (_pki, good, keygate) = setting(&origin, "idle_timeout = \"3s\"");
    for http in ["--http1.1", "--http2"] {
        let response = keygate.curl(&good, &[http]);
        assert_eq!(response.stdout, b"hello\n", "{}", output_text(&response));
    }
}

#[test]
fn a_head_over_the_limit_gets_431() {
    let (_pki, good, keygate) = setting(&Origin::start(), "max_header_size = \"8KiB\"");
    let header = format!("X-Long: {}", "x".repeat(10_000));
    let arguments = ["--http1.1", "-H", &header, "-w", "%{http_code}"];
    let refused = keygate.curl(&good, &arguments);
    assert!(refused.stdout.ends_with(b"431"), "{}", output_text(&refused));
}

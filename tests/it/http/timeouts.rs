//! Clients that send nothing, half a request, or nothing more.

use std::io::{Read, Write};
use std::net::TcpStream;
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
    plain.write_all(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
    plain.read_to_end(&mut Vec::new()).unwrap();
    let series = r#"keygate_handshakes_total{result="not_tls",resumed="false",service=""}"#;
    keygate.wait_for_metric(series, 1.0);
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
    let (pki, good, keygate) = setting(&Origin::start(), "idle_timeout = \"1s\"");
    let mut idle = Client::connect(&pki, keygate.address(), &good);
    idle.send("GET / HTTP/1.1\r\nHost: localhost\r\n\r\n");
    assert!(idle.head().starts_with("HTTP/1.1 200 OK\r\n"));
    assert_eq!(idle.rest(), "hello\n", "and the end of the connection");
}

#[test]
fn a_request_in_flight_may_take_longer_than_the_idle_timeout() {
    let origin = Origin::responding(|_, tcp| {
        // The passing of time is what is tested: longer than the idle time-out and its tick.
        std::thread::sleep(Duration::from_millis(900));
        tcp.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 6\r\n\r\nhello\n")
    });
    let (_pki, good, keygate) = setting(&origin, "idle_timeout = \"200ms\"");
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

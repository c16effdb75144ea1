//! What a server says before its answer (1xx), on its way to the client.

#![allow(
    clippy::indexing_slicing,
    clippy::panic,
    clippy::unwrap_used,
    reason = "a test fails where it stands"
)]

mod support;

use std::io::Write;
use std::sync::Mutex;
use std::sync::mpsc::channel;

use support::client::Client;
use support::keygate::Keygate;
use support::origin::Origin;
use support::pki::{Kind, Party, Pki};
use support::{PATIENCE, said, write_filter};

const HINTS: &str = "HTTP/1.1 103 Early Hints\r\nlink: </a.css>; rel=preload\r\n";
const ANSWER: &str = "HTTP/1.1 200 OK\r\ncontent-length: 6\r\n\r\nhello\n";
const REQUEST: &str = "GET / HTTP/1.1\r\nhost: localhost\r\n\r\n";

fn people() -> (Pki, Party) {
    let pki = Pki::new();
    let good = pki.client("good", Kind::P256);
    write_filter(&pki.path("lost.pkbf"), &[]);
    (pki, good)
}

#[test]
fn hints_are_there_before_the_answer_without_what_is_between_server_and_proxy() {
    let (pki, good) = people();
    let (release, held) = channel();
    let held = Mutex::new(held);
    let origin = Origin::answering(move |_, tcp| {
        write!(tcp, "{HINTS}connection: x-secret\r\nx-secret: 1\r\nkeep-alive: 5\r\n\r\n")?;
        held.lock().unwrap().recv_timeout(PATIENCE).unwrap();
        tcp.write_all(ANSWER.as_bytes())
    });
    let keygate = Keygate::start(&pki, &origin, "");
    let mut client = Client::connect(&pki, keygate.address(), &good);
    for _ in 0..2 {
        client.send(REQUEST);
        assert_eq!(client.head(), format!("{HINTS}\r\n"));
        release.send(()).unwrap();
        assert!(client.head().starts_with("HTTP/1.1 200"));
        assert_eq!(client.exactly(6), b"hello\n");
    }
}

#[test]
fn hints_that_come_with_the_answer_come_before_it_each_with_its_request() {
    let (pki, good) = people();
    let origin = Origin::answering(|request, tcp| {
        let name = request.head.split(' ').nth(1).unwrap();
        let body = "x".repeat(300_000);
        let length = body.len();
        write!(
            tcp,
            "HTTP/1.1 103 Early Hints\r\nlink: <{name}>\r\n\r\nHTTP/1.1 102 Processing\r\n\r\n\
             HTTP/1.1 200 OK\r\nx-name: {name}\r\ncontent-length: {length}\r\n\r\n{body}"
        )
    });
    let keygate = Keygate::start(&pki, &origin, "");
    let mut client = Client::connect(&pki, keygate.address(), &good);
    // All at once: while one answer waits for the client, the next request is read.
    let names: Vec<String> = (0..20).map(|number| format!("/{number}")).collect();
    for name in &names {
        client.send(format!("GET {name} HTTP/1.1\r\nhost: localhost\r\n\r\n"));
    }
    let mut hints = 0;
    for name in &names {
        let mut head = client.head();
        // A client that does not take its answers may miss a hint, and never sees one elsewhere.
        for hint in [format!("link: <{name}>"), "102 Processing".to_owned()] {
            if head.starts_with("HTTP/1.1 1") {
                assert!(head.contains(&hint), "{head}");
                hints += 1;
                head = client.head();
            }
        }
        assert!(
            head.starts_with("HTTP/1.1 200") && head.contains(&format!("x-name: {name}\r\n")),
            "{head}"
        );
        assert!(client.exactly(300_000).iter().all(|byte| *byte == b'x'));
    }
    assert!(hints > 1, "those of the first request at least");
}

#[test]
fn curl_sees_them_and_clients_that_cannot_do_not() {
    let (pki, good) = people();
    let origin = Origin::answering(|_, tcp| write!(tcp, "{HINTS}\r\n{ANSWER}"));
    let keygate = Keygate::start(&pki, &origin, "");
    let seen = said(&keygate.curl(&good, &["-i", "--http1.1"]));
    assert!(
        seen.contains(" 103 ") && seen.contains("</a.css>") && seen.contains(" 200 "),
        "{seen}"
    );
    // hyper has no words for them in HTTP/2.
    let seen = said(&keygate.curl(&good, &["-i", "--http2"]));
    assert!(!seen.contains("103") && seen.contains(" 200"), "{seen}");
    let mut client = Client::connect(&pki, keygate.address(), &good);
    client.send("GET / HTTP/1.0\r\n\r\n");
    let seen = client.rest();
    assert!(seen.starts_with("HTTP/1.0 200"), "{seen}");
}

#[test]
fn a_flood_of_hints_is_not_kept() {
    let (pki, good) = people();
    let (all_out, is_all_out) = channel();
    let flood =
        format!("HTTP/1.1 103 Early Hints\r\nx: {}\r\n\r\n", "x".repeat(4000)).repeat(20_000);
    let size = flood.len();
    let origin = Origin::answering(move |_, tcp| {
        tcp.write_all(flood.as_bytes())?;
        all_out.send(()).unwrap();
        tcp.write_all(ANSWER.as_bytes())
    });
    let keygate = Keygate::start(&pki, &origin, "");
    let mut client = Client::connect(&pki, keygate.address(), &good);
    keygate.forget_peak();
    client.send(REQUEST);
    is_all_out.recv_timeout(PATIENCE).unwrap();
    let mut hints = 0;
    let mut head = client.head();
    while head.starts_with("HTTP/1.1 103") {
        hints += head.len();
        head = client.head();
    }
    assert!(head.starts_with("HTTP/1.1 200"), "{head}");
    assert_eq!(client.exactly(6), b"hello\n");
    let peak = keygate.memory("VmHWM");
    assert!(
        peak < 60 << 10 && (4000..size).contains(&hints),
        "{peak} KiB, {hints} of {size} bytes"
    );
}

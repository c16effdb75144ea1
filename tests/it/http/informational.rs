//! Informational responses (1xx) on their way from the server to the client.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Mutex;
use std::sync::mpsc::channel;

use crate::support::client::Client;
use crate::support::http2::{
    Came, DATA, END_HEADERS, END_STREAM, HEADERS, Http2, SETTINGS, field, frame, request,
};
use crate::support::origin::Origin;
use crate::support::pki::{Kind, Party, Pki};
use crate::support::proxy::{Configuration, Configure};
use crate::support::{TIMEOUT, output_text, write_filter};

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
fn early_hints_arrive_before_the_response_without_hop_by_hop_headers() {
    let (pki, good) = people();
    let (release, held) = channel();
    let held = Mutex::new(held);
    let origin = Origin::responding(move |_, tcp| {
        write!(tcp, "{HINTS}content-length: 5\r\nconnection: x-secret\r\nx-secret: 1\r\n\r\n")?;
        held.lock().unwrap().recv_timeout(TIMEOUT).unwrap();
        tcp.write_all(ANSWER.as_bytes())
    });
    let keygate = Configuration::new(origin.address()).start(&pki);
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
fn early_hints_sent_with_the_response_arrive_before_it_for_their_own_request() {
    let (pki, good) = people();
    let origin = Origin::responding(|request, tcp| {
        let name = request.head.split(' ').nth(1).unwrap();
        let body = "x".repeat(300_000);
        let length = body.len();
        write!(
            tcp,
            "HTTP/1.1 103 Early Hints\r\nlink: <{name}>\r\n\r\nHTTP/1.1 102 Processing\r\n\r\n\
             HTTP/1.1 200 OK\r\nx-name: {name}\r\ncontent-length: {length}\r\n\r\n{body}"
        )
    });
    let keygate = Configuration::new(origin.address()).start(&pki);
    let mut client = Client::connect(&pki, keygate.address(), &good);
    // All requests are sent first: while one response waits for the client, the next is read.
    let names: Vec<String> = (0..20).map(|number| format!("/{number}")).collect();
    for name in &names {
        client.send(format!("GET {name} HTTP/1.1\r\nhost: localhost\r\n\r\n"));
    }
    let mut hints = 0;
    for name in &names {
        let mut head = client.head();
        // A client that does not read may miss a hint. No hint precedes another response.
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
    assert!(hints > 1, "the hints of the first request at least");
}

#[test]
fn curl_gets_informational_responses_and_http_1_0_clients_do_not() {
    let (pki, good) = people();
    let origin = Origin::responding(|_, tcp| write!(tcp, "{HINTS}\r\n{ANSWER}"));
    let keygate = Configuration::new(origin.address()).start(&pki);
    for http in ["--http1.1", "--http2"] {
        let seen = output_text(&keygate.curl(&good, &["-i", http]));
        let (hints, response) = seen.split_once(" 200 ").unwrap();
        assert!(hints.contains(" 103 ") && hints.contains("link: </a.css>"), "{seen}");
        assert!(response.contains("hello") && !response.contains("link"), "{seen}");
    }
    let mut client = Client::connect(&pki, keygate.address(), &good);
    client.send("GET / HTTP/1.0\r\n\r\n");
    let seen = client.rest();
    assert!(seen.starts_with("HTTP/1.0 200"), "{seen}");
}

/// An HTTP/2 server that sends a 1xx response before every final response.
fn hint(mut tcp: TcpStream) -> std::io::Result<()> {
    tcp.read_exact(&mut [0; 24])?; // the preface
    tcp.write_all(&frame(SETTINGS, 0, 0, b""))?;
    loop {
        let mut header = [0; 9];
        tcp.read_exact(&mut header)?;
        let length = u32::from_be_bytes([0, header[0], header[1], header[2]]);
        tcp.read_exact(&mut vec![0; length as usize])?;
        if header[3] == HEADERS {
            let stream = u32::from_be_bytes(*header.last_chunk().unwrap());
            let hints = [field(":status", "103"), field("link", "</a.css>; rel=preload")].concat();
            let frames = [
                frame(HEADERS, END_HEADERS, stream, &hints),
                frame(HEADERS, END_HEADERS, stream, &field(":status", "200")),
                frame(DATA, END_STREAM, stream, b"hello\n"),
            ];
            tcp.write_all(&frames.concat())?;
        }
    }
}

#[test]
fn informational_responses_of_an_http2_server_are_forwarded() {
    let (pki, good) = people();
    let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for tcp in listener.incoming() {
            // One thread per connection, because each worker of keygate opens its own.
            std::thread::spawn(move || drop(hint(tcp.unwrap())));
        }
    });
    let url = format!("h2c://{address}");
    let keygate = Configuration::new(address).servers(&[url]).start(&pki);
    for http in ["--http1.1", "--http2"] {
        let seen = output_text(&keygate.curl(&good, &["-i", http]));
        let (hints, response) = seen.split_once(" 200 ").unwrap();
        assert!(hints.contains(" 103 ") && hints.contains("link: </a.css>"), "{seen}");
        assert!(response.contains("hello") && !response.contains("link"), "{seen}");
    }
}

#[test]
fn an_http2_client_that_expects_100_continue_gets_it_when_its_body_is_read() {
    let (pki, good) = people();
    let origin = Origin::start();
    let keygate = Configuration::new(origin.address()).start(&pki);
    let mut client = Http2::connect(&pki, keygate.address(), &good);
    let expects = [("content-length", "4"), ("expect", "100-continue")];
    client.send(&frame(HEADERS, END_HEADERS, 1, &request("POST", &expects)));
    let head = |client: &mut Http2| {
        std::iter::from_fn(|| client.frame()).find(|(kind, ..)| *kind == HEADERS).unwrap()
    };
    let (_, flags, _, fields) = head(&mut client);
    let is_interim = |fields: &[u8]| fields.len() <= 5; // nothing but the status
    assert!(is_interim(&fields) && flags & END_STREAM == 0, "{fields:x?}");
    client.send(&frame(DATA, END_STREAM, 1, b"body"));
    assert_eq!(client.next(), Came::Response(0x88, 1));
    let received = origin.next();
    assert_eq!((received.body, received.head.contains("xpect")), (b"body".to_vec(), false));
    // A request whose body is not needed gets its response at once.
    let elsewhere = [&expects[..], &[("host", "elsewhere.example")]].concat();
    client.send(&frame(HEADERS, END_HEADERS, 3, &request("POST", &elsewhere)));
    let (_, _, stream, fields) = head(&mut client);
    assert!(stream == 3 && !is_interim(&fields), "{fields:x?}");
    assert_eq!(origin.untaken(), 0);
}

#[test]
fn a_flood_of_early_hints_is_not_buffered_for_an_http2_client() {
    let (pki, good) = people();
    let flood =
        format!("HTTP/1.1 103 Early Hints\r\nx: {}\r\n\r\n", "x".repeat(4000)).repeat(20_000);
    let origin = Origin::responding(move |_, tcp| {
        tcp.write_all(flood.as_bytes())?;
        tcp.write_all(ANSWER.as_bytes())
    });
    let keygate = Configuration::new(origin.address()).start(&pki);
    keygate.forget_peak();
    let seen = output_text(&keygate.curl(&good, &["-i", "--http2"]));
    let hints = seen.matches("HTTP/2 103").count();
    assert!((1..=4).contains(&hints) && seen.contains("HTTP/2 200"), "{hints}");
    let peak = keygate.memory("VmHWM");
    assert!(peak < 60 << 10, "{peak} KiB");
}

#[test]
fn a_flood_of_early_hints_is_not_buffered() {
    let (pki, good) = people();
    let (all_out, is_all_out) = channel();
    let flood =
        format!("HTTP/1.1 103 Early Hints\r\nx: {}\r\n\r\n", "x".repeat(4000)).repeat(20_000);
    let size = flood.len();
    let origin = Origin::responding(move |_, tcp| {
        tcp.write_all(flood.as_bytes())?;
        all_out.send(()).unwrap();
        tcp.write_all(ANSWER.as_bytes())
    });
    let keygate = Configuration::new(origin.address()).start(&pki);
    let mut client = Client::connect(&pki, keygate.address(), &good);
    keygate.forget_peak();
    client.send(REQUEST);
    is_all_out.recv_timeout(TIMEOUT).unwrap();
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

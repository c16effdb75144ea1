//! A truncated message never looks complete to the other side, over any pair of protocols.

use std::io::{ErrorKind, Read, Write};
use std::time::Duration;

use socket2::SockRef;

use crate::support::client::Client;
use crate::support::http2::{
    Came, DATA, END_HEADERS, END_STREAM, HEADERS, Http2, RST_STREAM, WINDOW_UPDATE, frame, request,
};
use crate::support::keygate::Keygate;
use crate::support::pki::{Kind, Party, Pki};
use crate::support::proxy::{Configuration, Configure};
use crate::support::server::{Server, next_frame, read_until};
use crate::support::{output_text, write_filter, write_revision};

/// Codes of RST_STREAM (RFC 9113, section 7).
const NO_ERROR: u32 = 0;
const INTERNAL_ERROR: u32 = 2;
const CANCEL: u32 = 8;
const CODES: [u32; 3] = [NO_ERROR, INTERNAL_ERROR, CANCEL];

struct Scene {
    server: Server,
    keygate: Keygate,
    good: Party,
    pki: Pki,
}

fn scene(scheme: &str) -> Scene {
    let pki = Pki::new();
    let good = pki.client("good", Kind::P256);
    write_filter(&pki.path("lost.pkbf"), &[]);
    let server = Server::start();
    let url = format!("{scheme}{}", server.address);
    let keygate = Configuration::new(server.address).servers(&[url]).start(&pki);
    Scene { server, keygate, good, pki }
}

impl Scene {
    /// A client of HTTP/2 that has sent a part of a body of unknown length.
    fn uploading(&self) -> Http2 {
        let mut client = Http2::connect(&self.pki, self.keygate.address(), &self.good);
        client.send(&frame(HEADERS, END_HEADERS, 1, &request("POST", &[])));
        client.send(&frame(DATA, 0, 1, b"part"));
        client
    }
}

#[test]
fn a_reset_upload_never_looks_complete_to_an_http1_server() {
    for code in CODES {
        let scene = scene("http://");
        let mut client = scene.uploading();
        let mut server = scene.server.connection();
        let head = read_until(&mut server, "\r\n\r\n").to_ascii_lowercase();
        assert!(head.contains("transfer-encoding: chunked"), "{head}");
        read_until(&mut server, "part\r\n");
        client.send(&frame(RST_STREAM, 0, 1, &code.to_be_bytes()));
        let mut rest = Vec::new();
        let _ = server.read_to_end(&mut rest); // reset or closed
        assert_eq!(String::from_utf8_lossy(&rest), "", "{code}");
    }
}

#[test]
fn a_reset_upload_never_looks_complete_to_an_http2_server() {
    for code in CODES {
        let scene = scene("h2c://");
        let mut client = scene.uploading();
        let mut server = scene.server.http2();
        assert_eq!(next_frame(&mut server).0, HEADERS);
        assert_eq!(next_frame(&mut server), (DATA, 1, false, b"part".to_vec()));
        client.send(&frame(RST_STREAM, 0, 1, &code.to_be_bytes()));
        let (kind, _, ends, _) = next_frame(&mut server);
        assert_eq!((kind, ends), (RST_STREAM, false), "{code}");
    }
}

#[test]
fn an_upload_whose_client_disconnects_never_looks_complete_to_an_http2_server() {
    let scene = scene("h2c://");
    let mut client = Client::connect(&scene.pki, scene.keygate.address(), &scene.good);
    client.send(
        "POST / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n4\r\npart\r\n",
    );
    let mut server = scene.server.http2();
    assert_eq!(next_frame(&mut server).0, HEADERS);
    assert_eq!(next_frame(&mut server), (DATA, 1, false, b"part".to_vec()));
    drop(client);
    let (kind, _, ends, _) = next_frame(&mut server);
    assert_eq!((kind, ends), (RST_STREAM, false));
}

#[test]
fn a_reset_response_never_looks_complete() {
    for code in CODES {
        for http in ["--http1.1", "--http2"] {
            let scene = scene("h2c://");
            let broken = std::thread::scope(|scope| {
                let client_thread = scope.spawn(|| scene.keygate.curl(&scene.good, &[http]));
                let mut server = scene.server.http2();
                assert_eq!(next_frame(&mut server).0, HEADERS);
                let status_200 = [0x88];
                let response = [
                    frame(HEADERS, END_HEADERS, 1, &status_200),
                    frame(DATA, 0, 1, b"ten bytes."),
                    frame(RST_STREAM, 0, 1, &code.to_be_bytes()),
                ];
                server.write_all(&response.concat()).unwrap();
                client_thread.join().unwrap()
            });
            // Partial file, empty reply, receive error, error in an HTTP/2 stream.
            let broken_off = [18, 52, 56, 92].map(Some).contains(&broken.status.code());
            assert!(broken_off, "{code} {http}: {}", output_text(&broken));
        }
    }
}

#[test]
fn a_long_early_response_is_complete_for_a_slow_client() {
    let scene = scene("http://");
    let mut client = scene.uploading();
    let mut server = scene.server.connection();
    read_until(&mut server, "part\r\n");
    let body = vec![b'x'; 1 << 20];
    let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n", body.len());
    let writing = std::thread::spawn(move || {
        server.write_all(&[head.as_bytes(), &body].concat()).unwrap();
        server
    });
    let mut came = 0;
    loop {
        let (kind, flags, stream, payload) = client.frame().unwrap();
        assert_ne!(kind, RST_STREAM, "after {came} bytes");
        if kind == DATA {
            came += payload.len();
            if flags & END_STREAM != 0 {
                break;
            }
            // As much again, only now: for the stream and for the connection.
            let taken = u32::try_from(payload.len()).unwrap().to_be_bytes();
            client.send(&frame(WINDOW_UPDATE, 0, stream, &taken));
            client.send(&frame(WINDOW_UPDATE, 0, 0, &taken));
        }
    }
    assert_eq!(came, 1 << 20);
    assert_eq!(client.next(), Came::Reset(1, NO_ERROR));
    drop(writing.join().unwrap());
}

#[test]
fn a_client_that_is_still_sending_reads_an_early_response() {
    const LENGTH: u64 = 20 << 20;
    let scene = scene("http://");
    let path = scene.pki.path("large");
    std::fs::File::create(&path).unwrap().set_len(LENGTH).unwrap();
    let file = path.to_str().unwrap();
    let upload = |options: &[&str], status: &str| {
        let own = ["-w", "%{http_code}", "-o", "/dev/null", "-H", "Expect:", "-T", file];
        let arguments = [options, &own].concat();
        let response = std::thread::scope(|threads| {
            let client_thread = threads.spawn(|| scene.keygate.curl(&scene.good, &arguments));
            let mut server = scene.server.connection();
            read_until(&mut server, "\r\n\r\n");
            write!(server, "HTTP/1.1 {status}\r\ncontent-length: 6\r\n\r\nearly\n").unwrap();
            let _ = std::io::copy(&mut server.take(LENGTH), &mut std::io::sink());
            client_thread.join().unwrap()
        });
        let text = output_text(&response);
        let is_complete = response.status.success() && text.contains(&status[..3]);
        assert!(is_complete, "{options:?} {status}: {text}");
    };
    for http in ["--http1.1", "--http2"] {
        for status in ["200 OK", "401 Unauthorized", "413 Content Too Large\r\nconnection: close"] {
            for _ in 0..5 {
                upload(&[http], status);
            }
        }
    }
    // Longer than the wait for an upload that the server does not read.
    upload(&["--http2", "--limit-rate", "4M"], "200 OK");
}

#[test]
fn a_connection_that_ends_with_an_unread_upload_is_drained_before_it_is_closed() {
    let scene = scene("http://");
    let mut client = Client::connect(&scene.pki, scene.keygate.address(), &scene.good);
    client.send("POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000000\r\n\r\npart");
    let mut server = scene.server.connection();
    read_until(&mut server, "part");
    write!(
        server,
        "HTTP/1.1 413 Content Too Large\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"
    )
    .unwrap();
    drop(server);
    // The client keeps sending although keygate has half-closed the connection.
    let response = client.rest();
    assert!(response.starts_with("HTTP/1.1 413 "), "{response}");
    for _ in 0..10 {
        client.send([b'x'; 10_000]);
    }
}

#[test]
fn a_response_that_breaks_off_is_reset_if_the_end_of_the_connection_is_its_end() {
    for (length, how) in [
        ("transfer-encoding: chunked\r\n\r\n5\r\nhello\r\n", "closed"),
        ("transfer-encoding: chunked\r\n\r\n5\r\nhello\r\n", "stalled"),
        ("\r\nhello", "reset"),
        ("\r\nhello", "stalled"),
        ("\r\nhello", "evicted"),
    ] {
        let pki = Pki::new();
        let good = pki.client("good", Kind::P256);
        write_filter(&pki.path("lost.pkbf"), &[]);
        let server = Server::start();
        let timeout = if how == "stalled" { "500ms" } else { "300s" };
        let keygate = Configuration::new(server.address)
            .upstream(&format!("body_timeout = \"{timeout}\""))
            .policy("evict_within = \"200ms\"")
            .start(&pki);
        let mut client = Client::connect(&pki, keygate.address(), &good);
        client.send("GET / HTTP/1.0\r\nHost: localhost\r\n\r\n");
        let mut upstream = server.connection();
        read_until(&mut upstream, "\r\n\r\n");
        write!(upstream, "HTTP/1.1 200 OK\r\n{length}").unwrap();
        let head = client.head();
        assert!(!head.contains("transfer-encoding") && !head.contains("content-length"), "{head}");
        assert_eq!(client.exactly(5), b"hello");
        match how {
            "closed" => drop(upstream),
            "evicted" => write_revision(&pki.path("lost.pkbf"), &[&good.spki], 2),
            "reset" => {
                SockRef::from(&upstream).set_linger(Some(Duration::ZERO)).unwrap();
                drop(upstream);
            }
            _ => {}
        }
        let ended = client.read_to_end().map_err(|error| error.kind());
        assert_eq!(ended, Err(ErrorKind::ConnectionReset), "{length:?} {how}");
    }
}

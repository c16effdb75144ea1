//! The `Content-Length` of a response: one field in canonical form, or 502.

use std::io::Write;

use crate::support::http2::{DATA, END_HEADERS, END_STREAM, HEADERS, field, frame};
use crate::support::output_text;
use crate::support::proxy::{Configure, Proxy, Running};
use crate::support::server::{Server, next_frame, read_until};

const BODY: &str = "hello";

/// The head of the response that a client of this version of HTTP gets, in lower case, and its
/// body. `serve` is the upstream.
fn response(
    proxy: &Running,
    (version, method): (&str, &str),
    serve: impl FnOnce(),
) -> (String, String) {
    let method: &[&str] = if method == "HEAD" { &["-I"] } else { &["-i"] };
    let output = std::thread::scope(|scope| {
        let client =
            scope.spawn(|| proxy.keygate.curl(&proxy.good, &[&[version], method].concat()));
        serve();
        client.join().unwrap()
    });
    assert!(output.status.success(), "{}", output_text(&output));
    let text = String::from_utf8(output.stdout).unwrap();
    let (head, body) = text.split_once("\r\n\r\n").unwrap();
    (head.to_ascii_lowercase(), body.to_owned())
}

#[test]
fn a_response_with_another_transfer_coding_than_chunked_is_502() {
    let server = Server::start();
    let proxy = Proxy::before(format!("http://{}", server.address)).workers(1).start();
    for version in ["--http1.1", "--http2"] {
        for codings in
            ["gzip", "gzip, chunked", "chunked, gzip", "gzip\r\nTransfer-Encoding: chunked"]
        {
            let (head, _) = response(&proxy, (version, "GET"), || {
                let mut tcp = server.connection();
                read_until(&mut tcp, "\r\n\r\n");
                let body = "5\r\nhello\r\n0\r\n\r\n";
                write!(tcp, "HTTP/1.1 200 OK\r\nTransfer-Encoding: {codings}\r\n\r\n{body}")
                    .unwrap();
            });
            assert_eq!(head.split(' ').nth(1), Some("502"), "{version} {codings}: {head}");
        }
    }
    let line = proxy.wait_for("the reason", |line| line["message"] == "upstream failed");
    let reason = "the upstream connection failed: the Transfer-Encoding of the response is not \
                  chunked alone";
    assert_eq!(line["error"], reason);
}

/// The values of `content-length` in a head.
fn lengths(head: &str) -> Vec<&str> {
    head.lines().filter_map(|line| line.strip_prefix("content-length: ")).collect()
}

#[test]
fn several_equal_lengths_of_a_response_become_one_and_others_are_502() {
    let server = Server::start();
    let proxy = Proxy::before(format!("http://{}", server.address)).workers(1).start();
    for version in ["--http1.1", "--http2"] {
        for (method, status) in [("GET", "200 OK"), ("HEAD", "200 OK"), ("GET", "304 Not Modified")]
        {
            for (fields, is_valid) in [
                ("Content-Length: 5, 5", true),
                ("Content-Length: 5\r\nContent-Length: 5", true),
                ("Content-Length: 05", true),
                ("Content-Length: 5, 6", false),
                ("Content-Length: 5\r\nContent-Length: 6", false),
                ("Content-Length: 5,", false),
                ("Content-Length: +5", false),
            ] {
                let has_body = method == "GET" && status == "200 OK";
                let (head, body) = response(&proxy, (version, method), || {
                    let mut tcp = server.connection();
                    read_until(&mut tcp, "\r\n\r\n");
                    let body = if has_body { BODY } else { "" };
                    write!(tcp, "HTTP/1.1 {status}\r\n{fields}\r\nConnection: close\r\n\r\n{body}")
                        .unwrap();
                });
                let case = format!("{version} {method} {status} {fields:?}: {head}");
                let code = head.split(' ').nth(1).unwrap();
                if is_valid {
                    // hyper writes no Content-Length in a 304 over HTTP/1.1.
                    let is_left_out = code == "304" && lengths(&head).is_empty();
                    assert_eq!(code, &status[..3], "{case}");
                    assert!(is_left_out || lengths(&head) == ["5"], "{case}");
                    assert_eq!(body, if has_body { BODY } else { "" }, "{case}");
                } else {
                    assert_eq!(code, "502", "{case}");
                }
            }
        }
    }
    let line = proxy.wait_for("the reason", |line| line["message"] == "upstream failed");
    assert_eq!(line["error"], "the upstream connection failed: Content-Length is invalid");
}

#[test]
fn lengths_of_a_response_over_http2_become_one_if_they_are_equal() {
    for version in ["--http1.1", "--http2"] {
        for (values, is_valid) in
            [(&["5", "5"][..], true), (&["05"], true), (&["5", "6"], false), (&["5", "x"], false)]
        {
            let server = Server::start();
            let proxy = Proxy::before(format!("h2c://{}", server.address)).workers(1).start();
            let mut open = None; // the connection stays open while the client reads
            let (head, body) = response(&proxy, (version, "GET"), || {
                let mut tcp = server.http2();
                let (kind, stream, ..) = next_frame(&mut tcp);
                assert_eq!(kind, HEADERS);
                let fields = values.iter().flat_map(|value| field("content-length", value));
                let head: Vec<u8> = [0x88].into_iter().chain(fields).collect(); // :status 200
                let head = frame(HEADERS, END_HEADERS, stream, &head);
                let body = frame(DATA, END_STREAM, stream, BODY.as_bytes());
                tcp.write_all(&[head, body].concat()).unwrap();
                open = Some(tcp);
            });
            let case = format!("{version} {values:?}: {head}");
            let code = head.split(' ').nth(1).unwrap();
            if is_valid {
                assert_eq!((code, lengths(&head), &*body), ("200", vec!["5"], BODY), "{case}");
            } else {
                assert_eq!(code, "502", "{case}");
            }
        }
    }
}

/// A client would count such a length against a body that never comes (RFC 9110, section 8.6).
#[test]
fn a_response_that_never_has_a_body_has_no_length() {
    let server = Server::start();
    let proxy = Proxy::before(format!("http://{}", server.address)).workers(1).start();
    for version in ["--http1.1", "--http2"] {
        for method in ["GET", "HEAD"] {
            let (head, body) = response(&proxy, (version, method), || {
                let mut tcp = server.connection();
                read_until(&mut tcp, "\r\n\r\n");
                let fields = "Content-Length: 5\r\nConnection: close\r\n";
                write!(tcp, "HTTP/1.1 204 No Content\r\n{fields}\r\n").unwrap();
            });
            let code = head.split(' ').nth(1).unwrap();
            let found = (code, lengths(&head), &*body);
            assert_eq!(found, ("204", vec![], ""), "{version} {method}: {head}");
        }
    }
    let upgrade = "Connection: upgrade\r\nUpgrade: echo\r\n";
    for method in ["GET", "HEAD"] {
        let mut client = proxy.connect();
        client.send(format!("{method} / HTTP/1.1\r\nHost: localhost\r\n{upgrade}\r\n"));
        let mut tcp = server.connection();
        read_until(&mut tcp, "\r\n\r\n");
        let head = format!("HTTP/1.1 101 Switching Protocols\r\n{upgrade}Content-Length: 5\r\n");
        write!(tcp, "{head}\r\nwelcome").unwrap();
        let head = client.head().to_ascii_lowercase();
        assert!(head.starts_with("http/1.1 101 "), "{method}: {head}");
        assert!(lengths(&head).is_empty(), "{method}: {head}");
        assert_eq!(client.exactly(7), b"welcome", "{method}");
    }
}

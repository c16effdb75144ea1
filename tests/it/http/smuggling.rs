//! Ambiguous requests: each is rejected and its connection closed, or reaches the origin as exactly
//! one unambiguous request.

use std::time::{Duration, Instant};

use crate::support::client::Client;
use crate::support::http2::{
    CONTINUATION, Came, DATA, END_HEADERS, END_STREAM, HEADERS, Http2, RST_STREAM, SETTINGS, field,
    frame, request,
};
use crate::support::proxy::{Configure, Proxy, Running};

fn scene() -> Running {
    Proxy::new().start()
}

/// A proxy that ends incomplete requests and idle connections after a second.
fn impatient() -> Running {
    Proxy::new()
        .limits("header_timeout = \"1s\", idle_timeout = \"1s\", body_timeout = \"1s\"")
        .start()
}

impl Running {
    /// The status of every response until the connection is closed or reset.
    fn statuses(&self, request: &[u8]) -> String {
        let text = loop {
            let began = Instant::now();
            let mut client = Client::connect(&self.pki, self.keygate.address(), &self.good);
            client.send(""); // completes the handshake
            // Later, the connection may have been closed as idle, because the machine has paused.
            if began.elapsed() < Duration::from_millis(500) {
                client.send(request);
                break client.whatever_comes();
            }
        };
        let responses = text.split("HTTP/1.").skip(1);
        responses.map(|response| response.split(' ').nth(1).unwrap()).collect::<Vec<_>>().join(" ")
    }
}

const HOST: &str = "Host: localhost\r\n";

#[test]
fn ambiguous_requests_are_rejected_and_the_connection_closed() {
    let scene = scene();
    let post = |fields: &str, body: &str| format!("POST / HTTP/1.1\r\n{HOST}{fields}\r\n{body}");
    let get = |fields: &str| format!("GET / HTTP/1.1\r\n{HOST}{fields}\r\n");
    let mut wrong = Vec::new();
    for (what, request, status) in [
        ("differing lengths", post("Content-Length: 2\r\nContent-Length: 3\r\n", "abc"), "400"),
        ("lengths in a list that differ", post("Content-Length: 2, 3\r\n", "abc"), "400"),
        ("a signed length", post("Content-Length: +2\r\n", "ab"), "400"),
        ("a negative length", post("Content-Length: -2\r\n", "ab"), "400"),
        ("a hexadecimal length", post("Content-Length: 0x2\r\n", "ab"), "400"),
        ("an empty length", post("Content-Length: \r\n", "ab"), "400"),
        ("a length with a space in it", post("Content-Length: 1 0\r\n", "0123456789"), "400"),
        (
            "a length that no number holds",
            post("Content-Length: 99999999999999999999\r\n", ""),
            "400",
        ),
        (
            "chunked, but not last",
            post("Transfer-Encoding: chunked, identity\r\n", "0\r\n\r\n"),
            "400",
        ),
        ("an unknown coding", post("Transfer-Encoding: xchunked\r\n", "0\r\n\r\n"), "400"),
        ("identity", post("Transfer-Encoding: identity\r\n", "0\r\n\r\n"), "400"),
        ("two codings", post("Transfer-Encoding: gzip, chunked\r\n", "0\r\n\r\n"), "501"),
        (
            "codings in two fields",
            post("Transfer-Encoding: x\r\nTransfer-Encoding: chunked\r\n", "0\r\n\r\n"),
            "501",
        ),
        (
            "chunked with a vertical tab",
            post("Transfer-Encoding: \x0bchunked\r\n", "0\r\n\r\n"),
            "400",
        ),
        (
            "a coding in HTTP/1.0",
            format!("POST / HTTP/1.0\r\n{HOST}Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n"),
            "400",
        ),
        ("a space before a colon", get("X-A : 1\r\n"), "400"),
        ("a tab before a colon", get("X-A\t: 1\r\n"), "400"),
        ("a length with a space before its colon", post("Content-Length : 2\r\n", "ab"), "400"),
        ("a folded line", get("X-A: 1\r\n 2\r\n"), "400"),
        ("a folded coding", post("Transfer-Encoding:\r\n chunked\r\n", "0\r\n\r\n"), "400"),
        (
            "a line that begins with a space",
            "GET / HTTP/1.1\r\n Host: localhost\r\n\r\n".to_owned(),
            "400",
        ),
        ("a field without a colon", get("nonsense\r\n"), "400"),
        ("a field without a name", get(": 1\r\n"), "400"),
        ("NUL in a value", get("X-A: a\0b\r\n"), "400"),
        ("NUL in a name", get("X\0A: 1\r\n"), "400"),
        ("CR in a value", get("X-A: a\rb\r\n"), "400"),
        ("a name that is no token", get("X(A): 1\r\n"), "400"),
        ("two hosts", get("Host: other\r\n"), "400"),
        (
            "two hosts in HTTP/1.0",
            format!("GET / HTTP/1.0\r\n{HOST}Host: other\r\nConnection: keep-alive\r\n\r\n"),
            "400",
        ),
        (
            "a target that is only a fragment",
            format!("GET http://localhost#x HTTP/1.1\r\n{HOST}\r\n"),
            "400",
        ),
        ("an asterisk for GET", format!("GET * HTTP/1.1\r\n{HOST}\r\n"), "400"),
        ("a target with a space", format!("GET /a b HTTP/1.1\r\n{HOST}\r\n"), "400"),
        ("a target with NUL", format!("GET /a\0b HTTP/1.1\r\n{HOST}\r\n"), "400"),
        ("no target", format!("GET HTTP/1.1\r\n{HOST}\r\n"), "400"),
        ("no version", format!("GET /\r\n{HOST}\r\n"), "400"),
        ("another version", format!("GET / HTTP/1.2\r\n{HOST}\r\n"), "400"),
        ("a version in lower case", format!("GET / http/1.1\r\n{HOST}\r\n"), "400"),
        ("a method that is no token", format!("G(T / HTTP/1.1\r\n{HOST}\r\n"), "400"),
        ("a tunnel", format!("CONNECT localhost:443 HTTP/1.1\r\n{HOST}\r\n"), "405"),
    ] {
        let found = scene.statuses(request.as_bytes());
        let received = scene.origin.untaken();
        if (found.as_str(), received) != (status, 0) {
            wrong.push(format!("{what}: {found}, and {received} requests at the origin"));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn odd_but_unambiguous_requests_reach_the_origin_as_exactly_one_request() {
    let scene = impatient();
    let post = |fields: &str, body: &str| format!("POST / HTTP/1.1\r\n{HOST}{fields}\r\n{body}");
    let chunked = |body: &str| post("Transfer-Encoding: chunked\r\n", body);
    for (what, request, body) in [
        ("bare LF", "POST / HTTP/1.1\nHost: localhost\nContent-Length: 2\n\nhi".to_owned(), "hi"),
        ("empty lines before", format!("\r\n\r\n{}", post("Content-Length: 2\r\n", "hi")), "hi"),
        ("the same length twice", post("Content-Length: 2\r\nContent-Length: 2\r\n", "hi"), "hi"),
        (
            "a length and chunks",
            post("Content-Length: 1\r\nTransfer-Encoding: chunked\r\n", "2\r\nhi\r\n0\r\n\r\n"),
            "hi",
        ),
        (
            "chunked in capitals",
            post("Transfer-Encoding: CHUNKED\r\n", "2\r\nhi\r\n0\r\n\r\n"),
            "hi",
        ),
        ("an extension of a chunk", chunked("2;a=b\r\nhi\r\n0\r\n\r\n"), "hi"),
        ("NUL in an extension of a chunk", chunked("2;a=\0\r\nhi\r\n0\r\n\r\n"), "hi"),
        ("leading zeros of a chunk", chunked("0002\r\nhi\r\n0\r\n\r\n"), "hi"),
        (
            "two hosts, one in an absolute target",
            "GET http://localhost/ HTTP/1.1\r\nHost: other\r\n\r\n".to_owned(),
            "",
        ),
        (
            "a body of a GET",
            format!(
                "GET / HTTP/1.1\r\n{HOST}Transfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n0\r\n\r\n"
            ),
            "hi",
        ),
        ("a server's OPTIONS", format!("OPTIONS * HTTP/1.1\r\n{HOST}\r\n"), ""),
    ] {
        assert_eq!(scene.statuses(request.as_bytes()), "200", "{what}");
        let received = scene.origin.next();
        assert_eq!(String::from_utf8_lossy(&received.body), body, "{what}");
        let framing =
            ["content-length", "transfer-encoding"].map(|name| received.fields(name).len());
        assert!(framing.iter().sum::<usize>() <= 1, "{what}: {}", received.head);
        assert_eq!(received.fields("host"), ["localhost"], "{what}");
        assert_eq!(scene.origin.untaken(), 0, "{what}");
    }
}

#[test]
fn a_truncated_body_never_makes_a_complete_request() {
    let scene = impatient();
    let chunked =
        |body: &str| format!("POST / HTTP/1.1\r\n{HOST}Transfer-Encoding: chunked\r\n\r\n{body}");
    for (what, body) in [
        ("a size that is no number", "zz\r\nhi\r\n0\r\n\r\n"),
        ("a negative size", "-2\r\nhi\r\n0\r\n\r\n"),
        ("a signed size", "+2\r\nhi\r\n0\r\n\r\n"),
        ("a size with 0x", "0x2\r\nhi\r\n0\r\n\r\n"),
        ("an empty size", "\r\nhi\r\n0\r\n\r\n"),
        ("a size that no number holds", "fffffffffffffffff\r\nhi\r\n0\r\n\r\n"),
        ("a space before the size", " 2\r\nhi\r\n0\r\n\r\n"),
        ("a chunk that is longer than its size", "2\r\nhi there\r\n0\r\n\r\n"),
        ("a chunk that ends with LF alone", "2\r\nhi\n0\r\n\r\n"),
        ("LF in an extension", "2;a=\nb\r\nhi\r\n0\r\n\r\n"),
        ("a trailer without a colon", "2\r\nhi\r\n0\r\nnonsense\r\n\r\n"),
    ] {
        let responses = scene.statuses(chunked(body).as_bytes());
        assert!(["400", ""].contains(&responses.as_str()), "{what}: {responses}");
        assert_eq!(scene.origin.untaken(), 0, "{what}");
    }
}

#[test]
fn an_upgrade_to_http_or_tls_is_ignored_in_every_spelling() {
    let scene = scene();
    let mut fields: Vec<Vec<u8>> = [
        &b"h2c"[..],
        b"H2C",
        b"HTTP/2.0",
        b"TLS/1.0",
        b"websocket, h2c",
        b"h2c/",
        b"h2c-14",
        b"H2C-16",
        b"spdy/3.1",
        b"websocket\r\nUpgrade: h2c",
    ]
    .map(<[u8]>::to_vec)
    .into();
    for byte in 0x80..=0xff_u8 {
        fields.push([b"h2c", &[byte][..]].concat());
        fields.push([&[byte][..], b"h2c"].concat());
        fields.push([&[byte][..], b", h2c"].concat());
        fields.push([b"websocket", &[byte][..]].concat());
    }
    let mut client = Client::connect(&scene.pki, scene.keygate.address(), &scene.good);
    for field in fields {
        let begin = format!("HEAD / HTTP/1.1\r\n{HOST}Connection: upgrade\r\nUpgrade: ");
        client.send([begin.as_bytes(), &field, b"\r\n\r\n"].concat());
        let head = client.head();
        let received = scene.origin.next();
        let field = String::from_utf8_lossy(&field);
        assert!(head.starts_with("HTTP/1.1 200"), "{field:?}: {head}");
        assert!(received.fields("upgrade").is_empty(), "{field:?}: {}", received.head);
        assert!(received.fields("connection").is_empty(), "{field:?}: {}", received.head);
    }
}

#[test]
fn requests_over_the_header_limits_get_431_or_414() {
    let scene = scene();
    let long = "x".repeat(70_000);
    for (what, request, status) in [
        ("a long target", format!("GET /{long} HTTP/1.1\r\n{HOST}\r\n"), "414 431"),
        ("a long field", format!("GET / HTTP/1.1\r\n{HOST}X: {long}\r\n\r\n"), "431"),
        ("many fields", format!("GET / HTTP/1.1\r\n{HOST}{}\r\n", "X: 1\r\n".repeat(200)), "431"),
    ] {
        let found = scene.statuses(request.as_bytes());
        assert!(!found.is_empty() && status.contains(&found), "{what}: {found}");
        assert_eq!(scene.origin.untaken(), 0, "{what}");
    }
}

/// Codes of errors (RFC 9113, section 7).
const PROTOCOL_ERROR: u32 = 1;
const ENHANCE_YOUR_CALM: u32 = 11;

/// Frames of requests that RFC 9113 and RFC 8441 forbid, with the fault of each.
fn forbidden_requests() -> Vec<(&'static str, Vec<u8>)> {
    let with = |more: &[(&str, &str)]| request("GET", more);
    let pseudo = |fields: &[(&str, &str)]| {
        fields.iter().flat_map(|(name, value)| field(name, value)).collect::<Vec<u8>>()
    };
    let of_path = |path: &str| {
        let fields = [
            (":method", "GET"),
            (":scheme", "https"),
            (":path", path),
            (":authority", "localhost"),
        ];
        frame(HEADERS, END_HEADERS | END_STREAM, 1, &pseudo(&fields))
    };
    let stream = |protocol: &str| {
        frame(HEADERS, END_HEADERS, 1, &request("CONNECT", &[(":protocol", protocol)]))
    };
    let whole = END_STREAM | END_HEADERS;
    vec![
        ("HTTP again, on a stream", stream("h2c")),
        ("a draft of HTTP/2, on a stream", stream("h2c-14")),
        ("HTTP again, in capitals", stream("HTTP/2.0")),
        ("a protocol that is no token", stream("web socket")),
        ("two protocols", stream("websocket, h2c")),
        ("no protocol", stream("")),
        (
            "a stream of bytes that has a length",
            frame(
                HEADERS,
                END_HEADERS,
                1,
                &request("CONNECT", &[(":protocol", "websocket"), ("content-length", "30")]),
            ),
        ),
        ("a name in capitals", frame(HEADERS, whole, 1, &with(&[("X-A", "1")]))),
        ("a connection field", frame(HEADERS, whole, 1, &with(&[("connection", "close")]))),
        ("a coding", frame(HEADERS, whole, 1, &with(&[("transfer-encoding", "chunked")]))),
        ("an upgrade", frame(HEADERS, whole, 1, &with(&[("upgrade", "h2c")]))),
        ("TE that is not trailers", frame(HEADERS, whole, 1, &with(&[("te", "gzip")]))),
        (
            "a pseudo-field behind a field",
            frame(HEADERS, whole, 1, &with(&[("x-a", "1"), (":path", "/b")])),
        ),
        ("two paths", frame(HEADERS, whole, 1, &with(&[(":path", "/b")]))),
        ("an unknown pseudo-field", frame(HEADERS, whole, 1, &with(&[(":other", "1")]))),
        ("a status in a request", frame(HEADERS, whole, 1, &with(&[(":status", "200")]))),
        ("CR LF in a value", frame(HEADERS, whole, 1, &with(&[("x-a", "1\r\nx-b: 2")]))),
        ("NUL in a value", frame(HEADERS, whole, 1, &with(&[("x-a", "a\0b")]))),
        ("a space before a value", frame(HEADERS, whole, 1, &with(&[("x-a", " 1")]))),
        ("a tab after a value", frame(HEADERS, whole, 1, &with(&[("cookie", "a=1\t")]))),
        ("a space in a name", frame(HEADERS, whole, 1, &with(&[("x a", "1")]))),
        ("a colon in a name", frame(HEADERS, whole, 1, &with(&[("x:a", "1")]))),
        (
            "no path",
            frame(
                HEADERS,
                whole,
                1,
                &pseudo(&[(":method", "GET"), (":scheme", "https"), (":authority", "localhost")]),
            ),
        ),
        ("an empty path", of_path("")),
        ("a query without a path", of_path("?x")),
        (
            "a query without a path, on a stream",
            frame(
                HEADERS,
                END_HEADERS,
                1,
                &pseudo(&[
                    (":method", "CONNECT"),
                    (":protocol", "websocket"),
                    (":scheme", "https"),
                    (":path", "?x"),
                    (":authority", "localhost"),
                ]),
            ),
        ),
        (
            "no method",
            frame(
                HEADERS,
                whole,
                1,
                &pseudo(&[(":scheme", "https"), (":path", "/"), (":authority", "localhost")]),
            ),
        ),
        (
            "more body than its length",
            [
                frame(HEADERS, END_HEADERS, 1, &request("POST", &[("content-length", "2")])),
                frame(DATA, END_STREAM, 1, b"hi there"),
            ]
            .concat(),
        ),
        (
            "less body than its length",
            [
                frame(HEADERS, END_HEADERS, 1, &request("POST", &[("content-length", "9")])),
                frame(DATA, END_STREAM, 1, b"hi"),
            ]
            .concat(),
        ),
        (
            "differing lengths",
            [
                frame(
                    HEADERS,
                    END_HEADERS,
                    1,
                    &request("POST", &[("content-length", "2"), ("content-length", "3")]),
                ),
                frame(DATA, END_STREAM, 1, b"hi"),
            ]
            .concat(),
        ),
        ("a host that differs", frame(HEADERS, whole, 1, &with(&[("host", "other")]))),
        ("an even stream", frame(HEADERS, whole, 2, &with(&[]))),
        ("data on stream 0", frame(DATA, 0, 0, b"hi")),
        ("a frame that is too large", frame(DATA, 0, 1, &[0; 20_000])),
        ("a broken field block", frame(HEADERS, whole, 1, &[0xff, 0xff, 0xff, 0xff, 0xff])),
    ]
}

/// A request with a body, and trailers with these fields.
fn with_trailers(trailers: &[u8]) -> Vec<u8> {
    // `:authority` (static index 1), which goes into the dynamic table.
    let authority = [&[0x41, 9][..], b"localhost"].concat();
    let pseudo = [(":method", "POST"), (":scheme", "https"), (":path", "/")];
    let pseudo = pseudo.iter().flat_map(|(name, value)| field(name, value));
    let head: Vec<u8> = pseudo.chain(authority).chain(field("trailer", "x-sum")).collect();
    [
        frame(HEADERS, END_HEADERS, 1, &head),
        frame(DATA, 0, 1, b"hi"),
        frame(HEADERS, END_HEADERS | END_STREAM, 1, trailers),
    ]
    .concat()
}

/// h2 drops such a field. `:authority` is the newest entry of the dynamic table (index 62), and
/// `:path: /` is in the static one (index 4).
#[test]
fn a_pseudo_header_field_in_trailers_does_not_reach_the_origin() {
    let scene = scene();
    for (trailers, body) in [
        (field(":path", "/other"), "hi"),
        (vec![0xbe], "hi"),
        (vec![0x84], "hi"),
        ([field(":authority", "other"), field("x-sum", "1")].concat(), "hix-sum: 1\r\n"),
    ] {
        let mut client = Http2::connect(&scene.pki, scene.keygate.address(), &scene.good);
        client.send(&with_trailers(&trailers));
        assert_eq!(client.next(), Came::Response(0x88, 1));
        let request = scene.origin.next();
        assert!(request.head.starts_with("POST / HTTP/1.1\r\n"), "{}", request.head);
        assert_eq!(request.fields("host"), ["localhost"]);
        assert_eq!(String::from_utf8_lossy(&request.body), body);
        assert_eq!(scene.origin.untaken(), 0);
    }
}

#[test]
fn requests_that_http_2_forbids_do_not_reach_the_origin() {
    let scene = scene();
    let mut wrong = Vec::new();
    for (what, frames) in forbidden_requests() {
        let mut client = Http2::connect(&scene.pki, scene.keygate.address(), &scene.good);
        client.send(&frames);
        let came = client.next();
        let is_refused = matches!(came, Came::Reset(..) | Came::GoAway(_))
            || matches!(came, Came::Response(first, _) if first != 0x88);
        if !is_refused || scene.origin.untaken() > 0 {
            wrong.push(format!("{what}: {came:?}"));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn a_flood_of_frames_ends_its_own_connection() {
    let scene = scene();
    let connect = || Http2::connect(&scene.pki, scene.keygate.address(), &scene.good);
    let mut others = connect();
    // GOAWAY is lost if the kernel resets the connection before the client reads it.
    let is_calmed = |came: &Came| matches!(came, Came::GoAway(ENHANCE_YOUR_CALM) | Came::Nothing);
    // Fields without an end (CVE-2024-27316).
    let mut client = connect();
    client.send(&frame(HEADERS, END_STREAM, 1, &request("GET", &[])));
    for _ in 0..2000 {
        client.send(&frame(CONTINUATION, 0, 1, &field("x-a", &"x".repeat(100))));
    }
    let came = client.next();
    assert!(is_calmed(&came), "{came:?}");
    // Streams that the client resets immediately (CVE-2023-44487).
    let mut client = connect();
    let mut frames = Vec::new();
    for stream in (1..4000).step_by(2) {
        frames.extend(frame(HEADERS, END_STREAM | END_HEADERS, stream, &request("GET", &[])));
        frames.extend(frame(RST_STREAM, 0, stream, &8_u32.to_be_bytes()));
    }
    client.send(&frames);
    let came = client.next();
    assert!(is_calmed(&came), "{came:?}");
    // Settings with an invalid value.
    let mut client = connect();
    client.send(&frame(SETTINGS, 0, 0, b"\x00\x05\x00\x00\x00\x01"));
    assert_eq!(client.next(), Came::GoAway(PROTOCOL_ERROR));
    others.send_get(1);
    assert_eq!(others.next(), Came::Response(0x88, 1), "other connections are not affected");
}

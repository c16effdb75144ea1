//! Plain HTTP sent to a TLS port: recognised by its first bytes, answered with 400.

use std::io;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// The starts of HTTP requests, long enough to tell them from other protocols. `PRI * HTTP` is
/// the preface of HTTP/2 without TLS.
const REQUEST_STARTS: [&[u8]; 9] = [
    b"CONNECT ",
    b"DELETE /",
    b"GET /",
    b"HEAD /",
    b"OPTIONS ",
    b"PATCH /",
    b"POST /",
    b"PRI * HTTP",
    b"PUT /",
];

/// The response to plain HTTP.
const RESPONSE: &[u8] = b"HTTP/1.1 400 Bad Request\r\n\
    content-type: text/plain; charset=utf-8\r\n\
    content-length: 59\r\n\
    connection: close\r\n\r\n\
    400 Bad Request: this port takes HTTPS, use https:// here.\n";

/// A fatal `decode_error` alert (RFC 8446, section 6) as a TLS record, as rustls sends it for bytes
/// that are not TLS.
const DECODE_ERROR: [u8; 7] = [21, 3, 3, 0, 2, 2, 50];

/// The protocol that a connection begins with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FirstBytes {
    /// HTTP without TLS. It got a 400.
    PlainHttp,
    /// Another protocol, which began like HTTP. It got an alert.
    Other,
    /// TLS, or bytes for rustls to reject. None of them was read.
    Unread,
}

/// Looks at the first byte of a connection. If it may begin an HTTP request, reads as many bytes as
/// decide it, and responds.
///
/// # Errors
/// Returns an error if the connection fails or ends.
pub(crate) async fn respond(tcp: &mut TcpStream) -> io::Result<FirstBytes> {
    let mut first = [0];
    // One system call for each handshake: rustls would send its alert before the bytes could be
    // looked at.
    if tcp.peek(&mut first).await? == 0 || !may_begin(&first) {
        return Ok(FirstBytes::Unread);
    }
    let mut start = Vec::new();
    while may_begin(&start) && !is_request(&start) {
        start.push(tcp.read_u8().await?);
    }
    let is_http = is_request(&start);
    // A client that has closed needs no response.
    let _ = tcp.write_all(if is_http { RESPONSE } else { &DECODE_ERROR }).await;
    Ok(if is_http { FirstBytes::PlainHttp } else { FirstBytes::Other })
}

fn may_begin(bytes: &[u8]) -> bool {
    REQUEST_STARTS.iter().any(|start| start.starts_with(bytes))
}

fn is_request(bytes: &[u8]) -> bool {
    REQUEST_STARTS.contains(&bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_response_has_the_length_that_it_states() {
        let text = std::str::from_utf8(RESPONSE).unwrap();
        let (head, body) = text.split_once("\r\n\r\n").unwrap();
        assert!(head.contains(&format!("content-length: {}\r\n", body.len())), "{}", body.len());
    }

    #[test]
    fn http_is_decided_by_its_first_bytes() {
        for (bytes, is_http) in [
            (&b"GET / HTTP/1.1\r\n"[..], true),
            (b"POST /", true),
            (b"PRI * HTTP/2.0\r\n\r\nSM", true),
            (b"OPTIONS * HTTP/1.1", true),
            (b"GET key\r\n", false),
            (b"PING\r\n", false),
            (b"EHLO a.example\r\n", false),
            (b"\x16\x03\x01", false),
            (b"get / HTTP/1.1", false),
        ] {
            let decided = (1..=bytes.len()).find(|length| !may_begin(&bytes[..*length]));
            let request = (1..=bytes.len()).find(|length| is_request(&bytes[..*length]));
            assert_eq!(request.is_some(), is_http, "{bytes:?}");
            assert!(is_http || decided.is_some(), "{bytes:?}");
        }
    }
}

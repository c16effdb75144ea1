//! The ClientHello, which begins a connection. Plain HTTP sent to a TLS port gets 400.

use std::io;

use keygate_core::tls::HandshakeResult;
use keygate_wire::permit::ledger::Holder;
use keygate_wire::tls_stream::{ClientHello, DECODE_ERROR, HelloError};
use smallvec::SmallVec;
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

/// Length of the longest request start, in bytes.
const LONGEST_START: usize = 10;

/// The response to plain HTTP.
const RESPONSE: &[u8] = b"HTTP/1.1 400 Bad Request\r\n\
    content-type: text/plain; charset=utf-8\r\n\
    content-length: 59\r\n\
    connection: close\r\n\r\n\
    400 Bad Request: this port takes HTTPS, use https:// here.\n";

/// Whether plain HTTP gets a response of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PlainHttp {
    /// Plain HTTP gets 400.
    Detect,
    /// Plain HTTP gets an alert, as other bytes that are not TLS do.
    Ignore,
}

/// A connection that began with no ClientHello. The client got a response if it can read one.
#[derive(Debug)]
pub(crate) struct BadHello {
    pub(crate) result: HandshakeResult,
    /// The error of rustls or of the network.
    pub(crate) error: Option<io::Error>,
    pub(crate) tcp: TcpStream,
}

/// Waits for the ClientHello. rustls does not parse the bytes if they may begin an HTTP request,
/// because it would send an alert.
///
/// # Errors
/// Returns an error if the connection fails or ends, or begins with other bytes than a ClientHello.
pub(crate) async fn read(
    tcp: TcpStream,
    plain_http: PlainHttp,
    holder: Holder,
) -> Result<ClientHello<TcpStream>, BadHello> {
    let mut hello = ClientHello::new(tcp, holder);
    loop {
        match hello.read().await {
            Ok(0) => return Err(failed(hello.into_io(), io::ErrorKind::UnexpectedEof.into())),
            Ok(_) => {}
            Err(error) => return Err(failed(hello.into_io(), error)),
        }
        let bytes = hello.bytes();
        if plain_http == PlainHttp::Detect && bytes.first().is_some_and(|byte| may_begin(&[*byte]))
        {
            let start = bytes.iter().copied().take(LONGEST_START).collect();
            return Err(reject(hello.into_io(), start).await);
        }
        match hello.parse() {
            Ok(true) => return Ok(hello),
            Ok(false) => {}
            Err(HelloError { error, alert }) => {
                let mut tcp = hello.into_io();
                let _ = tcp.write_all(&alert).await; // a client that has closed needs no alert
                return Err(failed(tcp, error));
            }
        }
    }
}

fn failed(tcp: TcpStream, error: io::Error) -> BadHello {
    BadHello { result: HandshakeResult::from_error(&error), error: Some(error), tcp }
}

/// The first bytes of a connection, as many as decide whether they begin an HTTP request.
type FirstBytes = SmallVec<[u8; LONGEST_START]>;

/// Reads as many bytes as decide whether `start` begins an HTTP request, and responds.
async fn reject(mut tcp: TcpStream, mut start: FirstBytes) -> BadHello {
    while may_begin(&start) && !is_request(&start) {
        match tcp.read_u8().await {
            Ok(byte) => start.push(byte),
            Err(_) => return BadHello { result: HandshakeResult::ClientGone, error: None, tcp },
        }
    }
    let is_http = is_request(&start);
    // A client that has closed needs no response.
    let _ = tcp.write_all(if is_http { RESPONSE } else { &DECODE_ERROR }).await;
    let result = if is_http { HandshakeResult::PlainHttp } else { HandshakeResult::NotTls };
    BadHello { result, error: None, tcp }
}

/// Whether more bytes after these can begin a request.
fn may_begin(bytes: &[u8]) -> bool {
    REQUEST_STARTS.iter().any(|start| start.starts_with(bytes))
}

fn is_request(bytes: &[u8]) -> bool {
    REQUEST_STARTS.iter().any(|start| bytes.starts_with(start))
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

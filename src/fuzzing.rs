//! Entry points of the fuzz targets into parsers of this crate. Not a part of the API.

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use hyper::Response;
use rustls::ServerConfig;
use tokio::io::{AsyncRead, ReadBuf};

use crate::permit::ledger::Holder;
use crate::permit::{BufferClass, ClientKey};
use crate::tls_stream::ClientHello;
use crate::{ask, proxy};

/// The lengths of head and body of the HTTP/1 question at the beginning of `input`; `None` if the
/// head is not whole.
///
/// # Errors
/// Returns the reason if the question is malformed.
pub fn question(input: &[u8]) -> Result<Option<(usize, Option<u64>)>, &'static str> {
    ask::request_lengths(input)
}

/// A response with its body, and its length in bytes.
pub type WholeResponse = (Response<Vec<u8>>, usize);

/// The HTTP/1.1 response of a server in `bytes`, which arrive in pieces of `size` bytes, and its
/// length; `None` if it is not whole.
///
/// # Errors
/// Returns the reason if the response is malformed.
pub fn response(bytes: &[u8], size: usize, is_head: bool) -> Result<Option<WholeResponse>, String> {
    proxy::parse_response(bytes, size, is_head).map_err(|error| error.to_string())
}

/// The address in the PROXY header at the beginning of `bytes`, and its length.
///
/// # Errors
/// Returns an error if the header is malformed or not whole.
pub fn proxy_header(bytes: &[u8]) -> io::Result<(Option<SocketAddr>, usize)> {
    let mut rest = bytes;
    let address = poll_once(proxy::read_proxy_header(&mut rest))?;
    Ok((address, bytes.len().saturating_sub(rest.len())))
}

/// How a handshake ended whose client sent `bytes`, in pieces of `size` bytes, and closed: the
/// server name of the ClientHello, and whether the handshake was complete.
///
/// # Errors
/// Returns an error if the bytes begin with no ClientHello.
pub fn handshake(
    bytes: &[u8],
    size: usize,
    config: Arc<ServerConfig>,
) -> io::Result<(Option<String>, bool)> {
    let client = ClientKey::before_proof(IpAddr::V4(Ipv4Addr::LOCALHOST));
    let holder = Holder { client, class: BufferClass::Handshake };
    let io = tokio::io::join(Pieces { rest: bytes, size: size.max(1) }, tokio::io::sink());
    poll_once(async {
        let mut hello = ClientHello::new(io, holder);
        loop {
            if hello.read().await? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            if hello.parse().map_err(|problem| problem.error)? {
                break;
            }
        }
        let name = hello.server_name().map(str::to_owned);
        Ok((name, hello.accept(config).await.is_ok()))
    })
}

/// Bytes that arrive in pieces without a pause.
struct Pieces<'a> {
    rest: &'a [u8],
    size: usize,
}

impl AsyncRead for Pieces<'_> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let count = self.size.min(self.rest.len()).min(buffer.remaining());
        let (piece, rest) = self.rest.split_at(count);
        buffer.put_slice(piece);
        self.rest = rest;
        Poll::Ready(Ok(()))
    }
}

/// The result of a future that waits for nothing.
fn poll_once<T>(future: impl Future<Output = io::Result<T>>) -> io::Result<T> {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(result) => result,
        Poll::Pending => Err(io::Error::other("it waits although all bytes are there")),
    }
}

//! One HTTP/1.1 request over a connection of its own, in clear text or over TLS.
//!
//! Redirects are not followed, and no proxy variables are read: a URL is the operator's. Decision:
//! `docs/decisions/fetch.md`.

use std::convert::Infallible;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::pin::pin;
use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use hyper::body::{Body, Incoming};
use hyper::client::conn::http1;
use hyper::http::request::Builder;
use hyper::{Method, Request, Response, header};
use hyper_util::rt::TokioIo;
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;

use crate::config::SourceUrl;
use crate::regular_file::{FileSize, without_numbers};
use crate::resolver::Resolver;

/// Maximum size of the head of a response, in bytes.
const MAX_HEAD: usize = 16 << 10;
/// The `User-Agent` of a request. It names no version, because the server needs none.
const USER_AGENT: &str = "keygate";

/// Why there is no response.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ExchangeError {
    #[error("the head of the response is larger than {}", FileSize(MAX_HEAD as u64))]
    HeadTooLarge,
    #[error("TLS handshake failed: {0}")]
    Tls(String),
    #[error("{0}")]
    Unreachable(String),
    #[error("the name has no address: {0}")]
    Unresolved(String),
}

/// A connection to a server.
pub(crate) type Connection = Box<dyn ByteStream>;

/// A stream of bytes in both directions.
pub(crate) trait ByteStream: AsyncRead + AsyncWrite + Unpin + Send {}

impl<T: AsyncRead + AsyncWrite + Unpin + Send> ByteStream for T {}

/// A GET request for `path` at the server of `url`.
pub(crate) fn get(url: &SourceUrl, path: &str) -> Builder {
    Request::get(path)
        .header(header::HOST, url.authority())
        .header(header::USER_AGENT, USER_AGENT)
        .header(header::CONNECTION, "close")
}

/// A POST request for `path` at the server of `url`.
pub(crate) fn post(url: &SourceUrl, path: &str) -> Builder {
    get(url, path).method(Method::POST)
}

/// Connects to the server of `url`, over TLS if `tls` is given. The caller enforces the deadline;
/// each address has an equal part of the time until then.
pub(crate) async fn connect(
    url: &SourceUrl,
    tls: Option<&Arc<ClientConfig>>,
    resolver: &Resolver,
    deadline: Instant,
) -> Result<Connection, ExchangeError> {
    let tcp = connect_tcp(url, resolver, deadline).await?;
    let Some(tls) = tls else { return Ok(Box::new(tcp)) };
    let name = ServerName::try_from(url.host.clone()).map_err(unreachable)?;
    let stream = TlsConnector::from(Arc::clone(tls)).connect(name, tcp).await;
    let failed = |error| ExchangeError::Tls(crate::tls::explain(&error).to_string());
    Ok(Box::new(stream.map_err(failed)?))
}

async fn connect_tcp(
    url: &SourceUrl,
    resolver: &Resolver,
    deadline: Instant,
) -> Result<TcpStream, ExchangeError> {
    let left = || deadline.saturating_duration_since(Instant::now());
    let addresses: Arc<[SocketAddr]> = match url.host.parse::<IpAddr>() {
        Ok(address) => [SocketAddr::new(address, 0)].into(),
        Err(_) => {
            let resolved = resolver.resolve(&url.host, left()).await;
            resolved.map_err(|error| ExchangeError::Unresolved(error.to_string()))?
        }
    };
    let mut last_error = io::Error::from(io::ErrorKind::AddrNotAvailable);
    for (index, mut address) in addresses.iter().copied().enumerate() {
        address.set_port(url.port);
        // A name such as localhost is authenticated only if it leads to this machine.
        if !url.is_secure && url.is_authenticated() && !address.ip().is_loopback() {
            last_error = io::Error::other(format!("{address} is not on this machine"));
            continue;
        }
        let part = left() / u32::try_from(addresses.len() - index).unwrap_or(u32::MAX);
        match timeout(part, TcpStream::connect(address)).await {
            Ok(Ok(tcp)) => {
                tcp.set_nodelay(true).map_err(unreachable)?;
                return Ok(tcp);
            }
            Ok(Err(error)) => last_error = error,
            Err(_) => last_error = io::ErrorKind::TimedOut.into(),
        }
    }
    Err(unreachable(last_error))
}

/// Sends `request` over `connection`, and calls `read` with the response. The connection is driven
/// while `read` reads the body.
pub(crate) async fn exchange<B, T, E>(
    connection: Connection,
    request: Request<B>,
    read: impl AsyncFnOnce(Response<Incoming>) -> Result<T, E>,
) -> Result<T, E>
where
    B: Body<Data = Bytes, Error = Infallible> + 'static,
    E: From<ExchangeError>,
{
    let io = TokioIo::new(connection);
    let handshake = http1::Builder::new().max_buf_size(MAX_HEAD).handshake(io).await;
    let (mut sender, connection) = handshake.map_err(http_error)?;
    let exchange = async {
        let response = sender.send_request(request).await.map_err(http_error)?;
        read(response).await
    };
    let (mut exchange, connection) = (pin!(exchange), pin!(connection));
    tokio::select! {
        outcome = &mut exchange => outcome,
        // The connection has ended. The exchange has what arrived, or an error.
        _ = connection => exchange.await,
    }
}

/// The error for a request that could not be sent.
pub(crate) fn unreachable(error: impl std::fmt::Display) -> ExchangeError {
    ExchangeError::Unreachable(without_numbers(&error.to_string()))
}

fn http_error(error: hyper::Error) -> ExchangeError {
    if error.is_parse_too_large() {
        return ExchangeError::HeadTooLarge;
    }
    ExchangeError::Unreachable(with_causes(&error))
}

/// `error` with the errors that caused it.
pub(crate) fn with_causes(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text = format!("{text}: {cause}");
        source = cause.source();
    }
    without_numbers(&text)
}

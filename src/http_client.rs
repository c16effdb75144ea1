//! One HTTP/1.1 request over a connection of its own, in clear text or over TLS.
//!
//! Redirects are not followed, and no proxy variables are read: a URL is the operator's. Decision:
//! `docs/decisions/fetch.md`.

mod secret_fields;

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use http_body_util::Empty;
use hyper::body::{Body, Incoming};
use hyper::client::conn::http1;
use hyper::http::request::Builder;
use hyper::{HeaderMap, Method, Request, Response, header};
use hyper_util::rt::TokioIo;
use keygate_core::regular_file::{FileSize, without_numbers};
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

pub(crate) use self::secret_fields::{MAX_HEADERS, parse_headers, secret_value};
use crate::config::SourceUrl;
use crate::resolver::{ConnectError, Resolver};

/// Maximum size of the head of a response, in bytes.
const MAX_HEAD: usize = 16 << 10;
/// The `User-Agent` of a request. It names no version, because the server needs none.
const USER_AGENT: &str = "keygate";

/// Why there is no response.
#[derive(Debug, thiserror::Error)]
pub enum ExchangeError {
    /// The head of the response is too large.
    #[error("the head of the response is larger than {}", FileSize(MAX_HEAD as u64))]
    HeadTooLarge,
    /// The TLS handshake failed.
    #[error("TLS handshake failed: {0}")]
    Tls(String),
    /// The server refuses the connection, or the network does not lead to it.
    #[error("{0}")]
    Unreachable(String),
    /// The name of the server is not known.
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
    match tls {
        Some(tls) => secured(tcp, url, tls).await,
        None => Ok(Box::new(tcp)),
    }
}

/// Connects as [`connect`] does, through the HTTP proxy at `proxy`. Without TLS, the request must
/// have the absolute form (RFC 9112, section 3.2.2). `fields` are sent with CONNECT.
pub(crate) async fn connect_through(
    proxy: &SourceUrl,
    fields: &HeaderMap,
    url: &SourceUrl,
    tls: Option<&Arc<ClientConfig>>,
    resolver: &Resolver,
    deadline: Instant,
) -> Result<Connection, ExchangeError> {
    let tcp = connect_tcp(proxy, resolver, deadline).await?;
    match tls {
        Some(tls) => secured(tunnel(tcp, fields, url).await?, url, tls).await,
        None => Ok(Box::new(tcp)),
    }
}

/// Lets the proxy at the other end of `tcp` connect to the server of `url` (RFC 9110, section
/// 9.3.6).
async fn tunnel(
    tcp: TcpStream,
    fields: &HeaderMap,
    url: &SourceUrl,
) -> Result<impl ByteStream + use<>, ExchangeError> {
    let authority = url.authority_with_port();
    let mut request = Request::connect(&authority)
        .header(header::HOST, &authority)
        .header(header::USER_AGENT, USER_AGENT)
        .body(Empty::<Bytes>::new())
        .map_err(unreachable)?;
    request.headers_mut().extend(fields.clone());
    let handshake = http1::Builder::new().max_buf_size(MAX_HEAD).handshake(TokioIo::new(tcp));
    let (mut sender, connection) = handshake.await.map_err(http_error)?;
    let connect = async {
        let response = sender.send_request(request).await.map_err(http_error)?;
        if !response.status().is_success() {
            let status = response.status();
            return Err(unreachable(format_args!("the proxy responds {status} to CONNECT")));
        }
        hyper::upgrade::on(response).await.map_err(http_error)
    };
    let (mut connect, connection) = (pin!(connect), pin!(connection.with_upgrades()));
    let stream = tokio::select! {
        outcome = &mut connect => outcome,
        _ = connection => connect.await,
    };
    Ok(TokioIo::new(stream?))
}

/// The TLS connection to the server of `url` over `stream`.
async fn secured(
    stream: impl ByteStream + 'static,
    url: &SourceUrl,
    tls: &Arc<ClientConfig>,
) -> Result<Connection, ExchangeError> {
    let name = ServerName::try_from(url.host.clone()).map_err(unreachable)?;
    let stream = TlsConnector::from(Arc::clone(tls)).connect(name, stream).await;
    let failed = |error| ExchangeError::Tls(keygate_core::tls::explain(&error).to_string());
    Ok(Box::new(stream.map_err(failed)?))
}

async fn connect_tcp(
    url: &SourceUrl,
    resolver: &Resolver,
    deadline: Instant,
) -> Result<TcpStream, ExchangeError> {
    // A name such as localhost is authenticated only if it leads to this machine.
    let is_local = !url.is_secure && url.is_authenticated();
    let permits = |address: SocketAddr| match is_local && !address.ip().is_loopback() {
        true => Err(io::Error::other(format!("{address} is not on this machine"))),
        false => Ok(()),
    };
    let left = deadline.saturating_duration_since(Instant::now());
    let tcp = resolver.connect(&url.host, url.port, left, permits).await;
    let tcp = tcp.map_err(|error| match error {
        ConnectError::Io(error) => unreachable(error),
        ConnectError::Resolve(error) => ExchangeError::Unresolved(error.to_string()),
    })?;
    tcp.set_nodelay(true).map_err(unreachable)?;
    Ok(tcp)
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
    if error.is_incomplete_message() {
        return ExchangeError::Unreachable(
            "the server closed the connection without a response".into(),
        );
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

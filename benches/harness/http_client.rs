//! An HTTP client over TLS: HTTP/1.1 and HTTP/2.

use std::net::SocketAddr;
use std::sync::Arc;

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::body::{Body, Incoming};
use hyper::client::conn::{http1, http2};
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::{TokioExecutor, TokioIo};
use rustls::{ClientConfig, HandshakeKind};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use super::origin::MEBIBYTE;

pub type Failure = Box<dyn std::error::Error + Send + Sync>;
type Http1 = http1::SendRequest<Full<Bytes>>;
type Http2 = http2::SendRequest<Full<Bytes>>;

/// An open connection.
pub enum Sender {
    Http1(Http1),
    Http2(Http2),
}

impl Sender {
    /// Opens a connection over TLS.
    pub async fn open(
        address: SocketAddr,
        config: &Arc<ClientConfig>,
        http2: bool,
    ) -> Result<Self, Failure> {
        Ok(Self::open_with_kind(address, config, http2).await?.0)
    }

    async fn open_with_kind(
        address: SocketAddr,
        config: &Arc<ClientConfig>,
        http2: bool,
    ) -> Result<(Self, HandshakeKind), Failure> {
        let tcp = TcpStream::connect(address).await?;
        tcp.set_nodelay(true)?;
        let connector = TlsConnector::from(Arc::clone(config));
        let tls = connector.connect("localhost".try_into()?, tcp).await?;
        let kind = tls.get_ref().1.handshake_kind().ok_or("no handshake")?;
        let tls = TokioIo::new(tls);
        // A connection ends with its sender; errors reach the requests.
        if http2 {
            let (sender, connection) = http2::handshake(TokioExecutor::new(), tls).await?;
            tokio::spawn(async { connection.await.ok() });
            Ok((Self::Http2(sender), kind))
        } else {
            let (sender, connection) = http1::handshake(tls).await?;
            tokio::spawn(async { connection.await.ok() });
            Ok((Self::Http1(sender), kind))
        }
    }

    /// One sender for each request that is in flight at one time.
    pub fn for_streams(self, streams: usize) -> Vec<Self> {
        match self {
            Self::Http1(_) => vec![self],
            Self::Http2(sender) => (0..streams).map(|_| Self::Http2(sender.clone())).collect(),
        }
    }

    /// Sends a request, and reads its response to the end.
    pub async fn send(&mut self, path: &str, body: usize) -> Result<(), Failure> {
        static BODY: [u8; MEBIBYTE] = [b'u'; MEBIBYTE];
        let body = Full::new(Bytes::from_static(&BODY[..body]));
        let method = if body.size_hint().exact() == Some(0) { "GET" } else { "POST" };
        let request = Request::builder().method(method);
        let request = request.header("accept", "*/*").header("user-agent", "compare");
        let response = match self {
            Self::Http1(sender) => {
                sender.ready().await?;
                let request = request.uri(path).header("host", "localhost");
                sender.send_request(request.body(body)?).await?
            }
            Self::Http2(sender) => {
                sender.ready().await?;
                let request = request.uri(format!("https://localhost{path}"));
                sender.send_request(request.body(body)?).await?
            }
        };
        read(response).await
    }
}

/// Opens a connection, sends a GET and closes.
pub async fn handshake_and_get(
    address: SocketAddr,
    config: &Arc<ClientConfig>,
) -> Result<HandshakeKind, Failure> {
    let (mut sender, kind) = Sender::open_with_kind(address, config, false).await?;
    sender.send("/", 0).await?;
    Ok(kind)
}

async fn read(response: Response<Incoming>) -> Result<(), Failure> {
    if response.status() != StatusCode::OK {
        return Err(format!("status {}", response.status()).into());
    }
    let mut body = response.into_body();
    while let Some(frame) = body.frame().await {
        frame?;
    }
    Ok(())
}

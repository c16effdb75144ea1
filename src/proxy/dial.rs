//! Connecting to a server of an upstream: TCP or a Unix socket, in the clear or with TLS.

use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};
use tokio::time::timeout;
use tokio_rustls::TlsConnector;

use crate::config::{AlpnProtocol, Scheme, ServerAddress, ServerConfig, UpstreamConfig};

/// A connection to a server, whatever it runs over.
pub(super) trait Io: AsyncRead + AsyncWrite + fmt::Debug + Unpin {}

impl<T: AsyncRead + AsyncWrite + fmt::Debug + Unpin> Io for T {}

/// Where a server is and how it is spoken to.
#[derive(Debug)]
pub(super) struct Dialer {
    server: ServerConfig,
    tls: Option<Tls>,
    within: Duration,
}

#[derive(Debug)]
struct Tls {
    config: Arc<ClientConfig>,
    /// The same, without HTTP/2.
    http1: Arc<ClientConfig>,
    /// What its certificate must be for; `None` if no certificate can be for it.
    name: Option<ServerName<'static>>,
}

/// Why a server could not be connected to.
#[derive(Debug, thiserror::Error)]
pub(super) enum DialError {
    #[error("cannot connect to {server}: {source}")]
    Connect { server: String, source: io::Error },
    #[error("no name to look for in the certificate of {server}; give upstream.tls.server_name")]
    NoName { server: String },
    #[error("no connection to {server} within {within:?}")]
    Timeout { server: String, within: Duration },
    #[error("cannot speak TLS with {server}: {source}")]
    Tls { server: String, source: io::Error },
}

impl DialError {
    pub(super) fn is_timeout(&self) -> bool {
        matches!(self, Self::Timeout { .. })
    }
}

impl Dialer {
    pub(super) fn new(
        upstream: &UpstreamConfig,
        server: &ServerConfig,
        tls: Option<&Arc<ClientConfig>>,
    ) -> Self {
        let named = upstream.tls.as_ref().and_then(|tls| tls.server_name.clone());
        let name = named.or_else(|| match &server.address {
            ServerAddress::Tcp { host, .. } => Some(host.clone()),
            ServerAddress::Unix(_) => None,
        });
        let tls = tls.filter(|_| server.scheme.is_secure()).map(|config| {
            let mut http1 = ClientConfig::clone(config);
            http1.alpn_protocols = vec![AlpnProtocol::Http11.as_bytes().to_vec()];
            let name = name.and_then(|name| ServerName::try_from(name).ok());
            Tls { config: Arc::clone(config), http1: Arc::new(http1), name }
        });
        Self { server: server.clone(), tls, within: upstream.connect_timeout }
    }

    pub(super) fn server(&self) -> &ServerConfig {
        &self.server
    }

    /// Connects, and says whether the server speaks HTTP/2.
    pub(super) async fn dial(&self) -> Result<(Box<dyn Io>, bool), DialError> {
        self.within(self.connect(false)).await
    }

    /// Connects for HTTP/1.1, whatever else the server speaks.
    pub(super) async fn dial_http1(&self) -> Result<Box<dyn Io>, DialError> {
        self.within(self.connect(true)).await.map(|(io, _)| io)
    }

    async fn within<T>(
        &self,
        connecting: impl Future<Output = Result<T, DialError>>,
    ) -> Result<T, DialError> {
        let late = |_| DialError::Timeout { server: self.server.to_string(), within: self.within };
        timeout(self.within, connecting).await.map_err(late)?
    }

    async fn connect(&self, only_http1: bool) -> Result<(Box<dyn Io>, bool), DialError> {
        let server = || self.server.to_string();
        let connect = |source| DialError::Connect { server: server(), source };
        let tcp = match &self.server.address {
            ServerAddress::Unix(path) => {
                let unix = UnixStream::connect(path).await.map_err(connect)?;
                return Ok((Box::new(unix), self.server.scheme == Scheme::H2c));
            }
            ServerAddress::Tcp { host, port } => {
                TcpStream::connect((host.as_str(), *port)).await.map_err(connect)?
            }
        };
        tcp.set_nodelay(true).map_err(connect)?;
        let Some(tls) = &self.tls else {
            return Ok((Box::new(tcp), self.server.scheme == Scheme::H2c));
        };
        let config = if only_http1 { &tls.http1 } else { &tls.config };
        let name = tls.name.clone().ok_or_else(|| DialError::NoName { server: server() })?;
        let stream = TlsConnector::from(Arc::clone(config)).connect(name, tcp).await;
        let stream = stream.map_err(|source| DialError::Tls { server: server(), source })?;
        let is_http2 = stream.get_ref().1.alpn_protocol() == Some(AlpnProtocol::H2.as_bytes());
        Ok((Box::new(stream), is_http2))
    }
}

//! Connecting to a server of an upstream: TCP or a Unix socket, with or without TLS.

use std::sync::Arc;
use std::time::Duration;
use std::{fmt, io};

use keygate_core::regular_file::cause;
use keygate_core::tls::KeyExchange;
use keygate_wire::keep_alive::detect_dead_peer;
use keygate_wire::permit::{ClientKey, ClientShares, Count, CountGuard, ShareGuard};
use prometheus::IntGauge;
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use super::server_state::ServerState;
use crate::config::{
    AlpnProtocol, Scheme, ServerAddress, ServerConfig, ServiceConfig, UpstreamConfig, UpstreamHttp,
};
use crate::resolver::{ConnectError, ResolveError, Resolver};

/// A connection to a server: TCP or a Unix socket, with or without TLS.
pub(crate) trait Io: AsyncRead + AsyncWrite + fmt::Debug + Unpin {
    /// Makes the close of a TCP connection a reset: the bytes so far are not all of them.
    fn reset_on_close(&self) {}
}

impl Io for TcpStream {
    fn reset_on_close(&self) {
        // On an error the connection has failed already.
        let _ = self.set_zero_linger();
    }
}

impl Io for TlsStream<TcpStream> {
    fn reset_on_close(&self) {
        self.get_ref().0.reset_on_close();
    }
}

impl Io for UnixStream {}

/// The version of HTTP that a server speaks on a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum HttpVersion {
    Http1,
    Http2,
}

/// A new connection, and the version that ALPN or the scheme chose.
pub(crate) struct Dialed {
    pub(crate) io: Box<dyn Io>,
    pub(crate) version: HttpVersion,
    pub(crate) key_exchange: Option<KeyExchange>,
}

/// The limit of open connections to all servers of a service, from one worker. Clones share it.
#[derive(Debug, Clone)]
pub(crate) struct ConnectionLimit {
    open: Count,
    max: usize,
    /// Connections that carry a request of HTTP/1.1 or a tunnel, by client.
    shares: ClientShares,
}

/// Counts an open connection to a server, in the limit and in the metric.
#[derive(Debug)]
pub(crate) struct ConnectionGuard {
    _count: CountGuard,
    /// The share of the client, if the connection is for one client.
    share: Option<ShareGuard>,
    metric: IntGauge,
    server: Arc<ServerState>,
}

impl Drop for ConnectionGuard {
    fn drop(&mut self) {
        self.metric.dec();
        self.server.end_connection();
    }
}

impl ConnectionGuard {
    /// Holds the share of a client, because the connection has become a tunnel.
    pub(crate) fn hold(&mut self, share: ShareGuard) {
        self.share = Some(share);
    }
}

impl ConnectionLimit {
    pub(crate) fn new(max: usize) -> Self {
        Self { open: Count::default(), max, shares: ClientShares::default() }
    }

    /// Takes a connection from the share of a client; `None` if the client has its share.
    pub(crate) fn share(&self, client: ClientKey) -> Option<ShareGuard> {
        let free = self.max.saturating_sub(self.shares.total());
        self.shares.take(client, free)
    }

    pub(crate) fn is_reached(&self) -> bool {
        self.open.get() >= self.max
    }

    /// Counts a connection while the guard lives; `None` if the limit is reached.
    pub(crate) fn enter(
        &self,
        metric: &IntGauge,
        server: &Arc<ServerState>,
        share: Option<ShareGuard>,
    ) -> Option<ConnectionGuard> {
        if self.is_reached() {
            return None;
        }
        metric.inc();
        server.begin_connection();
        let (_count, metric, server) = (self.open.enter(), metric.clone(), Arc::clone(server));
        Some(ConnectionGuard { _count, share, metric, server })
    }
}

/// Opens connections to one server.
#[derive(Debug)]
pub(crate) struct Dialer {
    service: Arc<ServiceConfig>,
    server: ServerConfig,
    tls: Option<ServerTls>,
    resolver: Resolver,
}

#[derive(Debug)]
struct ServerTls {
    config: Arc<ClientConfig>,
    /// A copy of `config` that offers HTTP/1.1 only.
    http1: Arc<ClientConfig>,
    /// The name in the server's certificate; `None` if the address has none.
    name: Option<ServerName<'static>>,
}

/// An error while connecting to a server.
#[derive(Debug, thiserror::Error)]
pub(crate) enum DialError {
    #[error("cannot connect to {server}: {}", cause(source))]
    Connect { server: String, source: io::Error },
    #[error("no name to expect in the certificate of {server}: set upstream.tls.server_name")]
    NoName { server: String },
    #[error("cannot resolve the host of {server}: {source}")]
    Resolve { server: String, source: ResolveError },
    #[error("no connection to {server} within {timeout:?}")]
    Timeout { server: String, timeout: Duration },
    #[error("TLS handshake with {server} failed: {}", keygate_core::tls::explain(source))]
    Tls { server: String, source: io::Error },
}

impl DialError {
    /// Whether `connect_timeout` has expired.
    pub(crate) fn is_timeout(&self) -> bool {
        match self {
            Self::Timeout { .. } | Self::Resolve { source: ResolveError::TimedOut, .. } => true,
            Self::Connect { .. }
            | Self::NoName { .. }
            | Self::Resolve { .. }
            | Self::Tls { .. } => false,
        }
    }

    /// Whether this process or its host lacks a resource, such as descriptors or ports.
    pub(crate) fn is_shortage(&self) -> bool {
        match self {
            Self::Connect { source, .. } | Self::Tls { source, .. } => {
                source.raw_os_error().is_some_and(|code| SHORTAGES.contains(&code))
            }
            Self::NoName { .. } | Self::Resolve { .. } | Self::Timeout { .. } => false,
        }
    }

    /// Whether the error says something about the server. A shortage and a failure of the resolver
    /// do not.
    pub(crate) fn is_of_server(&self) -> bool {
        match self {
            Self::Resolve { source, .. } => matches!(source, ResolveError::NotFound(_)),
            Self::Connect { .. }
            | Self::NoName { .. }
            | Self::Timeout { .. }
            | Self::Tls { .. } => !self.is_shortage(),
        }
    }
}

/// Errors of `socket` and `connect` that are no fault of the server: no descriptors, no local port,
/// no memory.
const SHORTAGES: [i32; 5] =
    [libc::EADDRNOTAVAIL, libc::EMFILE, libc::ENFILE, libc::ENOBUFS, libc::ENOMEM];

impl Dialer {
    pub(crate) fn new(
        service: &Arc<ServiceConfig>,
        server: &ServerConfig,
        tls: Option<&Arc<ClientConfig>>,
        resolver: &Resolver,
    ) -> Self {
        let upstream = &service.upstream;
        let named = upstream.tls.as_ref().and_then(|tls| tls.server_name.clone());
        let name = named.or_else(|| match &server.address {
            ServerAddress::Tcp { host, .. } => Some(host.clone()),
            ServerAddress::Unix(_) => None,
        });
        let tls = tls.filter(|_| server.scheme.is_secure()).map(|config| {
            let mut http1 = ClientConfig::clone(config);
            http1.alpn_protocols = vec![AlpnProtocol::Http11.as_bytes().to_vec()];
            let http1 = Arc::new(http1);
            let config = match upstream.http {
                UpstreamHttp::Http1 => &http1,
                UpstreamHttp::Auto => config,
            };
            let name = name.and_then(|name| ServerName::try_from(name).ok());
            ServerTls { config: Arc::clone(config), http1, name }
        });
        let service = Arc::clone(service);
        Self { service, server: server.clone(), tls, resolver: resolver.clone() }
    }

    pub(crate) fn server(&self) -> &ServerConfig {
        &self.server
    }

    /// The upstream of the server.
    pub(crate) fn upstream(&self) -> &UpstreamConfig {
        &self.service.upstream
    }

    /// Opens a connection within `connect_timeout`.
    pub(crate) async fn dial(&self, offer: Offer) -> Result<Dialed, DialError> {
        let dialed = timeout(self.upstream().connect_timeout, self.connect(offer)).await;
        dialed.map_err(|_| self.timed_out())?
    }

    /// The error of a server that did not respond within `connect_timeout`.
    pub(crate) fn timed_out(&self) -> DialError {
        let timeout = self.upstream().connect_timeout;
        DialError::Timeout { server: self.server.to_string(), timeout }
    }

    async fn connect(&self, offer: Offer) -> Result<Dialed, DialError> {
        let server = || self.server.to_string();
        let connect = |source| DialError::Connect { server: server(), source };
        let is_h2c = self.server.scheme == Scheme::H2c;
        let version = if is_h2c { HttpVersion::Http2 } else { HttpVersion::Http1 };
        let tcp = match &self.server.address {
            ServerAddress::Unix(path) => {
                let unix = UnixStream::connect(path).await.map_err(connect)?;
                return Ok(Dialed { io: Box::new(unix), version, key_exchange: None });
            }
            ServerAddress::Tcp { host, port } => {
                let limit = self.upstream().connect_timeout;
                let tcp = self.resolver.connect(host, *port, limit, |_| Ok(())).await;
                tcp.map_err(|error| match error {
                    ConnectError::Io(error) if error.kind() == io::ErrorKind::TimedOut => {
                        self.timed_out()
                    }
                    ConnectError::Io(error) => connect(error),
                    ConnectError::Resolve(source) => {
                        DialError::Resolve { server: server(), source }
                    }
                })?
            }
        };
        tcp.set_nodelay(true).map_err(connect)?;
        // A server may stop reading from a tunnel for longer than any timeout of HTTP.
        let is_tunnel = offer == Offer::Http1Only || !self.server.scheme.is_http();
        let UpstreamConfig { response_timeout, body_timeout, .. } = *self.upstream();
        let unacknowledged = (!is_tunnel).then_some(response_timeout.max(body_timeout));
        detect_dead_peer(&tcp, unacknowledged).map_err(connect)?;
        let Some(tls) = &self.tls else {
            return Ok(Dialed { io: Box::new(tcp), version, key_exchange: None });
        };
        let config = match offer {
            Offer::AnyVersion => &tls.config,
            Offer::Http1Only => &tls.http1,
        };
        let name = tls.name.clone().ok_or_else(|| DialError::NoName { server: server() })?;
        let stream = TlsConnector::from(Arc::clone(config)).connect(name, tcp).await;
        let stream = stream.map_err(|source| DialError::Tls { server: server(), source })?;
        let is_h2 = stream.get_ref().1.alpn_protocol() == Some(AlpnProtocol::H2.as_bytes());
        let version = if is_h2 { HttpVersion::Http2 } else { HttpVersion::Http1 };
        let key_exchange = KeyExchange::negotiated(stream.get_ref().1);
        Ok(Dialed { io: Box::new(stream), version, key_exchange })
    }
}

/// The versions of HTTP that the TLS handshake offers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Offer {
    AnyVersion,
    /// HTTP/1.1, for a connection that becomes a tunnel.
    Http1Only,
}

#[cfg(test)]
impl Io for tokio::io::DuplexStream {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_open_connection_counts_in_the_limit_the_metric_and_the_state_of_its_server() {
        let (limit, server) = (ConnectionLimit::new(1), Arc::<ServerState>::default());
        let metric = IntGauge::new("name", "help").unwrap();
        let guard = limit.enter(&metric, &server, None).unwrap();
        assert!(limit.is_reached() && limit.enter(&metric, &server, None).is_none());
        assert_eq!((metric.get(), server.connections()), (1, 1));
        drop(guard);
        assert_eq!((metric.get(), server.connections()), (0, 0));
        assert!(!limit.is_reached() && server.is_known());
    }
}

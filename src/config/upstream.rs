//! The model of an upstream: servers, selection, timeouts, health checks and TLS.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

/// The servers behind a service.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UpstreamConfig {
    /// Servers, at least one.
    pub servers: Vec<ServerConfig>,
    /// Selection of the server for a request. Default: least requests.
    pub balance: Balance,
    /// Maximum time to connect, TLS included. Default: 2 s.
    pub connect_timeout: Duration,
    /// Maximum time to the head of the response, from the end of the request or from the last piece
    /// that the upstream read. Default: 60 s.
    pub response_timeout: Duration,
    /// Maximum time between two pieces of a response. Default: 60 s.
    pub body_timeout: Duration,
    /// Time after which an unused connection is closed. Default: 60 s.
    pub idle_timeout: Duration,
    /// Maximum age of a connection. An older one gets no further requests. Default: none.
    pub max_connection_age: Option<Duration>,
    /// Versions of HTTP that are offered to `https` servers. Default: both.
    pub http: UpstreamHttp,
    /// Maximum size of a request head over HTTP/2, in bytes, as HPACK counts it. A larger one gets
    /// 431. Default: 8 KiB.
    pub max_header_size: usize,
    /// Whether trailers of requests go to HTTP/2 servers. Default: no.
    pub request_trailers: bool,
    /// Requests that may follow on an HTTP/1.1 connection. Default: safe.
    pub reuse: Reuse,
    /// Maximum number of connections to all servers together. A request above it gets 503. One
    /// client gets three quarters of them. Default: 10,000.
    pub max_connections: usize,
    /// Number of consecutive failures after which a server is ejected, unless it is the only one.
    /// Default: 5.
    pub max_failures: u32,
    /// Maximum duration of an ejection; the first one lasts an eighth of it. Default: 10 s.
    pub retry_after: Duration,
    /// Active health checks; `None` turns them off.
    pub health_check: Option<HealthCheckConfig>,
    /// TLS towards `https` and `tls` servers.
    pub tls: Option<UpstreamTlsConfig>,
}

/// A server of an upstream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerConfig {
    /// Protocol of the server.
    pub scheme: Scheme,
    /// Address of the server.
    pub address: ServerAddress,
    /// Share of the requests relative to other servers, 1 to 1000. Default: 1.
    pub weight: u32,
}

/// The protocol of a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scheme {
    /// HTTP/2 in plain text, with prior knowledge (RFC 9113, section 3.3).
    H2c,
    /// HTTP/1.1 in plain text.
    Http,
    /// HTTP/2 or HTTP/1.1 over TLS, selected by ALPN.
    Https,
    /// Raw bytes in plain text.
    Tcp,
    /// Raw bytes over TLS.
    Tls,
}

impl Scheme {
    /// The scheme in URLs.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::H2c => "h2c",
            Self::Http => "http",
            Self::Https => "https",
            Self::Tcp => "tcp",
            Self::Tls => "tls",
        }
    }

    /// Whether the server speaks HTTP.
    #[must_use]
    pub fn is_http(self) -> bool {
        matches!(self, Self::H2c | Self::Http | Self::Https)
    }

    /// Whether the connection is encrypted.
    #[must_use]
    pub fn is_secure(self) -> bool {
        matches!(self, Self::Https | Self::Tls)
    }
}

/// The address of a server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ServerAddress {
    /// A host name or IP address, and a port. A name is resolved for each connection.
    Tcp {
        /// Host name or IP address without brackets.
        host: String,
        /// TCP port.
        port: u16,
    },
    /// The path of a Unix socket.
    Unix(PathBuf),
}

/// `host:port`, `[address]:port` or `unix:path`.
impl fmt::Display for ServerAddress {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp { host, port } if host.contains(':') => write!(formatter, "[{host}]:{port}"),
            Self::Tcp { host, port } => write!(formatter, "{host}:{port}"),
            Self::Unix(path) => write!(formatter, "unix:{}", path.display()),
        }
    }
}

/// The address as it is written in the configuration, always with the port. Metrics use this text
/// as a label.
impl fmt::Display for ServerConfig {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.address, self.scheme) {
            (ServerAddress::Unix(_), Scheme::Http | Scheme::Tcp) => self.address.fmt(formatter),
            (address, Scheme::Tcp) => address.fmt(formatter),
            (address, scheme) => write!(formatter, "{}://{address}", scheme.as_str()),
        }
    }
}

/// The selection of the server for a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Balance {
    /// The one of two random servers that has fewer in-flight requests of this worker.
    LeastRequests,
    /// A random server.
    Random,
    /// All servers in turn.
    RoundRobin,
}

/// The requests that may follow on an HTTP/1.1 connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Reuse {
    /// Requests of all clients.
    Always,
    /// Requests of all clients, and after a request body only requests of the same client.
    Safe,
}

/// The versions of HTTP that are offered to `https` servers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Deserialize)]
pub enum UpstreamHttp {
    /// HTTP/1.1 only.
    #[serde(rename = "1.1")]
    Http1,
    /// HTTP/2 and HTTP/1.1, of which the server selects one by ALPN.
    #[serde(rename = "auto")]
    Auto,
}

/// The health checks of servers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HealthCheckConfig {
    /// Target of a GET whose response must be 2xx or 3xx. `None` only opens a connection.
    pub path: Option<String>,
    /// Interval between two checks. Default: 5 s.
    pub interval: Duration,
    /// Maximum time for a response. Default: 2 s.
    pub timeout: Duration,
    /// Number of consecutive successes after which a server is healthy. Default: 2.
    pub healthy: u32,
    /// Number of consecutive failures after which a server is unhealthy. Default: 3.
    pub unhealthy: u32,
}

/// TLS towards the servers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UpstreamTlsConfig {
    /// PEM file of the CAs that may issue the servers' certificates.
    pub trust_anchors: PathBuf,
    /// Client certificate for servers that request one.
    pub identity: Option<ClientCertificateFiles>,
    /// Name that the servers' certificates must have; `None` requires the host of each server.
    pub server_name: Option<String>,
}

/// The PEM files of a client certificate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClientCertificateFiles {
    /// The certificate chain, leaf first.
    pub certificate: PathBuf,
    /// The private key.
    pub private_key: PathBuf,
}

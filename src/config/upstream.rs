//! The servers behind a service, and how one of them is chosen.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

/// The servers behind a service.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UpstreamConfig {
    /// At least one; all with the same kind of scheme.
    pub servers: Vec<ServerConfig>,
    /// How one of several servers is chosen.
    pub balance: Balance,
    /// How long connecting may take, with TLS.
    pub connect_timeout: Duration,
    /// How long the response head may take once the request is sent.
    pub response_timeout: Duration,
    /// Between two pieces of a response.
    pub body_timeout: Duration,
    /// How long an unused connection is kept.
    pub idle_timeout: Duration,
    /// How long a connection is used.
    pub max_connection_age: Option<Duration>,
    /// Open connections to all servers together.
    pub max_connections: usize,
    /// Failures in a row after which a server is left alone; it is never done to the only one.
    pub max_failures: u32,
    /// For how long it is.
    pub retry_after: Duration,
    /// Whether servers are asked how they are.
    pub health_check: Option<HealthCheckConfig>,
    /// For `https` and `tls` servers.
    pub tls: Option<UpstreamTlsConfig>,
}

/// One server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerConfig {
    /// What is spoken to it.
    pub scheme: Scheme,
    /// Where it is.
    pub address: ServerAddress,
    /// Its share, compared to the others: 1 or more.
    pub weight: u32,
}

/// What is spoken to a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scheme {
    /// HTTP/2 in the clear, without asking first.
    H2c,
    /// HTTP/1.1 in the clear.
    Http,
    /// HTTP/2 or HTTP/1.1 over TLS, as ALPN says.
    Https,
    /// Bytes in the clear.
    Tcp,
    /// Bytes over TLS.
    Tls,
}

impl Scheme {
    /// The word for it in URLs.
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

    /// Whether the connection is encrypted.
    #[must_use]
    pub fn is_secure(self) -> bool {
        matches!(self, Self::Https | Self::Tls)
    }
}

/// Where a server is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ServerAddress {
    /// A host name or an address, and a port. A name is resolved for every connection.
    Tcp {
        /// Without brackets.
        host: String,
        /// TCP port.
        port: u16,
    },
    /// A path of a Unix socket.
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

/// As in the configuration, with its port: the label of its metrics.
impl fmt::Display for ServerConfig {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.address, self.scheme) {
            (ServerAddress::Unix(_), Scheme::Http | Scheme::Tcp) => self.address.fmt(formatter),
            (address, Scheme::Tcp) => address.fmt(formatter),
            (address, scheme) => write!(formatter, "{}://{address}", scheme.as_str()),
        }
    }
}

/// How one of several servers is chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Balance {
    /// Of two that are drawn, the one with fewer requests in flight from this worker.
    LeastRequests,
    /// Any.
    Random,
    /// One after the other.
    RoundRobin,
}

/// How servers are asked how they are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HealthCheckConfig {
    /// A GET for this path must be answered with 2xx or 3xx; none: a connection must be possible.
    pub path: Option<String>,
    /// From one question to the next.
    pub interval: Duration,
    /// How long the answer may take.
    pub timeout: Duration,
    /// Good answers in a row after which a server is used again.
    pub healthy: u32,
    /// Bad ones in a row after which it is not.
    pub unhealthy: u32,
}

/// Our side of TLS towards the servers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UpstreamTlsConfig {
    /// PEM file of the CAs that may vouch for the servers.
    pub trust_anchors: PathBuf,
    /// PEM files of our own certificate (leaf first) and its key, for servers that ask for one.
    pub identity: Option<(PathBuf, PathBuf)>,
    /// The name that the servers' certificates must have; `None`: the host of each.
    pub server_name: Option<String>,
}

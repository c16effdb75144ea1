//! The model of an upstream: servers, selection, timeouts, health checks and TLS.

use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::KeyExchange;
use super::keys::{table, words};
use super::texts::{HealthPath, HostName};
use super::units::{Bounded, OneOrMore, Positive, SizeText};

/// Number of connections.
pub(super) type Connections = Bounded<usize, 1, { 1 << 24 }>;
/// Maximum size of a request head over HTTP/2, 1 KiB to 1 MiB.
type HeaderSize = SizeText<usize, 1024, { 1 << 20 }>;

table! {
    /// The servers behind a service.
    #[derive(Clone, PartialEq, Eq)]
    pub struct UpstreamConfig "", check {
        pub servers: Vec<ServerConfig> => NextRequest
            r#"1 to 1000. `"http://HOST:PORT"`, `"https://HOST:PORT"`, `"h2c://HOST:PORT"`, `"unix:/PATH"`; with `protocol = "tcp"` `"HOST:PORT"`, `"tls://HOST:PORT"`, `"unix:/PATH"`. With a weight of 1 to 1000: `{ url = "http://10.0.0.5:8080", weight = 3 }`."#,
        pub balance: Balance = "least-requests" => NextRequest
            "Selection of the server for a request. `least-requests` compares two random servers.",
        pub connect_timeout: Duration as Positive = "2s" => NextRequest
            "Maximum time to connect, TLS included.",
        pub response_timeout: Duration as Positive = "60s" => NextRequest
            "From the end of the request, or the last piece of it that the upstream took, to the head of the response.",
        pub body_timeout: Duration as Positive = "60s" => NextRequest
            "Between two pieces of a response.",
        pub idle_timeout: Duration as Positive = "60s" => NextRequest
            "Unused connections are closed after this time.",
        pub max_connection_age: Option<Duration> as Option<Positive> => NextRequest
            "Older HTTP/1.1 connections get no further requests. Older HTTP/2 connections get none either.",
        pub http: UpstreamHttp = "auto" => NextRequest
            "Versions of HTTP that are offered to `https://` servers. `1.1` turns HTTP/2 off.",
        pub max_header_size: usize as HeaderSize = "8KiB" => NextRequest
            "HTTP/2 only: maximum head of a request with the fields that keygate adds, name, value and 32 bytes for each. The server's own `SETTINGS_MAX_HEADER_LIST_SIZE` applies if it is lower. A larger head gets 431.",
        pub request_trailers: bool = false => NextRequest
            "HTTP/2 only: whether trailers of requests are forwarded. nginx ends the connection at a trailer.",
        pub reuse: Reuse = "safe" => NextRequest
            "HTTP/1.1 only. `safe`: a connection that carried a request body serves only the same client afterwards. `always`: it serves all clients.",
        pub max_connections: usize as Connections = 10000 => NextRequest
            "Maximum connections to all servers together. At the maximum, an idle connection is closed for a new one; without one the request gets 503. One client gets three quarters of them.",
        pub max_failures: u32 as OneOrMore = 5 => NextRequest
            "Consecutive failures after which a server is ejected, unless it is the only one. Broken responses eject at most half of the servers, late ones none. If all are ejected, each request tries one.",
        pub retry_after: Duration as Positive = "10s" => NextRequest
            "Maximum duration of an ejection. The first one lasts an eighth of it, each further one in a row twice as long as the one before.",
        /// Active health checks; `None` turns them off.
        pub health_check: Option<HealthCheckConfig>,
        /// TLS towards `https` and `tls` servers.
        pub tls: Option<UpstreamTlsConfig>,
    }
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

words! {
    /// The selection of the server for a request.
    pub enum Balance {
        /// The server with fewer in-flight requests of this worker, of two random ones.
        LeastRequests = "least-requests",
        /// A random server.
        Random = "random",
        /// All servers in turn.
        RoundRobin = "round-robin",
    }
}

words! {
    /// The requests that may follow on an HTTP/1.1 connection.
    pub enum Reuse {
        /// Requests of all clients.
        Always = "always",
        /// Requests of all clients, and after a request body only requests of the same client.
        Safe = "safe",
    }
}

words! {
    /// The versions of HTTP that are offered to `https` servers.
    pub enum UpstreamHttp {
        /// HTTP/1.1 only.
        Http1 = "1.1",
        /// HTTP/2 and HTTP/1.1, of which the server selects one by ALPN.
        Auto = "auto",
    }
}

table! {
    /// The health checks of servers.
    #[derive(Clone, PartialEq, Eq)]
    pub struct HealthCheckConfig "Off unless the table is there." {
        pub path: Option<String> as Option<HealthPath> => NextRequest
            r#"Target of a GET whose response must be 2xx or 3xx. Without it, a connection must be possible. Not with `protocol = "tcp"`."#,
        pub interval: Duration as Positive = "5s" => NextRequest
            "From one check to the next.",
        pub timeout: Duration as Positive = "2s" => NextRequest
            "Maximum time for a response.",
        pub healthy: u32 as OneOrMore = 2 => NextRequest
            "Consecutive good results after which a server is used again.",
        pub unhealthy: u32 as OneOrMore = 3 => NextRequest
            "Consecutive bad results after which a server gets no requests.",
    }
}

table! {
    /// TLS towards the servers.
    #[derive(Clone, PartialEq, Eq)]
    pub struct UpstreamTlsConfig "Required for `https://` and `tls://`.", check {
        pub trust_anchors: PathBuf => NextRequest
            "PEM: the CAs that certify the servers.",
        pub certificate: Option<PathBuf> => NextRequest
            "PEM: keygate's own certificate, for servers that request one; with `private_key`.",
        pub private_key: Option<PathBuf> => NextRequest
            "PEM; with `certificate`.",
        pub server_name: Option<String> as Option<HostName> => NextRequest
            "Name that the certificates of the servers must have. Without it: the host of each.",
        pub key_exchange: Vec<KeyExchange> = [] => NextRequest
            "Groups of the key exchange, preferred first; the first one has a key share. Empty: `X25519MLKEM768`, with a share of `x25519`, then the classical ones.",
    }
}

/// The URL of a server without its weight.
#[derive(Debug)]
pub(super) struct ServerUrl;

/// Weight of a server.
type Weight = Bounded<u32, 1, 1000>;

table! {
    pub(super) struct WeightedServer "" {
        pub(super) url: (Scheme, ServerAddress) as ServerUrl,
        pub(super) weight: u32 as Weight,
    }
}

impl UpstreamTlsConfig {
    /// The PEM files of the client certificate and its private key.
    #[must_use]
    pub fn identity(&self) -> Option<(&Path, &Path)> {
        self.certificate.as_deref().zip(self.private_key.as_deref())
    }
}

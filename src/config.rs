//! The configuration: read as TOML, then checked once into a model that cannot be wrong.
//!
//! Nothing here opens what the configuration names; that is the business of [`crate::snapshot`].

mod check;
mod raw;
mod units;

use std::net::SocketAddr;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::time::Duration;

use hyper::header::HeaderName;

use crate::guard::{Exception, Policy};

/// A checked configuration. Paths are absolute or relative to the process, no longer to the file.
#[derive(Debug, Clone)]
pub struct Config {
    /// Threads that serve connections.
    pub workers: NonZeroUsize,
    /// Where metrics and status are served.
    pub admin: AdminAddress,
    /// What is written to standard error.
    pub log: LogConfig,
    /// At least one.
    pub filters: Vec<FilterConfig>,
    /// Exact lists of keys that are refused.
    pub lists: Vec<ListConfig>,
    /// Keys that are admitted for a time, whatever is known of them.
    pub exceptions: Vec<Exception>,
    /// Where what must outlive a restart is kept; `None`: nowhere.
    pub state_dir: Option<PathBuf>,
    /// At least one.
    pub services: Vec<ServiceConfig>,
    /// How the process ends.
    pub shutdown: ShutdownConfig,
}

/// Where the admin server listens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AdminAddress {
    /// A TCP address.
    Tcp(SocketAddr),
    /// A path of a Unix socket.
    Unix(PathBuf),
}

/// As the configuration has it.
impl std::fmt::Display for AdminAddress {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Tcp(address) => address.fmt(formatter),
            Self::Unix(path) => write!(formatter, "unix:{}", path.display()),
        }
    }
}

/// The log on standard error.
#[derive(Debug, Clone)]
pub struct LogConfig {
    /// How a line looks.
    pub format: LogFormat,
    /// Directives of `tracing_subscriber`'s `EnvFilter`, such as `info` or `keygate::proxy=debug`.
    pub level: String,
}

/// How a log line looks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    /// One JSON object.
    Json,
    /// For people.
    Text,
}

/// A filter file.
#[derive(Debug, Clone)]
pub struct FilterConfig {
    /// Letters, digits, `.`, `_` and `-`; unique.
    pub name: String,
    /// The file.
    pub path: PathBuf,
    /// The largest file that is read, in bytes.
    pub max_size: u64,
    /// A filter that was last changed longer ago is stale: a warning, nothing more.
    pub max_age: Option<Duration>,
    /// What becomes of a file that is older than the one before.
    pub rollback: Rollback,
    /// What becomes of a file whose bits its own header cannot explain.
    pub implausible: Implausible,
    /// Files of keys that must be in the filter.
    pub canaries: Vec<PathBuf>,
    /// An update that would refuse more of the clients seen lately waits for the operator.
    pub max_new_hits: Option<usize>,
}

/// A file of fingerprints.
#[derive(Debug, Clone)]
pub struct ListConfig {
    /// Letters, digits, `.`, `_` and `-`; unique.
    pub name: String,
    /// The file.
    pub path: PathBuf,
}

/// What becomes of a filter file that is older than the one before.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Rollback {
    /// It is put to use.
    Allow,
    /// It is refused.
    Refuse,
}

/// What becomes of a filter file whose bits its own header cannot explain.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Implausible {
    /// It is refused.
    Refuse,
    /// It is put to use, with a warning.
    Warn,
}

/// One service behind the proxy.
#[derive(Debug, Clone)]
pub struct ServiceConfig {
    /// Letters, digits, `.`, `_` and `-`; unique.
    pub name: String,
    /// The address that clients connect to; services may share one.
    pub listen: SocketAddr,
    /// Lower case; a leading `*.` stands for one label. None: the default of the address.
    pub server_names: Vec<String>,
    /// The service's own side of TLS.
    pub tls: TlsConfig,
    /// PEM file of the CAs whose clients are accepted.
    pub trust_anchors: PathBuf,
    /// Files of revocation lists. If there are any, each client's issuer must have one.
    pub crls: Vec<PathBuf>,
    /// What a revocation list counts for that is no longer up to date.
    pub expired_crl: ExpiredCrl,
    /// Whether a client must have a certificate.
    pub client_auth_mode: ClientAuthMode,
    /// What the upstream is told.
    pub forward: ForwardConfig,
    /// Where requests go.
    pub upstream: UpstreamConfig,
    /// What a client may take.
    pub limits: LimitsConfig,
    /// What happens to which key.
    pub policy: Policy,
    /// Whether the service starts although a key of its own, or of its trust anchors, is a hit.
    pub allow_compromised_own_key: bool,
    /// How long a connection whose client is to be refused by now may take to finish.
    pub evict_within: Duration,
    /// The header that carries the verdict when the policy says so.
    pub status_header: HeaderName,
}

/// A service's own certificate and protocol choices.
#[derive(Debug, Clone)]
pub struct TlsConfig {
    /// PEM file, leaf first.
    pub certificate: PathBuf,
    /// PEM file: PKCS#8, PKCS#1 or SEC1.
    pub private_key: PathBuf,
    /// The oldest protocol version that is spoken.
    pub min_version: TlsVersion,
    /// Protocols offered by ALPN, preferred first; not empty.
    pub alpn: Vec<AlpnProtocol>,
    /// Whether clients may resume sessions. A resumed one is judged like a new one.
    pub resumption: bool,
}

/// A TLS protocol version.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Deserialize)]
pub enum TlsVersion {
    /// TLS 1.2.
    #[serde(rename = "1.2")]
    V1_2,
    /// TLS 1.3.
    #[serde(rename = "1.3")]
    V1_3,
}

/// What a revocation list counts for that is no longer up to date.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ExpiredCrl {
    /// As much as before.
    Accept,
    /// Clients that it would have to speak for are refused.
    Reject,
}

/// Whether a client must have a certificate.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ClientAuthMode {
    /// One without is unchecked; one with a certificate of nobody we trust is refused.
    Optional,
    /// One without is refused.
    Required,
}

/// A protocol that clients may choose by ALPN.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Deserialize)]
pub enum AlpnProtocol {
    /// HTTP/2.
    #[serde(rename = "h2")]
    H2,
    /// HTTP/1.1.
    #[serde(rename = "http/1.1")]
    Http11,
}

impl AlpnProtocol {
    /// The name in the ALPN extension (RFC 7301).
    #[must_use]
    pub fn as_bytes(self) -> &'static [u8] {
        match self {
            Self::H2 => b"h2",
            Self::Http11 => b"http/1.1",
        }
    }
}

/// What the upstream is told of the client besides the verdict.
#[derive(Debug, Clone, Copy)]
pub struct ForwardConfig {
    /// `Client-Cert` (RFC 9440).
    pub client_cert: bool,
    /// `X-Forwarded-For`, `-Proto` and `-Host`.
    pub x_forwarded: bool,
}

/// The server behind a service.
#[derive(Debug, Clone)]
pub struct UpstreamConfig {
    /// Host name or address.
    pub host: String,
    /// TCP port.
    pub port: u16,
    /// How long connecting may take.
    pub connect_timeout: Duration,
    /// How long the response head may take once the request is sent.
    pub response_timeout: Duration,
    /// How long an unused connection is kept.
    pub idle_timeout: Duration,
}

/// What a client may take.
#[derive(Debug, Clone, Copy)]
pub struct LimitsConfig {
    /// From the accepted connection to the finished handshake.
    pub handshake_timeout: Duration,
    /// From the first byte of a request head to its last (HTTP/1.1).
    pub header_timeout: Duration,
    /// Between the end of a response and the next request.
    pub idle_timeout: Duration,
    /// Open connections; services on one address share the sum.
    pub max_connections: usize,
    /// Bytes of a request head.
    pub max_header_size: u32,
}

/// How the process ends after SIGTERM.
#[derive(Debug, Clone, Copy)]
pub struct ShutdownConfig {
    /// How long it goes on accepting after readiness has failed.
    pub readiness_delay: Duration,
    /// How long open connections may take to finish.
    pub drain_timeout: Duration,
}

/// Why there is no usable configuration.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// A value that is well-formed and still cannot be used.
    #[error("{}: {field}: {problem}", file.display())]
    Invalid {
        /// The configuration file.
        file: PathBuf,
        /// The key, with the names of the tables it is in.
        field: String,
        /// What was found and what to do.
        problem: String,
    },
    /// The file could not be read.
    #[error("{}: cannot read the configuration: {source}", file.display())]
    Read {
        /// The configuration file.
        file: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// Not TOML, an unknown key, or a value of the wrong type.
    #[error("{}:{line}: {problem}", file.display())]
    Syntax {
        /// The configuration file.
        file: PathBuf,
        /// Counted from 1.
        line: usize,
        /// What was found and what was expected, with the line itself.
        problem: String,
    },
}

/// The largest configuration file that is read, in bytes.
const MAX_CONFIG_SIZE: u64 = 1 << 20;

impl Config {
    /// Reads and checks the configuration in `file`.
    ///
    /// # Errors
    /// The file cannot be read, is not TOML, has an unknown key, or a value that cannot be used.
    pub fn read(file: &Path) -> Result<Self, ConfigError> {
        let text = read_bounded(file)
            .map_err(|source| ConfigError::Read { file: file.to_owned(), source })?;
        Self::parse(file, &text)
    }

    /// Checks a configuration that is in memory; `file` names it and anchors its relative paths.
    ///
    /// # Errors
    /// As [`Config::read`], but for reading.
    pub fn parse(file: &Path, text: &str) -> Result<Self, ConfigError> {
        let raw: raw::Config = toml::from_str(text).map_err(|error| ConfigError::Syntax {
            file: file.to_owned(),
            line: line_of(text, error.span()),
            problem: error.to_string().trim_end().to_owned(),
        })?;
        check::check(file, raw)
    }
}

fn read_bounded(file: &Path) -> std::io::Result<String> {
    use std::io::Read;
    let mut text = String::new();
    let read = std::fs::File::open(file)?.take(MAX_CONFIG_SIZE + 1).read_to_string(&mut text)?;
    if u64::try_from(read).is_ok_and(|size| size > MAX_CONFIG_SIZE) {
        return Err(std::io::Error::new(
            std::io::ErrorKind::InvalidData,
            format!("larger than {MAX_CONFIG_SIZE} bytes"),
        ));
    }
    Ok(text)
}

fn line_of(text: &str, span: Option<std::ops::Range<usize>>) -> usize {
    let start = span.map_or(0, |span| span.start);
    1 + text.bytes().take(start).filter(|byte| *byte == b'\n').count()
}

//! The configuration: read as TOML, then checked once into a model that cannot be wrong.
//!
//! Nothing here opens what the configuration names; that is the business of [`crate::snapshot`].

mod check;
mod raw;
mod service;
mod units;
mod upstream;

use std::net::SocketAddr;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::time::Duration;

pub use self::service::{
    AlpnProtocol, ClientAuthMode, ExpiredCrl, ForwardConfig, Forwarded, LimitsConfig, Networks,
    Protocol, SendProxy, ServiceConfig, TlsConfig, TlsVersion,
};
pub use self::upstream::{
    Balance, HealthCheckConfig, Scheme, ServerAddress, ServerConfig, UpstreamConfig,
    UpstreamTlsConfig,
};
use crate::guard::Exception;

/// A checked configuration. Paths are absolute or relative to the process, no longer to the file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    /// Threads that serve connections.
    pub workers: NonZeroUsize,
    /// Where metrics and status are served.
    pub admin: AdminAddress,
    /// What is written to standard error.
    pub log: LogConfig,
    /// What is written to standard output.
    pub access_log: AccessLogConfig,
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
    /// What the process may do.
    pub sandbox: SandboxConfig,
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
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogConfig {
    /// How a line looks.
    pub format: LogFormat,
    /// Directives of `tracing_subscriber`'s `EnvFilter`, such as `info` or `keygate::proxy=debug`.
    pub level: String,
    /// What was said of a client is said again after so long at the earliest.
    pub repeat_after: Duration,
}

/// Which requests are written down.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum AccessLogConfig {
    /// Every request.
    All,
    /// Those with a status of 400 or more, and those that did not come to their end.
    Errors,
    /// None.
    #[default]
    Off,
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
#[derive(Debug, Clone, PartialEq, Eq)]
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
#[derive(Debug, Clone, PartialEq, Eq)]
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

/// How the process ends after SIGTERM.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ShutdownConfig {
    /// How long it goes on accepting after readiness has failed.
    pub readiness_delay: Duration,
    /// How long open connections may take to finish.
    pub drain_timeout: Duration,
}

/// What the process may do, held by the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SandboxConfig {
    /// Whether there must be a sandbox.
    pub mode: SandboxMode,
    /// Which TCP ports it may use.
    pub ports: SandboxPorts,
}

/// Whether there must be a sandbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SandboxMode {
    /// As far as the kernel can.
    Auto,
    /// There is none.
    Off,
    /// Without one there is no start.
    Required,
}

/// Which TCP ports a sandbox leaves.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SandboxPorts {
    /// All.
    Any,
    /// Those of the configuration at the start.
    Configured,
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
        Self::parse(file, &text_of(file)?)
    }

    /// Every file that is named by path.
    #[must_use]
    pub fn files(&self) -> Vec<&Path> {
        let filters = self.filters.iter();
        let filters = filters.flat_map(|it| std::iter::once(&it.path).chain(&it.canaries));
        let lists = self.lists.iter().map(|list| &list.path);
        let services = self.services.iter().flat_map(ServiceConfig::files);
        filters.chain(lists).map(PathBuf::as_path).chain(services).collect()
    }

    /// The settings that differ from `before` and that a running process cannot change.
    #[must_use]
    pub fn needs_restart(&self, before: &Self) -> Vec<&'static str> {
        let tries = |config: &Self| config.filters.iter().any(|it| it.max_new_hits.is_some());
        let settings = [
            ("workers", self.workers != before.workers),
            ("admin", self.admin != before.admin),
            ("log", self.log != before.log),
            ("access_log", self.access_log != before.access_log),
            ("state", self.state_dir != before.state_dir),
            ("shutdown", self.shutdown != before.shutdown),
            ("sandbox", self.sandbox != before.sandbox),
            ("max_new_hits", tries(self) && !tries(before)),
        ];
        settings.into_iter().filter(|(_, differs)| *differs).map(|(name, _)| name).collect()
    }

    /// Checks a configuration that is in memory; `file` names it and anchors its relative paths.
    ///
    /// # Errors
    /// As [`Config::read`], but for reading.
    pub fn parse(file: &Path, text: &str) -> Result<Self, ConfigError> {
        check::check(file, typed(file, text)?)
    }
}

impl AdminAddress {
    /// The admin address of the configuration in `file`, whatever else is wrong with it: a proxy
    /// that runs goes on with the configuration that it has, and can be asked.
    ///
    /// # Errors
    /// The file cannot be read, is not TOML, or has an admin address that cannot be used.
    pub fn read(file: &Path) -> Result<Self, ConfigError> {
        let raw: raw::AdminOnly = typed(file, &text_of(file)?)?;
        check::admin(file, &raw.admin)
    }
}

fn text_of(file: &Path) -> Result<String, ConfigError> {
    read_bounded(file).map_err(|source| ConfigError::Read { file: file.to_owned(), source })
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

fn typed<T: serde::de::DeserializeOwned>(file: &Path, text: &str) -> Result<T, ConfigError> {
    toml::from_str(text).map_err(|error| ConfigError::Syntax {
        file: file.to_owned(),
        line: line_of(text, error.span()),
        problem: error.to_string().trim_end().to_owned(),
    })
}

fn line_of(text: &str, span: Option<std::ops::Range<usize>>) -> usize {
    let start = span.map_or(0, |span| span.start);
    1 + text.bytes().take(start).filter(|byte| *byte == b'\n').count()
}

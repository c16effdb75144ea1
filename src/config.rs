//! The configuration: parsed from TOML, then converted once into a checked model.
//!
//! No file that the configuration names is opened here. [`crate::snapshot`] loads those files.
//!
//! Most tables of the model declare their keys with `keys::table!`. `input` converts the values of a
//! file, and `check` what depends on several keys. `CONTRIBUTING.md` lists the places of a new key.

mod access_log;
mod allow;
mod authorizer;
mod check;
mod confirm;
mod credential_owner;
mod document;
mod effective;
#[cfg(test)]
pub(crate) mod example;
mod fetch;
mod filter;
mod input;
mod key_place;
mod keys;
mod list;
mod log_level;
mod policy;
mod problem;
mod raw;
mod schema;
mod service;
mod suggestion;
mod traces;
mod units;
mod upstream;

use std::net::SocketAddr;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::time::Duration;

use keygate_core::guard::{Exception, WeakChecks};
use keygate_core::regular_file;

pub use self::access_log::{AccessLogConfig, AccessLogField, AccessLogFormat, LoggedRequests};
pub use self::authorizer::{
    AskersConfig, AuthorizerConfig, AuthorizerLimits, AuthorizerProtocol, AuthorizerTls,
    CertificateSource, ClientChecks, HeaderEncoding, OpenAccess, SocketGroup,
};
use self::check::Level;
pub use self::confirm::{CanaryConfig, ConfirmConfig, SourceUrl};
pub use self::credential_owner::CredentialOwner;
pub use self::effective::{EffectiveTable, EffectiveValue};
pub(crate) use self::fetch::SYSTEM_TRUST_ANCHORS;
pub use self::fetch::{CrlConfig, FetchConfig};
pub use self::filter::{FilterConfig, Implausible, Rollback};
pub use self::key_place::{KeyLines, KeyPlace, LocatedProblem, PlacedProblem};
use self::keys::{table, words};
pub use self::list::{ListConfig, ListFormat, Shrink};
pub use self::log_level::{LogLevel, LogLevelError};
pub use self::problem::{ConfigError, ConfigProblem};
pub use self::schema::schema;
pub use self::service::{
    BoundCa, ClientAuthMode, ForwardConfig, Forwarded, LimitsConfig, Networks, Protocol, SendProxy,
    ServiceConfig, TlsConfig,
};
pub use self::traces::TracesConfig;
use self::units::DurationText;
pub use self::upstream::{
    Balance, HealthCheckConfig, Reuse, Scheme, ServerAddress, ServerConfig, UpstreamConfig,
    UpstreamHttp, UpstreamTlsConfig,
};
pub use keygate_core::tls::{AlpnProtocol, ExpiredCrl, KeyExchange, RevocationDepth, TlsVersion};

words! {
    /// The peers that may accept a filter update, reload and drain. Reading needs no permission.
    pub enum AdminCommands {
        /// Every peer that reaches the address.
        Anywhere = "anywhere",
        /// Peers on loopback, of a Unix socket, or with the address of this machine that they connect
        /// to.
        Local = "local",
    }
}

/// A checked configuration. Relative paths are resolved against the directory of the file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    /// Number of threads that serve connections. Default: one for each core.
    pub workers: NonZeroUsize,
    /// Maximum memory for buffers of clients, in bytes, of all workers together. A client that holds
    /// its share gets no more. Default: half of the memory that files leave.
    pub max_buffered: Option<u64>,
    /// Address of metrics and status. Default: 127.0.0.1:9464.
    pub admin: ListenAddress,
    /// The peers of that address that may send commands. Default: the peers on this machine.
    pub admin_commands: AdminCommands,
    /// The log on standard error.
    pub log: LogConfig,
    /// The access log. Default: off.
    pub access_log: AccessLogConfig,
    /// Filters, at least one.
    pub filters: Vec<FilterConfig>,
    /// Exact lists of compromised keys.
    pub lists: Vec<ListConfig>,
    /// The checks for RSA keys that anybody can factor. Default: all.
    pub weak_checks: WeakChecks,
    /// Keys that are admitted until a given time, regardless of lists and filters.
    pub exceptions: Vec<Exception>,
    /// Directory for state that survives restarts; `None` keeps none.
    pub state_dir: Option<PathBuf>,
    /// The source of proofs; `None` asks nothing.
    pub confirm: Option<ConfirmConfig>,
    /// The export of traces; `None` traces nothing.
    pub traces: Option<TracesConfig>,
    /// Services; at least one, or one authorizer.
    pub services: Vec<ServiceConfig>,
    /// Authorizers, which answer questions of other proxies.
    pub authorizers: Vec<AuthorizerConfig>,
    /// Delays of a shutdown.
    pub shutdown: ShutdownConfig,
    /// Restrictions of the process by the kernel.
    pub sandbox: SandboxConfig,
}

/// An address to listen on.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ListenAddress {
    /// A TCP address.
    Tcp(SocketAddr),
    /// The path of a Unix socket.
    Unix(PathBuf),
}

/// The address as it is written in the configuration.
impl std::fmt::Display for ListenAddress {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Tcp(address) => address.fmt(formatter),
            Self::Unix(path) => write!(formatter, "unix:{}", path.display()),
        }
    }
}

table! {
    /// The log on standard error.
    #[derive(Clone, PartialEq, Eq)]
    pub struct LogConfig "On standard error." {
        pub format: LogFormat = "auto" => Restart
            "One JSON object a line, or text for people. `auto` is text if standard error is a terminal, otherwise JSON. Text on a terminal has colours, unless `NO_COLOR` is set.",
        pub level: LogLevel as Level = "info" => AtOnce
            "`error`, `warn`, `info`, `debug`, `trace`; for a part of keygate with its name, as in `info,keygate::proxy=debug`. Other words are errors. Rejected and flagged clients are logged at every level, unless `keygate::client_key=off` is given.",
        pub repeat_after: Duration as DurationText = "60s" => Restart
            r#"Minimum interval between two lines of a worker about the same event of the same client or upstream server. Events are a rejected key, a flagged key, a handshake that fails because of the certificate or the server name, and a failure of an upstream. `left_out` counts the suppressed lines. `"0s"`: every event is logged."#,
    }
}

words! {
    /// The format of log lines.
    pub enum LogFormat {
        /// Text if standard error is a terminal, otherwise JSON.
        Auto = "auto",
        /// One JSON object a line.
        Json = "json",
        /// Text for people.
        Text = "text",
    }
}

table! {
    /// The delays of a shutdown, which SIGTERM begins.
    #[derive(Clone, Copy, PartialEq, Eq)]
    pub struct ShutdownConfig "After `SIGTERM`." {
        pub readiness_delay: Duration as DurationText = "5s" => Restart
            "`/readyz` fails, and connections are still accepted.",
        pub drain_timeout: Duration as DurationText = "30s" => Restart
            "Open connections then finish their in-flight requests. Connections that are open after this time are closed.",
    }
}

table! {
    /// Restrictions of the process by the kernel.
    #[derive(Clone, Copy, PartialEq, Eq)]
    pub struct SandboxConfig "Restriction of the process after it has read its configuration, enforced by the kernel ([Landlock](systemd.md#the-sandbox))." {
        pub mode: SandboxMode = "auto" => Restart
            "`auto`: as far as the kernel supports. `required`: no start without it.",
        pub ports: SandboxPorts = "any" => Restart
            "`configured`: TCP only to and on the ports of this file.",
    }
}

words! {
    /// Whether a sandbox is required.
    #[derive(Default)]
    pub enum SandboxMode {
        /// As far as the kernel supports.
        #[default]
        Auto = "auto",
        /// No sandbox.
        Off = "off",
        /// The process does not start without one.
        Required = "required",
    }
}

words! {
    /// TCP ports that the process may use.
    #[derive(Default)]
    pub enum SandboxPorts {
        /// All ports.
        #[default]
        Any = "any",
        /// The ports in the configuration at the start.
        Configured = "configured",
    }
}

/// Maximum size of the configuration file, in bytes; a larger file is an error.
const MAX_CONFIG_SIZE: u64 = 1 << 20;

impl Config {
    /// Reads and checks the configuration in `file`.
    ///
    /// # Errors
    /// Returns an error if the file cannot be read, is not TOML, has an unknown key, or has a value
    /// that cannot be used.
    pub fn read(file: &Path) -> Result<Self, ConfigError> {
        Self::parse(file, &text_of(file)?)
    }

    /// The effective value of every key of the configuration in `file`, with its origin.
    ///
    /// # Errors
    /// Returns the errors of [`Config::read`].
    pub fn effective(file: &Path) -> Result<Vec<EffectiveTable>, ConfigError> {
        effective::effective(file, &text_of(file)?)
    }

    /// The paths of all files that the configuration names.
    #[must_use]
    pub fn files(&self) -> Vec<&Path> {
        let filters = self.filters.iter();
        let filters = filters
            .flat_map(|it| std::iter::once(&it.path).chain(&it.canaries).chain(&it.minisign_key));
        let lists = self.lists.iter();
        let lists = lists
            .flat_map(|it| std::iter::once(&it.path).chain(&it.canaries).chain(&it.minisign_key));
        let services = self.services.iter().flat_map(ServiceConfig::files);
        let authorizers = self.authorizers.iter().flat_map(AuthorizerConfig::files);
        let confirm = self.confirm.iter().flat_map(ConfirmConfig::files);
        let traces = self.traces.iter().flat_map(TracesConfig::files);
        let files = filters.chain(lists).map(PathBuf::as_path);
        files.chain(services).chain(authorizers).chain(confirm).chain(traces).collect()
    }

    /// Whether updates are tried on recent clients, which are recorded for it.
    #[must_use]
    pub fn records_clients(&self) -> bool {
        let filters = self.filters.iter().map(|it| it.max_new_hits);
        let lists = self.lists.iter().map(|it| it.max_new_hits);
        let services = self.services.iter().map(|it| it.max_new_hits);
        let authorizers = self.authorizers.iter().map(|it| it.client_auth.max_new_hits);
        filters.chain(lists).chain(services).chain(authorizers).any(|limit| limit.is_some())
    }

    /// The names of all services and authorizers.
    #[must_use]
    pub fn names(&self) -> Vec<&str> {
        let services = self.services.iter().map(|it| it.name.as_str());
        services.chain(self.authorizers.iter().map(|it| it.name.as_str())).collect()
    }

    /// The settings that differ from `before` and take effect only after a restart.
    #[must_use]
    pub fn needs_restart(&self, before: &Self) -> Vec<&'static str> {
        let settings = [
            ("workers", self.workers != before.workers),
            ("max_buffered", self.max_buffered != before.max_buffered),
            ("admin", (&self.admin, self.admin_commands) != (&before.admin, before.admin_commands)),
            (
                "log",
                LogConfig { level: before.log.level.clone(), ..self.log.clone() } != before.log,
            ),
            ("access_log", self.access_log != before.access_log),
            ("state", self.state_dir != before.state_dir),
            ("confirm", self.confirm != before.confirm),
            ("traces", self.traces != before.traces),
            ("shutdown", self.shutdown != before.shutdown),
            ("sandbox", self.sandbox != before.sandbox),
            ("max_new_hits", self.records_clients() && !before.records_clients()),
        ];
        settings.into_iter().filter(|(_, differs)| *differs).map(|(name, _)| name).collect()
    }

    /// Checks the configuration in `text`. `file` is its name in errors and the base of relative
    /// paths.
    ///
    /// # Errors
    /// Returns the errors of [`Config::read`], except errors of reading the file.
    pub fn parse(file: &Path, text: &str) -> Result<Self, ConfigError> {
        check::check(file, text)
    }
}

impl ListenAddress {
    /// Reads only the admin address from the configuration in `file`. A running proxy that rejected
    /// the file still serves requests at this address.
    ///
    /// # Errors
    /// Returns an error if the file cannot be read, has an invalid admin address, or has a syntax
    /// error that may hide the address.
    pub fn read_admin(file: &Path) -> Result<Self, ConfigError> {
        check::admin(file, content_of(file)?)
    }
}

fn content_of(file: &Path) -> Result<Vec<u8>, ConfigError> {
    regular_file::read(file, MAX_CONFIG_SIZE)
        .map_err(|source| ConfigError::Read { file: file.to_owned(), source })
}

fn text_of(file: &Path) -> Result<String, ConfigError> {
    String::from_utf8(content_of(file)?).map_err(|error| {
        let problems = vec![document::encoding_problem(&error)];
        ConfigError::Invalid { file: file.to_owned(), problems }
    })
}

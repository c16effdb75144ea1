//! The configuration: parsed from TOML, then converted once into a checked model.
//!
//! No file that the configuration names is opened here. [`crate::snapshot`] loads those files.
//!
//! Most tables of the model declare their keys with `keys::table!`. `input` converts the values of a
//! file, and `check` what depends on several keys. `CONTRIBUTING.md` lists the places of a new key.

mod access_log;
mod allow;
mod assertion;
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
mod form;
mod input;
mod key_lines;
mod key_place;
mod keys;
mod list;
mod log_level;
mod message;
mod policy;
mod problem;
mod readers;
mod root;
mod schema;
mod service;
mod source_url;
mod texts;
mod traces;
mod units;
mod upstream;
mod urls;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use keygate_core::regular_file;

pub use self::access_log::{AccessLogConfig, AccessLogField, AccessLogFormat, LoggedRequests};
pub use self::assertion::{AssertionConfig, SigningKeyConfig};
pub use self::authorizer::{
    AskersConfig, AuthorizerConfig, AuthorizerLimits, AuthorizerProtocol, AuthorizerTls,
    CertificateSource, HeaderEncoding, OpenAccess, SocketGroup, WebhookConfig,
};
pub use self::confirm::{CanaryConfig, ConfirmConfig};
pub use self::credential_owner::CredentialOwner;
pub use self::effective::{EffectiveTable, EffectiveValue};
pub(crate) use self::fetch::SYSTEM_TRUST_ANCHORS;
pub use self::fetch::{CrlConfig, FetchConfig};
pub use self::filter::{FilterConfig, Implausible, Rollback};
pub use self::key_lines::KeyLines;
pub use self::key_place::{KeyPlace, LocatedProblem, PlacedProblem};
pub use self::list::{ListConfig, ListFormat, Shrink};
pub use self::log_level::{LogLevel, LogLevelError};
pub use self::policy::PolicyConfig;
pub use self::problem::{ConfigError, ConfigProblem};
pub use self::readers::{ReadersConfig, ReadersTls};
pub use self::root::{
    AdminCommands, AdminConfig, Config, LogConfig, LogFormat, SandboxConfig, SandboxMode,
    SandboxPorts, ShutdownConfig, StateConfig, WeakKeysConfig,
};
pub use self::schema::schema;
pub use self::service::{
    BoundCa, ClientAuthConfig, ClientAuthMode, ForwardConfig, Forwarded, LimitsConfig, Networks,
    Protocol, SendProxy, ServiceConfig, TlsConfig,
};
pub use self::source_url::SourceUrl;
pub use self::traces::TracesConfig;
pub use self::upstream::{
    Balance, HealthCheckConfig, Reuse, Scheme, ServerAddress, ServerConfig, UpstreamConfig,
    UpstreamHttp, UpstreamTlsConfig,
};
pub use keygate_core::tls::{AlpnProtocol, ExpiredCrl, KeyExchange, RevocationDepth, TlsVersion};

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
        let readers = self.admin.readers.iter().flat_map(|it| &it.tls);
        let readers = readers.flat_map(|it| [&it.certificate, &it.private_key, &it.client_ca]);
        let files = filters.chain(lists).chain(readers).map(PathBuf::as_path);
        files.chain(services).chain(authorizers).chain(confirm).chain(traces).collect()
    }

    /// Whether updates are tried on recent clients, which are recorded for it.
    #[must_use]
    pub fn records_clients(&self) -> bool {
        let filters = self.filters.iter().map(|it| it.max_new_hits);
        let lists = self.lists.iter().map(|it| it.max_new_hits);
        let services = self.services.iter().map(|it| it.client_auth.max_new_hits);
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
        fn of_admin(config: &Config) -> impl PartialEq + use<'_> {
            let AdminConfig { listen, commands, readers } = &config.admin;
            (listen, commands, readers.as_ref().map(ReadersConfig::socket))
        }
        let settings = [
            ("workers", self.workers != before.workers),
            ("max_buffered", self.max_buffered != before.max_buffered),
            ("admin", of_admin(self) != of_admin(before)),
            (
                "log",
                LogConfig { level: before.log.level.clone(), ..self.log.clone() } != before.log,
            ),
            ("access_log", self.access_log != before.access_log),
            ("state", self.state != before.state),
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

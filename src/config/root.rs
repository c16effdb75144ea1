//! The configuration itself: its top-level keys and its small tables.

use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use keygate_core::guard::{Exception, WeakChecks};
use keygate_core::spki::KeyDigest;

use super::keys::{table, takes, words};
use super::texts::{Checks, DigestText, Level, Reason, Until};
use super::units::{Bounded, DurationText, SizeText};
use super::{
    AccessLogConfig, AuthorizerConfig, ConfirmConfig, FilterConfig, ListConfig, ListenAddress,
    LogLevel, PolicyConfig, ReadersConfig, ServiceConfig, TracesConfig,
};

/// Size of all buffers for clients.
type BufferSize = SizeText<u64, { 1 << 20 }, { 1 << 40 }>;

table! {
    /// A checked configuration. Relative paths are resolved against the directory of the file.
    #[derive(Clone, PartialEq, Eq)]
    pub struct Config "", check {
        pub workers: NonZeroUsize as WorkerCount = 0 => Restart
            "Threads that serve connections. 0: one for each core.",
        pub max_buffered: Option<u64> as Option<BufferSize> => Restart
            "Maximum memory for [buffers of clients](operations.md#resources), of all workers together. Without it: half of the memory of the cgroup or the machine that filters and lists leave.",
        /// The address of metrics, status and commands.
        pub admin: AdminConfig = {},
        /// The log on standard error.
        pub log: LogConfig = {},
        /// The access log.
        pub access_log: AccessLogConfig = {},
        /// State that survives restarts.
        pub state: StateConfig = {},
        /// Filters.
        pub filters: Vec<FilterConfig> = [],
        /// Exact lists of compromised keys.
        pub lists: Vec<ListConfig> = [],
        /// The checks for RSA keys that anybody can factor.
        pub weak_keys: WeakKeysConfig = {},
        /// Keys that are admitted until a given time, regardless of lists and filters.
        pub exceptions: Vec<Exception> = [],
        /// The source of proofs; `None` asks nothing.
        pub confirm: Option<ConfirmConfig>,
        /// The export of traces; `None` traces nothing.
        pub traces: Option<TracesConfig>,
        /// The policy whose keys services and authorizers inherit.
        pub policy: PolicyConfig = {},
        /// Services; at least one, or one authorizer.
        pub services: Vec<ServiceConfig> = [],
        /// Authorizers, which answer questions of other proxies.
        pub authorizers: Vec<AuthorizerConfig> = [],
        /// Delays of a shutdown.
        pub shutdown: ShutdownConfig = {},
        /// Restrictions of the process by the kernel.
        pub sandbox: SandboxConfig = {},
    }
}

table! {
    /// The address of metrics, status and commands.
    #[derive(Clone, PartialEq, Eq)]
    pub struct AdminConfig "" {
        pub listen: ListenAddress = "127.0.0.1:9464" => Restart
            r#"Address with a port, or `"unix:/PATH"`, of `/`, `/.well-known/jwks.json`, `/metrics`, `/livez`, `/readyz`, `/key-uses`, `/report`, `/report.txt`, `/status`, `/status.txt` and of [commands](operations.md#admin-address) such as `keygate reload`. Every peer that reaches it can read. The path of a Unix socket has at most 107 bytes."#,
        /// The address for readers; `None` has none.
        pub readers: Option<ReadersConfig>,
        pub commands: AdminCommands = "local" => Restart
            "Peers that may accept a waiting filter, reload and drain. `local`: on loopback, through a Unix socket, or from the address that they connect to. `anywhere`: every peer that reaches `listen`.",
    }
}

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

table! {
    /// State that survives restarts.
    #[derive(Clone, PartialEq, Eq)]
    pub struct StateConfig "" {
        pub dir: Option<PathBuf> => Restart
            "Existing, writable directory for what outlives a restart: the revision and a copy of each filter in use, a copy of each list and of each file with CAs and CRLs of clients, and the updates that wait. A restart accepts no older filter or CRL, and uses the copy in place of a rejected file. Needs room for each filter twice. Each process needs [a directory of its own](operations.md#state-directory).",
    }
}

table! {
    /// The checks for RSA keys that anybody can factor.
    #[derive(Clone, PartialEq, Eq)]
    pub struct WeakKeysConfig "RSA keys that anybody can factor, which need no list ([weak keys](policy.md#weak-keys))." {
        pub checks: WeakChecks as Checks = ["roca", "fermat", "small-factors", "invalid", "wiener", "rsapoly", "shared-primes"] => AtOnce
            "The checks of RSA keys. `[]`: none.",
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

table! {
    struct RawException "An array of tables, any number: `[[exceptions]]`. Keys that are admitted whatever filters and lists contain, weak keys included." {
        fingerprint: KeyDigest as DigestText => AtOnce
            "SHA-256 of the SubjectPublicKeyInfo, in hex or base64, as `keygate key` and the log print it, or `rsa-modulus:` or `ec-x:` and a SHA-256, as `keygate key --lists` prints it; each once. It covers [the encodings of the key](policy.md#related-encodings).",
        until: SystemTime as Until => AtOnce
            "End of the exception, which needs no reload.",
        reason: String as Reason => AtOnce
            "Not empty. For later readers.",
    }
}

/// Number of threads; 0 stands for one for each core.
#[derive(Debug)]
pub(super) struct WorkerCount;

/// Number of threads as it is written.
type Number = Bounded<usize, 0, 1024>;

takes! {
    Exception => Self, RawException::form(), |input| {
        let RawException { fingerprint, until, reason } = RawException::take(input)?;
        Ok(Self { key: fingerprint, until, reason })
    };
    WorkerCount => NonZeroUsize, Number::form(), |input| {
        let cores = || std::thread::available_parallelism().unwrap_or(NonZeroUsize::MIN);
        Ok(NonZeroUsize::new(Number::take(input)?).unwrap_or_else(cores))
    };
}

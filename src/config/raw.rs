//! The tables at the top of a configuration, as they are written.

use std::path::PathBuf;
use std::time::SystemTime;

use keygate_core::guard::{Exception, WeakCheck};
use keygate_core::spki::KeyDigest;

use super::check::{DigestText, Reason, Until};
use super::input::{Input, Taken};
use super::keys::{Form, Takes, table};
use super::policy::RawPolicy;
use super::units::{Bounded, SizeText};
use super::{
    AccessLogConfig, AdminCommands, AuthorizerConfig, ConfirmConfig, FilterConfig, ListConfig,
    ListenAddress, LogConfig, SandboxConfig, ServiceConfig, ShutdownConfig, TracesConfig,
};

/// Number of threads.
type Workers = Bounded<usize, 0, 1024>;
/// Size of all buffers for clients.
type BufferSize = SizeText<u64, { 1 << 20 }, { 1 << 40 }>;

table! {
    pub(super) struct RawConfig "" {
        pub(super) workers: usize as Workers = 0 => Restart
            "Threads that serve connections. 0: one for each core.",
        pub(super) max_buffered: Option<u64> as Option<BufferSize> => Restart
            "Maximum memory for [buffers of clients](operations.md#resources), of all workers together. Without it: half of the memory of the cgroup or the machine that filters and lists leave.",
        pub(super) admin: Admin = {},
        pub(super) log: LogConfig = {},
        pub(super) access_log: AccessLogConfig = {},
        pub(super) state: RawState = {},
        pub(super) filters: Vec<FilterConfig> = [],
        pub(super) lists: Vec<ListConfig> = [],
        pub(super) weak_keys: RawWeakKeys = {},
        pub(super) exceptions: Vec<Exception> = [],
        pub(super) confirm: Option<ConfirmConfig>,
        pub(super) traces: Option<TracesConfig>,
        #[expect(dead_code, reason = "services and authorizers inherit its keys")]
        pub(super) policy: RawPolicy = {},
        pub(super) services: Vec<ServiceConfig> = [],
        pub(super) authorizers: Vec<AuthorizerConfig> = [],
        pub(super) shutdown: ShutdownConfig = {},
        pub(super) sandbox: SandboxConfig = {},
    }
}

table! {
    pub(super) struct Admin "" {
        pub(super) listen: ListenAddress = "127.0.0.1:9464" => Restart
            r#"Address with a port, or `"unix:/PATH"`, of `/`, `/metrics`, `/livez`, `/readyz`, `/key-uses`, `/report`, `/status`, `/status.txt` and of [commands](operations.md#admin-address) such as `keygate reload`. Every peer that reaches it can read. The path of a Unix socket has at most 107 bytes."#,
        pub(super) commands: AdminCommands = "local" => Restart
            "Peers that may accept a waiting filter, reload and drain. `local`: on loopback, through a Unix socket, or from the address that they connect to. `anywhere`: every peer that reaches `listen`.",
    }
}

table! {
    pub(super) struct RawState "" {
        pub(super) dir: Option<PathBuf> => Restart
            "Existing, writable directory for what outlives a restart: the revision and a copy of each filter in use, a copy of each list and of each file with CAs and CRLs of clients, and the updates that wait. A restart accepts no older filter or CRL, and uses the copy in place of a rejected file. Needs room for each filter twice. Each process needs [a directory of its own](operations.md#state-directory).",
    }
}

table! {
    pub(super) struct RawWeakKeys "RSA keys that anybody can factor, which need no list ([weak keys](policy.md#weak-keys))." {
        pub(super) checks: Vec<WeakCheck> = ["roca", "fermat", "small-factors", "invalid", "wiener", "rsapoly", "shared-primes"] => AtOnce
            "The checks of RSA keys. `[]`: none.",
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

impl Takes for Exception {
    type Value = Self;

    fn form() -> Form {
        RawException::form()
    }

    fn take(input: &Input<'_>) -> Taken<Self> {
        let RawException { fingerprint, until, reason } = RawException::take(input)?;
        Ok(Self { key: fingerprint, until, reason })
    }
}

//! The typed tables of a configuration, which declare its keys.

mod allow;
mod authorizer;
mod confirm;
mod fetch;
mod service;
mod traces;
mod upstream;

use std::path::PathBuf;

use keygate_core::guard::{Decision, Depth, RejectWith, WeakCheck};
use serde::Deserialize;
use toml::value::Datetime;

pub(super) use self::allow::RawAllow;
pub(super) use self::authorizer::{
    RawAuthorizer, RawAuthorizerLimits, RawAuthorizerTls, RawCertificateSource, RawChecks,
    RawHeader,
};
pub(super) use self::confirm::RawConfirm;
pub(super) use self::fetch::RawFetch;
pub(super) use self::service::{Limits, RawService, RawTls};
pub(super) use self::traces::RawTraces;
pub(super) use self::upstream::{RawServer, RawUpstream, UpstreamTls};
use super::keys::{Form, Takes, table};
use super::units::{Bounded, DurationText, Positive, SizeText};
use super::{
    AccessLogField, AccessLogFormat, AdminCommands, Implausible, LogFormat, LoggedRequests,
    Rollback, SandboxConfig, Shrink, ShutdownConfig,
};

/// Number of threads.
pub(super) type Workers = Bounded<usize, 0, 1024>;
/// Size of all buffers for clients.
pub(super) type BufferSize = SizeText<{ 1 << 20 }, { 1 << 40 }>;
/// Number of connections.
pub(super) type Connections = Bounded<usize, 1, { 1 << 24 }>;

table! {
    pub(super) struct RawConfig "" {
        pub(super) workers: Workers = 0 => Restart
            "Threads that serve connections. 0: one for each core.",
        pub(super) max_buffered: Option<BufferSize> => Restart
            "Maximum memory for [buffers of clients](operations.md#resources), of all workers together. Without it: half of the memory of the cgroup or the machine that filters and lists leave.",
        pub(super) admin: Admin = {},
        pub(super) log: Log = {},
        pub(super) access_log: RawAccessLog = {},
        pub(super) state: RawState = {},
        pub(super) filters: Vec<RawFilter> = [],
        pub(super) lists: Vec<List> = [],
        pub(super) weak_keys: RawWeakKeys = {},
        pub(super) exceptions: Vec<RawException> = [],
        pub(super) confirm: Option<RawConfirm>,
        pub(super) traces: Option<RawTraces>,
        pub(super) policy: RawPolicy = {},
        pub(super) services: Vec<RawService> = [],
        pub(super) authorizers: Vec<RawAuthorizer> = [],
        pub(super) shutdown: ShutdownConfig = {},
        pub(super) sandbox: SandboxConfig = {},
    }
}

table! {
    pub(super) struct Admin "" {
        pub(super) listen: String = "127.0.0.1:9464" => Restart
            r#"Address with a port, or `"unix:/PATH"`, of `/`, `/metrics`, `/livez`, `/readyz`, `/report`, `/status`, `/status.txt` and of [commands](operations.md#admin-address) such as `keygate reload`. Every peer that reaches it can read. The path of a Unix socket has at most 107 bytes."#,
        pub(super) commands: AdminCommands = "local" => Restart
            "Peers that may accept a waiting filter, reload and drain. `local`: on loopback, through a Unix socket, or from the address that they connect to. `anywhere`: every peer that reaches `listen`.",
    }
}

table! {
    pub(super) struct Log "On standard error." {
        pub(super) format: LogFormat = "auto" => Restart
            "One JSON object a line, or text for people. `auto` is text if standard error is a terminal, otherwise JSON. Text on a terminal has colours, unless `NO_COLOR` is set.",
        pub(super) level: String = "info" => AtOnce
            "`error`, `warn`, `info`, `debug`, `trace`; for a part of keygate with its name, as in `info,keygate::proxy=debug`. Other words are errors. Rejected and flagged clients are logged at every level, unless `keygate::client_key=off` is given.",
        pub(super) repeat_after: DurationText = "60s" => Restart
            r#"Minimum interval between two lines of a worker about the same event of the same client or upstream server. Events are a rejected key, a flagged key, a handshake that fails because of the certificate or the server name, and a failure of an upstream. `left_out` counts the suppressed lines. `"0s"`: every event is logged."#,
    }
}

table! {
    pub(super) struct RawAccessLog r#"A line for each request or each connection of `protocol = "tcp"` ([fields](proxying.md#access-log)), on standard output or in a file."# {
        pub(super) requests: LoggedRequests = "off" => Restart
            "`errors`: status 400 or higher, and requests that were broken off.",
        pub(super) format: AccessLogFormat = "json" => Restart
            "`json`: one JSON object a line. `common`: the Common Log Format, with the common name of the client's certificate as the user.",
        pub(super) fields: Option<Vec<AccessLogField>> => Restart
            r#"The fields of a JSON line; without the key, all of them. Not with `format = "common"`."#,
        pub(super) path: Option<PathBuf> => Restart
            "File that the lines are appended to, instead of standard output. It is created with mode 0640 if it is missing, and opened again on `SIGHUP` and `keygate reload`, so that logrotate can rename it.",
    }
}

table! {
    pub(super) struct RawState "" {
        pub(super) dir: Option<PathBuf> => Restart
            "Existing, writable directory for what outlives a restart: the revision and a copy of each filter in use, a copy of each list and of each file with CAs and CRLs of clients, and the updates that wait. A restart accepts no older filter or CRL, and uses the copy in place of a rejected file. Needs room for each filter twice. Each process needs [a directory of its own](operations.md#state-directory).",
    }
}

table! {
    pub(super) struct RawFilter "An array of tables: `[[filters]]`. A client key is looked up in all of them ([filters](filters.md)). At least one filter or one [list](#lists) is required." {
        pub(super) name: String => AtOnce
            "Name in logs, metrics, `Client-Key-Status` and `keygate filter accept`.",
        pub(super) path: PathBuf => AtOnce
            "File in the `pkbfv1` format. No other filter or list has the same one. A file with the same name and the suffix `.sha256` is checked if it exists.",
        pub(super) max_size: SizeText = "1073741848B" => AtOnce
            "Maximum file size. A larger file is rejected before it is read. The default is 2^33 bits and the header.",
        pub(super) max_age: Option<Positive> => AtOnce
            "Age, by the header, above which the filter is reported as stale.",
        pub(super) rollback: Rollback = "refuse" => AtOnce
            "Handling of a file that is older than the previous one, by its header.",
        pub(super) implausible: Implausible = "refuse" => AtOnce
            "Handling of a file whose bits its own header cannot explain.",
        pub(super) canaries: Vec<PathBuf> = [] => AtOnce
            "Files with keys that must be in the filter.",
        pub(super) max_new_hits: Option<usize> => AtOnce
            "Maximum number of recently admitted clients that an update may reject. An update above it waits for `keygate filter accept`, across restarts with `state.dir`. keygate records clients only if a filter, list, service or authorizer has this key at the start, so the first such key needs a restart; the log warns of it.",
        pub(super) related_exponents: Option<Vec<u32>> = [3, 65537] => AtOnce
            "Public exponents with which the modulus of an RSA key is looked up, besides the presented one: any of 3, 5, 17, 35, 37, 257 and 65537. Each [adds the false-positive rate](filters.md#related-exponents) of the filter once more.",
        pub(super) minisign_key: Option<PathBuf> => AtOnce
            "File with public keys of minisign. The file needs a valid [signature](filters.md#signatures) of one of them, with its name and the suffix `.minisig`.",
        pub(super) source: Option<RawFetch>,
    }
}

table! {
    pub(super) struct List r#"An array of tables, any number: `[[lists]]`. Exact lists of keys ([lists](lists.md)). The keys `max_age` and `rollback` are for `format = "badkeys"` only."# {
        pub(super) name: String => AtOnce
            "Name in logs, metrics and `Client-Key-Status`.",
        pub(super) path: PathBuf => AtOnce
            "The file. No other list or filter has the same one, and no other blocklist the same directory, because of `badkeysdata.json`. A file with the same name and the suffix `.sha256` is checked if it exists.",
        pub(super) format: RawListFormat = "fingerprints" => AtOnce
            "`badkeys`: a `blocklist.dat`; `badkeysdata.json` beside it is read if it exists. `fingerprints`: a text with one key a line: the SHA-256 of its SubjectPublicKeyInfo in hex or base64, or `rsa-modulus:` or `ec-x:` and a SHA-256; comments after `#`.",
        pub(super) max_size: Option<SizeText> = "256MiB" => AtOnce
            r#"Maximum file size. A larger file is rejected. For `format = "fingerprints"` the default is 16 MiB."#,
        pub(super) min_records: Option<usize> = 0 => AtOnce
            "Minimum number of entries. A file with fewer is rejected.",
        pub(super) max_age: Option<Positive> => AtOnce
            "Age, by the date in `badkeysdata.json`, above which the list is reported as stale. A list without a date, or with one in the future, is stale as well.",
        pub(super) rollback: Option<Rollback> = "refuse" => AtOnce
            "Handling of a file that is older than the list in use, by the `date` in `badkeysdata.json`, or that has no date in place of a list with one.",
        pub(super) shrink: Option<Shrink> = "refuse" => AtOnce
            "Handling of a file that lost half of the entries in use or more, or, of a blocklist, lacks more than half of the records in use. With `refuse` it waits for `keygate list accept`.",
        pub(super) canaries: Vec<PathBuf> = [] => AtOnce
            "Files with keys that must be on the list.",
        pub(super) max_new_hits: Option<usize> => AtOnce
            "As for [filters](#filters), with `keygate list accept`.",
        pub(super) minisign_key: Option<PathBuf> => AtOnce
            "File with public keys of minisign. The file needs a valid [signature](filters.md#signatures) of one of them, and so does `badkeysdata.json` if it exists.",
        pub(super) source: Option<RawFetch>,
    }
}

#[derive(Debug, Clone, Copy, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum RawListFormat {
    Badkeys,
    #[default]
    Fingerprints,
}

table! {
    pub(super) struct RawWeakKeys "RSA keys that anybody can factor, which need no list ([weak keys](policy.md#weak-keys))." {
        pub(super) checks: Vec<WeakCheck> = ["roca", "fermat", "small-factors", "invalid", "wiener"] => AtOnce
            "The checks of RSA keys. `[]`: none.",
    }
}

table! {
    pub(super) struct RawException "An array of tables, any number: `[[exceptions]]`. Keys that are admitted whatever filters and lists contain, weak keys included." {
        pub(super) fingerprint: String => AtOnce
            "SHA-256 of the SubjectPublicKeyInfo, in hex or base64, as `keygate key` and the log print it, or `rsa-modulus:` or `ec-x:` and a SHA-256, as `keygate key --lists` prints it; each once. It covers [the encodings of the key](policy.md#related-encodings).",
        pub(super) until: Datetime => AtOnce
            "End of the exception, which needs no reload.",
        pub(super) reason: String => AtOnce
            "Not empty. For later readers.",
    }
}

table! {
    pub(super) struct RawPolicy "The action for each verdict, for every service without its own value ([policy](policy.md)). `flag` serves the client and logs it. `header` does the same and sends the verdict to the upstream. `reject` rejects the client." {
        pub(super) on_cleared: Option<ClearedAction> = "admit" => AtOnce
            "The key is in a filter, and the source of proofs does not know it. With `reject`, answers only ever make a verdict worse.",
        pub(super) on_confirmed: Option<Action> = "reject" => AtOnce
            "The compromise of the key is proved.",
        pub(super) on_listed: Option<Action> = "reject" => AtOnce
            "The key is on a list.",
        pub(super) on_probable: Option<Action> = "reject" => AtOnce
            "The key is in a filter.",
        pub(super) on_unchecked: Option<Action> = "reject" => AtOnce
            "There is no key, or it cannot be checked.",
        pub(super) on_weak: Option<Action> = "reject" => AtOnce
            "Anybody can compute the private half of the RSA key.",
        pub(super) judge: Option<Depth> = "leaf" => AtOnce
            "Keys that are judged: the client's own, or all on the [verified path](policy.md#the-verified-path).",
        pub(super) reject_with: Option<RejectWith> = "alert" => NewConnections
            r#"Form of a rejection: an alert in the handshake, or 403 to the first request. With `protocol = "tcp"` only `alert`."#,
        pub(super) evict_within: Option<DurationText> = "10s" => AtOnce
            "Maximum time for an evicted connection to finish before it is closed.",
        pub(super) allow_compromised_own_key: Option<bool> = false => AtOnce
            "`true`: a hit on a key of the service, of a trust anchor or of one of `intermediates` is a warning at the start instead of an error.",
        pub(super) header: Option<String> = "Client-Key-Status" => NextRequest
            "Field that carries the verdict to the upstream, if any `on_…` of the service is `header`. A client's own copy is always removed. Names of fields that keygate writes, such as `X-Request-Id`, of fields that frame a message, and of a client's credentials, such as `Authorization`, are rejected, in any spelling. For an authorizer with `ext-authz` the name has at most six hyphens and underscores.",
    }
}

/// The policy of an authorizer, which lacks the keys about connections of clients.
#[derive(Debug, Deserialize)]
#[serde(transparent)]
pub(super) struct RawAskedPolicy(pub(super) RawPolicy);

impl Takes for RawAskedPolicy {
    fn form() -> Form {
        let mut form = RawPolicy::form();
        if let Form::Table(table) = &mut form {
            table.keys.retain(|key| !["reject_with", "evict_within"].contains(&key.name));
        }
        form
    }
}

/// An action that a policy can choose. None admits without a log line.
#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Action {
    Flag,
    Header,
    Reject,
}

/// An action for a cleared key, which may be admitted without a log line.
#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum ClearedAction {
    Admit,
    Flag,
    Header,
    Reject,
}

impl From<ClearedAction> for Decision {
    fn from(action: ClearedAction) -> Self {
        match action {
            ClearedAction::Admit => Self::Admit,
            ClearedAction::Flag => Self::Flag,
            ClearedAction::Header => Self::Annotate,
            ClearedAction::Reject => Self::Reject,
        }
    }
}

impl From<Action> for Decision {
    fn from(action: Action) -> Self {
        match action {
            Action::Flag => Self::Flag,
            Action::Header => Self::Annotate,
            Action::Reject => Self::Reject,
        }
    }
}

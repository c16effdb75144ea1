//! The TOML tables as they are written. Unknown keys are errors, and optional keys have their
//! defaults here.

mod allow;
mod authorizer;
mod confirm;
mod fetch;
mod service;
mod traces;
mod upstream;

use std::path::PathBuf;
use std::time::Duration;

use serde::Deserialize;
use serde::de::IgnoredAny;

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
use super::number::Bounded;
use super::units::{self, DateText, DurationText, SizeText};
use super::{
    AccessLogField, AccessLogFormat, AdminCommands, Implausible, LogFormat, LoggedRequests,
    Rollback, SandboxConfig, Shrink, ShutdownConfig,
};
use crate::guard::{Decision, Depth, RejectWith, WeakCheck};

/// Number of threads.
pub(super) type Workers = Bounded<usize, 0, 1024>;
/// Size of all buffers for clients.
pub(super) type BufferSize = SizeText<{ 1 << 20 }, { 1 << 40 }>;
/// Number of connections.
pub(super) type Connections = Bounded<usize, 1, { 1 << 24 }>;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, expecting = "a table")]
pub(super) struct RawConfig {
    #[serde(default = "one_for_each_core")]
    pub(super) workers: Workers,
    pub(super) max_buffered: Option<BufferSize>,
    #[serde(default)]
    pub(super) admin: Admin,
    #[serde(default)]
    pub(super) log: Log,
    #[serde(default)]
    pub(super) access_log: RawAccessLog,
    #[serde(default)]
    pub(super) state: RawState,
    #[serde(default)]
    pub(super) filters: Vec<RawFilter>,
    #[serde(default)]
    pub(super) lists: Vec<List>,
    #[serde(default)]
    pub(super) weak_keys: RawWeakKeys,
    #[serde(default)]
    pub(super) exceptions: Vec<RawException>,
    pub(super) confirm: Option<RawConfirm>,
    pub(super) traces: Option<RawTraces>,
    #[serde(default)]
    pub(super) policy: RawPolicy,
    #[serde(default)]
    pub(super) services: Vec<RawService>,
    #[serde(default)]
    pub(super) authorizers: Vec<RawAuthorizer>,
    #[serde(default)]
    pub(super) shutdown: ShutdownConfig,
    #[serde(default)]
    pub(super) sandbox: SandboxConfig,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Admin {
    #[serde(deserialize_with = "units::listen")]
    pub(super) listen: String,
    pub(super) commands: AdminCommands,
}

impl Default for Admin {
    fn default() -> Self {
        Self { listen: "127.0.0.1:9464".to_owned(), commands: AdminCommands::Local }
    }
}

/// A configuration of which only the admin address is read. All other keys are ignored.
#[derive(Debug, Deserialize)]
pub(super) struct AdminOnly {
    #[serde(default)]
    pub(super) admin: Admin,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Log {
    pub(super) format: LogFormat,
    pub(super) level: String,
    pub(super) repeat_after: DurationText,
}

impl Default for Log {
    fn default() -> Self {
        let repeat_after = DurationText(Duration::from_secs(60));
        Self { format: LogFormat::Auto, level: "info".to_owned(), repeat_after }
    }
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct RawAccessLog {
    pub(super) requests: LoggedRequests,
    pub(super) format: AccessLogFormat,
    pub(super) fields: Option<Vec<AccessLogField>>,
    pub(super) path: Option<PathBuf>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, expecting = "a table")]
pub(super) struct RawState {
    pub(super) dir: Option<PathBuf>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, expecting = "a table")]
pub(super) struct RawFilter {
    pub(super) name: String,
    pub(super) path: PathBuf,
    #[serde(default = "one_gibibyte")]
    pub(super) max_size: SizeText,
    pub(super) max_age: Option<DurationText>,
    #[serde(default = "refuse_rollback")]
    pub(super) rollback: Rollback,
    #[serde(default = "refuse_implausible")]
    pub(super) implausible: Implausible,
    #[serde(default)]
    pub(super) canaries: Vec<PathBuf>,
    pub(super) max_new_hits: Option<usize>,
    pub(super) related_exponents: Option<Vec<u32>>,
    pub(super) source: Option<RawFetch>,
    pub(super) minisign_key: Option<PathBuf>,
}

fn one_for_each_core() -> Workers {
    Bounded(0)
}

fn enabled() -> bool {
    true
}

fn refuse_rollback() -> Rollback {
    Rollback::Refuse
}

fn refuse_implausible() -> Implausible {
    Implausible::Refuse
}

/// The largest published filter has 2^33 bits and a header.
fn one_gibibyte() -> SizeText {
    SizeText((1 << 30) + 24)
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, expecting = "a table")]
pub(super) struct List {
    pub(super) name: String,
    pub(super) path: PathBuf,
    #[serde(default)]
    pub(super) format: RawListFormat,
    pub(super) max_size: Option<SizeText>,
    pub(super) min_records: Option<usize>,
    pub(super) max_age: Option<DurationText>,
    pub(super) rollback: Option<Rollback>,
    pub(super) shrink: Option<Shrink>,
    #[serde(default)]
    pub(super) canaries: Vec<PathBuf>,
    pub(super) max_new_hits: Option<usize>,
    pub(super) source: Option<RawFetch>,
    pub(super) minisign_key: Option<PathBuf>,
}

#[derive(Debug, Clone, Copy, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum RawListFormat {
    Badkeys,
    #[default]
    Fingerprints,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct RawWeakKeys {
    pub(super) checks: Vec<WeakCheck>,
}

impl Default for RawWeakKeys {
    fn default() -> Self {
        Self { checks: WeakCheck::ALL.into() }
    }
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, expecting = "a table")]
pub(super) struct RawException {
    pub(super) fingerprint: String,
    pub(super) until: DateText,
    pub(super) reason: String,
}

/// The settings of a `policy` table. The types are those of the keys about connections of clients.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawPolicy<R = RejectWith, E = DurationText> {
    pub(super) on_cleared: Option<ClearedAction>,
    pub(super) on_confirmed: Option<Action>,
    pub(super) on_listed: Option<Action>,
    pub(super) on_probable: Option<Action>,
    pub(super) on_unchecked: Option<Action>,
    pub(super) on_weak: Option<Action>,
    pub(super) judge: Option<Depth>,
    pub(super) reject_with: Option<R>,
    pub(super) header: Option<String>,
    pub(super) evict_within: Option<E>,
    pub(super) allow_compromised_own_key: Option<bool>,
}

/// The policy of an authorizer, for which every value of the keys about connections is an error. No
/// message may suggest another value.
pub(super) type RawAskedPolicy = RawPolicy<IgnoredAny, IgnoredAny>;

impl<R, E> Default for RawPolicy<R, E> {
    fn default() -> Self {
        Self {
            on_cleared: None,
            on_confirmed: None,
            on_listed: None,
            on_probable: None,
            on_unchecked: None,
            on_weak: None,
            judge: None,
            reject_with: None,
            header: None,
            evict_within: None,
            allow_compromised_own_key: None,
        }
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

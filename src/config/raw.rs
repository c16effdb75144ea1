//! The model as it is typed: unknown keys are errors, what may be left out has its default here.

use std::path::PathBuf;
use std::time::Duration;

use serde::Deserialize;
use toml::value::Datetime;

use super::units::{DurationText, SizeText};
use super::{
    AlpnProtocol, ClientAuthMode, ExpiredCrl, Implausible, LogFormat, Rollback, TlsVersion,
};
use crate::guard::{Decision, Depth, RejectWith};

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Config {
    #[serde(default)]
    pub(super) workers: usize,
    #[serde(default)]
    pub(super) admin: Admin,
    #[serde(default)]
    pub(super) log: Log,
    #[serde(default)]
    pub(super) state: State,
    #[serde(default)]
    pub(super) filters: Vec<Filter>,
    #[serde(default)]
    pub(super) lists: Vec<List>,
    #[serde(default)]
    pub(super) exceptions: Vec<Exception>,
    #[serde(default)]
    pub(super) policy: Policy,
    #[serde(default)]
    pub(super) services: Vec<Service>,
    #[serde(default)]
    pub(super) shutdown: Shutdown,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Admin {
    pub(super) listen: String,
}

impl Default for Admin {
    fn default() -> Self {
        Self { listen: "127.0.0.1:9464".to_owned() }
    }
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Log {
    pub(super) format: LogFormat,
    pub(super) level: String,
}

impl Default for Log {
    fn default() -> Self {
        Self { format: LogFormat::Json, level: "info".to_owned() }
    }
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct State {
    pub(super) dir: Option<PathBuf>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Filter {
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
}

fn refuse_rollback() -> Rollback {
    Rollback::Refuse
}

fn refuse_implausible() -> Implausible {
    Implausible::Refuse
}

/// The published sizes end at 2^33 bits; the header comes on top.
fn one_gibibyte() -> SizeText {
    SizeText((1 << 30) + 24)
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct List {
    pub(super) name: String,
    pub(super) path: PathBuf,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Exception {
    pub(super) fingerprint: String,
    pub(super) until: Datetime,
    pub(super) reason: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Policy {
    pub(super) on_confirmed: Option<Action>,
    pub(super) on_listed: Option<Action>,
    pub(super) on_probable: Option<Action>,
    pub(super) on_unchecked: Option<Action>,
    pub(super) judge: Option<Depth>,
    pub(super) reject_with: Option<RejectWith>,
    pub(super) header: Option<String>,
    pub(super) evict_within: Option<DurationText>,
    pub(super) allow_compromised_own_key: Option<bool>,
}

/// What a policy can say; admitting silently is not among it.
#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Action {
    Flag,
    Header,
    Reject,
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

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Service {
    pub(super) name: String,
    pub(super) listen: String,
    #[serde(default)]
    pub(super) server_names: Vec<String>,
    pub(super) tls: Tls,
    pub(super) client_auth: ClientAuth,
    #[serde(default)]
    pub(super) forward: Forward,
    pub(super) upstream: Upstream,
    #[serde(default)]
    pub(super) limits: Limits,
    #[serde(default)]
    pub(super) policy: Policy,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Tls {
    pub(super) certificate: PathBuf,
    pub(super) private_key: PathBuf,
    #[serde(default = "oldest_version")]
    pub(super) min_version: TlsVersion,
    #[serde(default = "both_protocols")]
    pub(super) alpn: Vec<AlpnProtocol>,
    #[serde(default = "enabled")]
    pub(super) resumption: bool,
}

fn oldest_version() -> TlsVersion {
    TlsVersion::V1_2
}

fn both_protocols() -> Vec<AlpnProtocol> {
    vec![AlpnProtocol::H2, AlpnProtocol::Http11]
}

fn enabled() -> bool {
    true
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ClientAuth {
    pub(super) trust_anchors: PathBuf,
    #[serde(default = "required")]
    pub(super) mode: ClientAuthMode,
    #[serde(default)]
    pub(super) crls: Vec<PathBuf>,
    #[serde(default = "reject_expired")]
    pub(super) expired_crl: ExpiredCrl,
}

fn reject_expired() -> ExpiredCrl {
    ExpiredCrl::Reject
}

fn required() -> ClientAuthMode {
    ClientAuthMode::Required
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Forward {
    pub(super) client_cert: bool,
    pub(super) forwarded: Forwarded,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
pub(super) enum Forwarded {
    #[serde(rename = "off")]
    Off,
    #[serde(rename = "x-forwarded")]
    XForwarded,
}

impl Default for Forward {
    fn default() -> Self {
        Self { client_cert: true, forwarded: Forwarded::XForwarded }
    }
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Upstream {
    pub(super) servers: Vec<String>,
    #[serde(default = "two_seconds")]
    pub(super) connect_timeout: DurationText,
    #[serde(default = "a_minute")]
    pub(super) response_timeout: DurationText,
    #[serde(default = "a_minute")]
    pub(super) idle_timeout: DurationText,
}

fn two_seconds() -> DurationText {
    DurationText(Duration::from_secs(2))
}

fn a_minute() -> DurationText {
    DurationText(Duration::from_secs(60))
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Limits {
    pub(super) handshake_timeout: DurationText,
    pub(super) header_timeout: DurationText,
    pub(super) idle_timeout: DurationText,
    pub(super) max_connections: usize,
    pub(super) max_header_size: SizeText,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            handshake_timeout: DurationText(Duration::from_secs(10)),
            header_timeout: DurationText(Duration::from_secs(10)),
            idle_timeout: DurationText(Duration::from_secs(60)),
            max_connections: 10_000,
            max_header_size: SizeText(32 << 10),
        }
    }
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Shutdown {
    pub(super) readiness_delay: DurationText,
    pub(super) drain_timeout: DurationText,
}

impl Default for Shutdown {
    fn default() -> Self {
        Self {
            readiness_delay: DurationText(Duration::from_secs(5)),
            drain_timeout: DurationText(Duration::from_secs(30)),
        }
    }
}

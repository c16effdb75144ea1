//! What the loader knows, for the status page and for people. Times are in seconds since the Unix
//! epoch.

use std::path::Path;

use serde::Serialize;

use super::RejectionReason;
use crate::config::ServiceConfig;
use crate::guard::{Exception, FingerprintList, NamedFilter};
use crate::metrics::{Label, ReloadResult};
use crate::pkbf::FilterSummary;

/// The state of everything that a reload can change.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Report {
    /// The number of the snapshot in use.
    pub generation: u64,
    /// The last look at the configuration; none since the start, if there is none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub configuration: Option<ReloadReport>,
    /// In the order of the configuration.
    pub filters: Vec<FilterReport>,
    /// In the order of the configuration.
    pub lists: Vec<ListReport>,
    /// In the order of the configuration.
    pub exceptions: Vec<ExceptionReport>,
    /// In the order of the configuration.
    pub services: Vec<ServiceReport>,
}

/// A filter in use and the last look at its file.
#[derive(Debug, Clone, Serialize)]
pub struct FilterReport {
    /// As configured.
    pub name: String,
    /// What is in the file.
    #[serde(flatten)]
    pub summary: FilterSummary,
    /// When it was put to use.
    pub loaded: u64,
    /// Older than the configuration's `max_age`.
    pub stale: bool,
    /// The last look at the file.
    pub last_reload: ReloadReport,
    /// The last look at the file that ended with a refusal.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_refusal: Option<ReloadReport>,
    /// An update that the operator may let through.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub waiting: Option<WaitingReport>,
}

/// A list in use and the last look at its file.
#[derive(Debug, Clone, Serialize)]
pub struct ListReport {
    /// As configured.
    pub name: String,
    /// The file.
    pub path: String,
    /// How many keys are on it.
    pub entries: usize,
    /// The last look at the file.
    pub last_reload: ReloadReport,
}

impl ListReport {
    pub(super) fn of(list: &FingerprintList, path: &Path, last_reload: ReloadReport) -> Self {
        let (name, path) = (list.name.to_string(), path.display().to_string());
        Self { name, path, entries: list.len(), last_reload }
    }
}

/// An exception, and whether it still counts.
#[derive(Debug, Clone, Serialize)]
pub struct ExceptionReport {
    /// SHA-256 of the key, in hex.
    pub fingerprint: String,
    /// When it ends.
    pub until: u64,
    /// As configured.
    pub reason: String,
    /// Whether it has ended.
    pub lapsed: bool,
}

impl ExceptionReport {
    pub(super) fn of(exception: &Exception, until: u64, lapsed: bool) -> Self {
        let (fingerprint, reason) = (exception.fingerprint.to_string(), exception.reason.clone());
        Self { fingerprint, until, reason, lapsed }
    }
}

/// An update that would refuse too many of the clients seen lately.
#[derive(Debug, Clone, Serialize)]
pub struct WaitingReport {
    /// SHA-256 of the file, in hex.
    pub sha256: String,
    revision: u32,
    updated: u64,
    entries: u32,
    /// How many clients seen lately it would refuse.
    pub new_hits: usize,
    max_new_hits: usize,
}

impl WaitingReport {
    pub(super) fn of(update: &NamedFilter, new_hits: usize, max_new_hits: usize) -> Self {
        let header = update.filter.header();
        Self {
            sha256: data_encoding::HEXLOWER.encode(&update.sha256),
            revision: header.revision,
            updated: header.updated_at,
            entries: header.entry_count,
            new_hits,
            max_new_hits,
        }
    }
}

/// A service in use and the last look at its certificates.
#[derive(Debug, Clone, Serialize)]
pub struct ServiceReport {
    /// As configured.
    pub name: String,
    /// As configured.
    pub listen: String,
    /// None: the default service of its address.
    pub server_names: Vec<String>,
    /// The servers.
    pub upstream: Vec<String>,
    on_confirmed: &'static str,
    /// The action for a key on a list.
    pub on_listed: &'static str,
    /// The action for a key in a filter.
    pub on_probable: &'static str,
    /// The action for a client whose key cannot be checked.
    pub on_unchecked: &'static str,
    /// When the service's own certificate expires.
    pub certificate_not_after: u64,
    /// When the certificate that the upstream is shown expires.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub upstream_certificate_not_after: Option<u64>,
    /// When the first revocation list is no longer up to date.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub crl_next_update: Option<u64>,
    /// The last look at the service's files.
    pub last_reload: ReloadReport,
}

/// What became of the last change of a file.
#[derive(Debug, Clone, Serialize)]
pub struct ReloadReport {
    /// `loaded`, `unchanged` or `refused`.
    pub result: &'static str,
    /// Why a filter was refused, in one word.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<&'static str>,
    /// Why it was refused, in words.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// When.
    pub at: u64,
}

impl ReloadReport {
    pub(super) fn done(result: ReloadResult, at: u64) -> Self {
        Self { result: result.as_str(), reason: None, error: None, at }
    }

    pub(super) fn error(&self) -> Option<&str> {
        self.error.as_deref()
    }

    pub(super) fn refused(reason: Option<RejectionReason>, error: String, at: u64) -> Self {
        let result = ReloadResult::Rejected.as_str();
        Self { result, reason: reason.map(Label::as_str), error: Some(error), at }
    }
}

impl FilterReport {
    pub(super) fn of(
        named: &NamedFilter,
        path: &Path,
        loaded: u64,
        last_reload: ReloadReport,
    ) -> Self {
        Self {
            name: named.name.to_string(),
            summary: FilterSummary::of(path, &named.filter, &named.sha256),
            loaded,
            stale: false,
            last_reload,
            last_refusal: None,
            waiting: None,
        }
    }
}

impl ServiceReport {
    pub(super) fn of(
        config: &ServiceConfig,
        (certificate_not_after, upstream_certificate_not_after): (u64, Option<u64>),
        crl_next_update: Option<u64>,
        last_reload: ReloadReport,
    ) -> Self {
        Self {
            name: config.name.clone(),
            listen: config.listen.to_string(),
            server_names: config.server_names.clone(),
            upstream: config.upstream.servers.iter().map(ToString::to_string).collect(),
            on_confirmed: config.policy.on_confirmed.as_str(),
            on_listed: config.policy.on_listed.as_str(),
            on_probable: config.policy.on_probable.as_str(),
            on_unchecked: config.policy.on_unchecked.as_str(),
            certificate_not_after,
            upstream_certificate_not_after,
            crl_next_update,
            last_reload,
        }
    }
}

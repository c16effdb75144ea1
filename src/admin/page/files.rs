//! The rows of filters, lists and the configuration.

use keygate_core::unix_time::ago;

use super::Badge;
use crate::admin::remedy;
use crate::sources::{
    AffectedClient, DryRunReport, FilterReport, ListReport, ReloadReport, WaitingReport,
};

pub(super) struct FilterRow<'a> {
    pub(super) name: &'a str,
    pub(super) path: &'a str,
    /// The command that shows what is in the file.
    pub(super) info_command: String,
    pub(super) sha256: &'a str,
    pub(super) state: Badge,
    pub(super) revision: u32,
    pub(super) updated: String,
    pub(super) entries: u32,
    pub(super) fill: String,
    pub(super) false_positives: String,
    /// Key and trusted comment of the signature.
    pub(super) signature: Option<String>,
    pub(super) loaded: String,
    pub(super) last_reload: String,
    /// The last rejected update, with its whole reason.
    pub(super) rejection: Option<String>,
    /// The update that waits for the operator.
    pub(super) waiting: Option<WaitingUpdate<'a>>,
}

/// An update that waits for the operator.
pub(super) struct WaitingUpdate<'a> {
    pub(super) new_hits: usize,
    pub(super) sha256: &'a str,
    /// The command that accepts the update.
    pub(super) command: String,
    /// Recent clients that the update would reject.
    pub(super) affected: &'a [AffectedClient],
}

impl<'a> WaitingUpdate<'a> {
    pub(super) fn new(
        report: &'a DryRunReport,
        kind: &str,
        name: &str,
        config: Option<&str>,
    ) -> Option<Self> {
        let waiting = report.waiting.as_ref().filter(|_| report.acceptable)?;
        let WaitingReport { new_hits, sha256, clients, .. } = waiting;
        let command = remedy::accept(kind, name, config);
        Some(Self { new_hits: *new_hits, sha256, command, affected: clients })
    }
}

impl<'a> FilterRow<'a> {
    /// `config` is the path of the configuration.
    pub(super) fn new(report: &'a FilterReport, config: Option<&str>, now: u64) -> Self {
        let summary = &report.summary;
        let state = if report.dry_run.acceptable {
            Badge::new("warn", "an update waits")
        } else if report.last_good_in_use {
            Badge::new("bad", "last good filter in use, file rejected")
        } else if report.last_reload.error.is_some() {
            Badge::new("bad", "update rejected")
        } else if report.stale {
            Badge::new("warn", "stale")
        } else {
            Badge::new("good", "in use")
        };
        let updated =
            if summary.updated == 0 { "never".to_owned() } else { ago(summary.updated, now) };
        Self {
            name: &report.name,
            path: &summary.path,
            info_command: remedy::filter_info(&summary.path),
            sha256: &summary.sha256,
            state,
            revision: summary.revision,
            updated,
            entries: summary.entries,
            fill: format!("{:.1} %", summary.fill_ratio * 100.0),
            false_positives: format!("{:.1e}", summary.false_positive_ratio),
            signature: report.signature.as_ref().map(ToString::to_string),
            loaded: ago(report.loaded, now),
            last_reload: outcome(&report.last_reload, now),
            rejection: report.last_rejection.as_ref().map(|it| reason(it, now)),
            waiting: WaitingUpdate::new(&report.dry_run, "filter", &report.name, config),
        }
    }
}

pub(super) struct ListRow<'a> {
    pub(super) name: &'a str,
    pub(super) path: &'a str,
    /// The command that shows what is in the file.
    pub(super) info_command: String,
    pub(super) format: &'static str,
    pub(super) state: Badge,
    pub(super) entries: usize,
    pub(super) updated: String,
    /// Key and trusted comment of the signature.
    pub(super) signature: Option<String>,
    pub(super) last_reload: String,
    pub(super) rejection: Option<String>,
    /// The update that waits for the operator.
    pub(super) waiting: Option<WaitingUpdate<'a>>,
}

impl<'a> ListRow<'a> {
    /// `config` is the path of the configuration.
    pub(super) fn new(report: &'a ListReport, config: Option<&str>, now: u64) -> Self {
        let is_rejected = report.last_reload.error.is_some();
        let state = if report.dry_run.acceptable {
            Badge::new("warn", "an update waits")
        } else if report.last_good_in_use {
            Badge::new("bad", "last good list in use, file rejected")
        } else if is_rejected {
            Badge::new("bad", "update rejected")
        } else if report.stale {
            Badge::new("warn", "stale")
        } else {
            Badge::new("good", "in use")
        };
        Self {
            name: &report.name,
            path: &report.path,
            info_command: remedy::list_info(&report.path),
            format: report.format,
            state,
            entries: report.entries,
            updated: report.updated.map_or_else(|| "-".to_owned(), |updated| ago(updated, now)),
            signature: report.signature.as_ref().map(ToString::to_string),
            last_reload: outcome(&report.last_reload, now),
            rejection: is_rejected.then(|| reason(&report.last_reload, now)),
            waiting: WaitingUpdate::new(&report.dry_run, "list", &report.name, config),
        }
    }
}

/// The last attempt to read the configuration again.
pub(super) struct ConfigurationRow {
    pub(super) state: Badge,
    pub(super) rejection: Option<String>,
}

impl ConfigurationRow {
    pub(super) fn new(reload: &ReloadReport, now: u64) -> Self {
        let rejection = reload.error.is_some().then(|| reason(reload, now));
        let kind = if rejection.is_some() { "bad" } else { "good" };
        Self { state: Badge::new(kind, outcome(reload, now)), rejection }
    }
}

/// Result and time of a reload.
pub(super) fn outcome(reload: &ReloadReport, now: u64) -> String {
    let result = if reload.error.is_some() { "rejected" } else { reload.result };
    format!("{result} {}", ago(reload.at, now))
}

/// Why a reload was rejected, and when.
pub(super) fn reason(reload: &ReloadReport, now: u64) -> String {
    let error = reload.error.as_deref().unwrap_or_default();
    match reload.reason {
        Some(reason) => format!("{} ({reason}): {error}", ago(reload.at, now)),
        None => format!("{}: {error}", ago(reload.at, now)),
    }
}

//! The rows of filters, lists and the configuration.

use keygate_core::unix_time::ago;

use super::Badge;
use crate::admin::remedy;
use crate::sources::{DryRunReport, FilterReport, ListReport, ReloadReport, WaitingReport};

pub(super) struct FilterRow<'a> {
    pub(super) report: &'a FilterReport,
    pub(super) state: Badge,
    pub(super) updated: String,
    pub(super) loaded: String,
    pub(super) last_reload: String,
    /// The last rejected update, with its whole reason.
    pub(super) rejection: Option<String>,
    /// The update that waits for the operator.
    pub(super) waiting: Option<WaitingUpdate<'a>>,
}

/// An update that waits for the operator.
pub(super) struct WaitingUpdate<'a> {
    pub(super) report: &'a WaitingReport,
    /// The command that accepts the update.
    pub(super) command: String,
}

impl<'a> WaitingUpdate<'a> {
    pub(super) fn new(
        report: &'a DryRunReport,
        kind: &str,
        name: &str,
        config: Option<&str>,
    ) -> Option<Self> {
        let waiting = report.waiting.as_ref().filter(|_| report.acceptable)?;
        Some(Self { report: waiting, command: remedy::accept(kind, name, config) })
    }
}

impl<'a> FilterRow<'a> {
    /// `config` is the path of the configuration.
    pub(super) fn new(report: &'a FilterReport, config: Option<&str>, now: u64) -> Self {
        let summary = &report.summary;
        let is_rejected = report.last_reload.error.is_some();
        let last_good = report.last_good_in_use.then_some("last good filter in use, file rejected");
        let updated =
            if summary.updated == 0 { "never".to_owned() } else { ago(summary.updated, now) };
        Self {
            report,
            state: state(&report.dry_run, last_good, is_rejected, report.stale),
            updated,
            loaded: ago(report.loaded, now),
            last_reload: outcome(&report.last_reload, now),
            rejection: report.last_rejection.as_ref().and_then(|it| rejection(it, now)),
            waiting: WaitingUpdate::new(&report.dry_run, "filter", &report.name, config),
        }
    }
}

/// The state of a filter or list. `last_good` is the text for one from the state directory.
fn state(
    dry_run: &DryRunReport,
    last_good: Option<&str>,
    is_rejected: bool,
    is_stale: bool,
) -> Badge {
    match last_good {
        _ if dry_run.acceptable => Badge::new("warn", "an update waits"),
        Some(last_good) => Badge::new("bad", last_good),
        None if is_rejected => Badge::new("bad", "update rejected"),
        None if is_stale => Badge::new("warn", "stale"),
        None => Badge::new("good", "in use"),
    }
}

pub(super) struct ListRow<'a> {
    pub(super) report: &'a ListReport,
    pub(super) state: Badge,
    pub(super) updated: String,
    pub(super) last_reload: String,
    pub(super) rejection: Option<String>,
    /// The update that waits for the operator.
    pub(super) waiting: Option<WaitingUpdate<'a>>,
}

impl<'a> ListRow<'a> {
    /// `config` is the path of the configuration.
    pub(super) fn new(report: &'a ListReport, config: Option<&str>, now: u64) -> Self {
        let is_rejected = report.last_reload.error.is_some();
        let last_good = report.last_good_in_use.then_some("last good list in use, file rejected");
        Self {
            report,
            state: state(&report.dry_run, last_good, is_rejected, report.stale),
            updated: report.updated.map_or_else(|| "-".to_owned(), |updated| ago(updated, now)),
            last_reload: outcome(&report.last_reload, now),
            rejection: rejection(&report.last_reload, now),
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
        let rejection = rejection(reload, now);
        let kind = if rejection.is_some() { "bad" } else { "good" };
        Self { state: Badge::new(kind, outcome(reload, now)), rejection }
    }
}

/// Result and time of a reload.
fn outcome(reload: &ReloadReport, now: u64) -> String {
    let result = if reload.error.is_some() { "rejected" } else { reload.result };
    format!("{result} {}", ago(reload.at, now))
}

/// Why a reload was rejected, and when; `None` if it was not.
pub(super) fn rejection(reload: &ReloadReport, now: u64) -> Option<String> {
    let error = reload.error.as_deref()?;
    let reason = reload.reason.map(|reason| format!(" ({reason})")).unwrap_or_default();
    Some(format!("{}{reason}: {error}", ago(reload.at, now)))
}

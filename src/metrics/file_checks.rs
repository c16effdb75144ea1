//! The series of the checks of a file, which filters and lists have.

use prometheus::{Gauge, GaugeVec, IntCounter, IntCounterVec, Registry};

use super::labels::{Family, Label, ReloadResult};
use super::{counters, opts, register};

/// The series of the checks of one file.
#[derive(Debug, Clone)]
pub struct FileChecks {
    name: String,
    last_successful: Gauge,
    reloads: Family<ReloadResult, IntCounter>,
    rejections: IntCounterVec,
}

impl FileChecks {
    /// Counts a check after which the content is in use: the file was loaded, or is unchanged.
    pub fn record_usable(&self, result: ReloadResult) {
        self.last_successful.set(1.0);
        self.reloads.of(result).inc();
    }

    /// Counts a rejected update.
    pub fn record_rejected(&self, reason: impl Label) {
        self.last_successful.set(0.0);
        self.reloads.of(ReloadResult::Rejected).inc();
        self.rejections.with_label_values(&[&self.name, reason.as_str()]).inc();
    }
}

/// The series that filters and lists have in common.
pub trait GuardedFileMetrics {
    /// The series of the checks of the file.
    fn checks(&self) -> &FileChecks;

    /// Counts updates that an operator accepted.
    fn accepted(&self) -> &IntCounter;

    /// Sets whether the value in use is older than its `max_age`, or of unknown age.
    fn set_stale(&self, is_stale: bool);

    /// Sets whether the value in use comes from the state directory. Lists have no such series.
    fn set_last_good_in_use(&self, _is_last_good: bool) {}
}

/// The names of these series.
pub(super) struct FileCheckNames {
    pub(super) last_successful: &'static str,
    pub(super) reloads: &'static str,
    pub(super) rejections: &'static str,
}

/// The series of the checks of all files of one kind.
#[derive(Debug, Clone)]
pub(super) struct FileCheckSeries {
    last_successful: GaugeVec,
    reloads: IntCounterVec,
    rejections: IntCounterVec,
}

impl FileCheckSeries {
    /// `kind` is the label that has the name of the file: `filter` or `list`.
    #[rustfmt::skip] // a table
    pub(super) fn register(
        registry: &Registry,
        kind: &str,
        names: &FileCheckNames,
    ) -> Result<Self, prometheus::Error> {
        let last_successful = opts(names.last_successful, "0 if the file was rejected at its last check.");
        Ok(Self {
            last_successful: register(registry, GaugeVec::new(last_successful, &[kind]))?,
            reloads: counters(registry, names.reloads, &format!("Checks of a {kind} file by result."), &[kind, "result"])?,
            rejections: counters(registry, names.rejections, &format!("Rejected updates of a {kind} file by reason."), &[kind, "reason"])?,
        })
    }

    /// The series of the file with this name, whose rejections have `reasons`; at zero if they are
    /// new.
    pub(super) fn with_name(&self, name: &str, reasons: &[impl Label]) -> FileChecks {
        for reason in reasons {
            let _ = self.rejections.with_label_values(&[name, reason.as_str()]); // at zero
        }
        FileChecks {
            name: name.to_owned(),
            last_successful: self.last_successful.with_label_values(&[name]),
            reloads: Family::from_vec(&self.reloads, &[name]),
            rejections: self.rejections.clone(),
        }
    }

    /// Removes the gauge of a file that is no longer configured. Its counters stay.
    pub(super) fn remove(&self, name: &str) {
        let _ = self.last_successful.remove_label_values(&[name]); // fails only if there is none
    }
}

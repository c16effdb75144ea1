//! The series of lists.

use prometheus::{IntCounter, IntCounterVec, Registry};

use super::counters;
use super::file_checks::{FileCheckNames, FileCheckSeries, FileChecks, GuardedFileMetrics};
use super::gauges::{GaugeTable, Gauges, Row};
use super::labels::{Label, ReloadResult};

/// The series of one list.
#[derive(Debug, Clone)]
pub struct ListMetrics {
    gauges: Gauges<ListGauge>,
    checks: FileChecks,
    /// Updates that an operator accepted although they failed a check.
    accepted: IntCounter,
}

impl ListMetrics {
    /// Shows a list that was activated. `date` is in seconds since the Unix epoch.
    pub fn record_loaded(&self, entries: usize, date: Option<u64>) {
        self.gauges.set(ListGauge::Entries, entries as f64);
        self.gauges.set(ListGauge::Updated, date.unwrap_or_default() as f64);
        self.checks.record_usable(ReloadResult::Loaded);
    }
}

impl GuardedFileMetrics for ListMetrics {
    fn checks(&self) -> &FileChecks {
        &self.checks
    }

    fn accepted(&self) -> &IntCounter {
        &self.accepted
    }

    fn set_stale(&self, is_stale: bool) {
        self.gauges.set(ListGauge::Stale, is_stale.into());
    }
}

/// A gauge with the label `list`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ListGauge {
    Entries,
    Stale,
    Updated,
}

#[rustfmt::skip] // a table
const LIST_GAUGES: [Row<ListGauge>; 3] = [
    Row { key: ListGauge::Entries, name: "list_entries", help: "Keys on the list in use." },
    Row { key: ListGauge::Stale, name: "list_stale", help: "1 if the list is older than its max_age, or of unknown age." },
    Row { key: ListGauge::Updated, name: "list_updated_timestamp_seconds", help: "Date of the list in use, since the Unix epoch; 0 if it has none." },
];

const CHECKS: FileCheckNames = FileCheckNames {
    last_successful: "list_last_reload_successful",
    reloads: "list_reloads_total",
    rejections: "list_refusals_total",
};

/// The series of all lists.
#[derive(Debug, Clone)]
pub(super) struct ListSeries {
    gauges: GaugeTable<ListGauge>,
    checks: FileCheckSeries,
    accepted: IntCounterVec,
}

impl ListSeries {
    #[rustfmt::skip] // a table
    pub(super) fn register(registry: &Registry) -> Result<Self, prometheus::Error> {
        Ok(Self {
            gauges: GaugeTable::register(registry, "list", &LIST_GAUGES)?,
            checks: FileCheckSeries::register(registry, "list", &CHECKS)?,
            accepted: counters(registry, "list_updates_accepted_total", "Updates of a list that an operator accepted although they failed a check.", &["list"])?,
        })
    }

    pub(super) fn with_name(&self, name: &str, reasons: &[impl Label]) -> ListMetrics {
        ListMetrics {
            gauges: self.gauges.with_label(name),
            checks: self.checks.with_name(name, reasons),
            accepted: self.accepted.with_label_values(&[name]),
        }
    }

    pub(super) fn remove(&self, name: &str) {
        self.gauges.remove(name);
        self.checks.remove(name);
    }
}

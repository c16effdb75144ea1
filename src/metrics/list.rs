//! The series of lists.

use prometheus::{IntCounter, IntCounterVec, Registry};

use super::counters;
use super::gauges::{GaugeTable, Gauges, Row};
use super::labels::{Family, Label, ReloadResult};

/// The series of one list. `R` is the label of a rejected update's reason.
#[derive(Debug, Clone)]
pub struct ListMetrics<R> {
    gauges: Gauges<ListGauge>,
    reloads: Family<ReloadResult, IntCounter>,
    rejections: Family<R, IntCounter>,
}

impl<R: Label> ListMetrics<R> {
    /// Shows a list that was activated.
    pub fn record_loaded(&self, entries: usize) {
        self.gauges.set(ListGauge::Entries, entries as f64);
        self.gauges.set(ListGauge::LastReloadSuccessful, 1.0);
        self.reloads.of(ReloadResult::Loaded).inc();
    }

    /// Shows that the file has the content in use.
    pub fn record_unchanged(&self) {
        self.gauges.set(ListGauge::LastReloadSuccessful, 1.0);
        self.reloads.of(ReloadResult::Unchanged).inc();
    }

    /// Sets whether the list in use is older than its `max_age`, or of unknown age.
    pub fn set_stale(&self, is_stale: bool) {
        self.gauges.set(ListGauge::Stale, f64::from(u8::from(is_stale)));
    }

    /// Counts a rejected update.
    pub fn record_rejected(&self, reason: R) {
        self.gauges.set(ListGauge::LastReloadSuccessful, 0.0);
        self.reloads.of(ReloadResult::Rejected).inc();
        self.rejections.of(reason).inc();
    }
}

/// A gauge with the label `list`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ListGauge {
    Entries,
    LastReloadSuccessful,
    Stale,
}

#[rustfmt::skip] // a table
const LIST_GAUGES: [Row<ListGauge>; 3] = [
    Row { key: ListGauge::Entries, name: "list_entries", help: "Keys on the list in use." },
    Row { key: ListGauge::LastReloadSuccessful, name: "list_last_reload_successful", help: "0 if the file was rejected at its last check." },
    Row { key: ListGauge::Stale, name: "list_stale", help: "1 if the list is older than its max_age, or of unknown age." },
];

/// The series of all lists.
#[derive(Debug, Clone)]
pub(super) struct ListSeries {
    gauges: GaugeTable<ListGauge>,
    reloads: IntCounterVec,
    rejections: IntCounterVec,
}

impl ListSeries {
    #[rustfmt::skip] // a table
    pub(super) fn register(registry: &Registry) -> Result<Self, prometheus::Error> {
        Ok(Self {
            gauges: GaugeTable::register(registry, "list", &LIST_GAUGES)?,
            reloads: counters(registry, "list_reloads_total", "Checks of a list file by result.", &["list", "result"])?,
            rejections: counters(registry, "list_refusals_total", "Rejected updates of a list file by reason.", &["list", "reason"])?,
        })
    }

    pub(super) fn with_name<R: Label>(&self, name: &str) -> ListMetrics<R> {
        ListMetrics {
            gauges: self.gauges.with_label(name),
            reloads: Family::from_vec(&self.reloads, &[name]),
            rejections: Family::from_vec(&self.rejections, &[name]),
        }
    }

    pub(super) fn remove(&self, name: &str) {
        self.gauges.remove(name);
    }
}

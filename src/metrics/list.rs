//! The series of lists.

use prometheus::{Gauge, IntCounter, IntCounterVec};

use super::guarded_file::{FileChecks, GuardedFileMetrics};
use super::labels::{Family, Label, ReloadResult};
use super::series::{at_zero, series};

series! {
    /// The series of one list.
    pub struct ListMetrics, ListSeries {
        entries: Gauge = "list_entries"["list"]
            "Keys on the list in use.",
        stale: Gauge = "list_stale"["list"]
            "1 if the list is older than its max_age, or of unknown age.",
        updated: Gauge = "list_updated_timestamp_seconds"["list"]
            "Date of the list in use, since the Unix epoch; 0 if it has none.",
        last_reload_successful: Gauge = "list_last_reload_successful"["list"]
            "0 if the file was rejected at its last check.",
        reloads: Family<ReloadResult, IntCounter> = "list_reloads_total"["list", "result"]
            "Checks of a list file by result.",
        rejections: IntCounterVec = "list_refusals_total"["list", "reason"]
            "Rejected updates of a list file by reason.",
        accepted: IntCounter = "list_updates_accepted_total"["list"]
            "Updates of a list that an operator accepted although they failed a check.",
    } with {
        name: String,
    }
}

impl ListMetrics {
    /// Shows a list that was activated. `date` is in seconds since the Unix epoch.
    pub fn record_loaded(&self, entries: usize, date: Option<u64>) {
        self.entries.set(entries as f64);
        self.updated.set(date.unwrap_or_default() as f64);
        self.checks().record_usable(ReloadResult::Loaded);
    }
}

impl GuardedFileMetrics for ListMetrics {
    fn checks(&self) -> FileChecks<'_> {
        FileChecks {
            name: &self.name,
            last_reload_successful: &self.last_reload_successful,
            reloads: &self.reloads,
            rejections: &self.rejections,
            accepted: &self.accepted,
        }
    }

    fn set_stale(&self, is_stale: bool) {
        self.stale.set(is_stale.into());
    }
}

impl ListSeries {
    pub(super) fn with_name(&self, name: &str, reasons: &[impl Label]) -> ListMetrics {
        at_zero(&self.rejections, &[name], reasons);
        self.handles(&[name], name.to_owned())
    }
}

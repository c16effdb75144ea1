//! The series of lists.

use data_encoding::HEXLOWER;
use prometheus::{Gauge, IntCounter, IntCounterVec, IntGaugeVec};

use super::guarded_file::{FileChecks, GuardedFileMetrics};
use super::labels::{Family, Label, ReloadResult};
use super::scrape::remove_info;
use super::series::{RemoveGauges, at_zero, series};

series! {
    /// The series of one list.
    pub struct ListMetrics, ListSeries {
        info: IntGaugeVec = "list_info"["list", "sha256", "version"]
            "1, with the SHA-256 of the file in use, and its trusted comment or else its date, as labels.",
        new_hits: Gauge = "list_new_hits"["list"]
            "Clients admitted recently that the list in use rejects and the list before it did not; NaN if no client is recorded.",
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
    /// Shows the file of the list in use: its SHA-256, and its version for people.
    pub fn show_file(&self, sha256: &[u8; 32], version: &str) {
        remove_info(&self.info, "list", &self.name);
        let sha256 = HEXLOWER.encode(sha256);
        self.info.with_label_values(&[&*self.name, &sha256, version]).set(1);
    }

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

    fn set_new_hits(&self, count: Option<usize>) {
        self.new_hits.set(count.map_or(f64::NAN, |count| count as f64));
    }
}

impl ListSeries {
    pub(super) fn with_name(&self, name: &str, reasons: &[impl Label]) -> ListMetrics {
        at_zero(&self.rejections, &[name], reasons);
        self.handles(&[name], name.to_owned())
    }

    /// Removes the gauges of a list. Its counters stay.
    pub(super) fn remove(&self, name: &str) {
        remove_info(&self.info, "list", name);
        self.remove_gauges(name);
    }
}

//! The series of filters.

use keygate_core::guard::NamedFilter;
use prometheus::{Gauge, IntCounter, IntCounterVec, IntGaugeVec};

use super::guarded_file::{FileChecks, GuardedFileMetrics};
use super::labels::{Family, Label, ReloadResult};
use super::scrape::remove_info;
use super::series::{RemoveGauges, at_zero, series};

series! {
    /// The series of one filter.
    pub struct FilterMetrics, FilterSeries {
        info: IntGaugeVec = "filter_info"["filter", "sha256"]
            "1, with the SHA-256 of the file in use as a label.",
        entries: Gauge = "filter_entries"["filter"]
            "Entries of the filter in use, according to its header.",
        false_positive_ratio: Gauge = "filter_false_positive_ratio"["filter"]
            "Probability that one lookup of a key that was never added is a hit, calculated from the header.",
        fill_ratio: Gauge = "filter_fill_ratio"["filter"]
            "Fraction of the bits that are set.",
        last_good_in_use: Gauge = "filter_last_good_in_use"["filter"]
            "1 if the filter in use comes from the state directory, because its file was rejected at the start.",
        loaded: Gauge = "filter_loaded_timestamp_seconds"["filter"]
            "When the filter in use was loaded.",
        revision: Gauge = "filter_revision"["filter"]
            "Revision of the filter in use.",
        size: Gauge = "filter_size_bytes"["filter"]
            "Size of the bit field in use.",
        stale: Gauge = "filter_stale"["filter"]
            "1 if the filter in use was last changed longer ago than max_age.",
        updated: Gauge = "filter_updated_timestamp_seconds"["filter"]
            "When the filter in use was last changed, according to its header.",
        last_reload_successful: Gauge = "filter_last_reload_successful"["filter"]
            "0 if the file was rejected at its last check.",
        reloads: Family<ReloadResult, IntCounter> = "filter_reloads_total"["filter", "result"]
            "Checks of a filter file by result.",
        rejections: IntCounterVec = "filter_refusals_total"["filter", "reason"]
            "Rejected updates of a filter file by reason.",
        accepted: IntCounter = "filter_updates_accepted_total"["filter"]
            "Updates of a filter that an operator accepted although they failed a check.",
    } with {
        name: String,
    }
}

impl FilterMetrics {
    /// Shows a filter that was activated at `now`, in seconds since the Unix epoch.
    pub fn record_loaded(&self, named: &NamedFilter, now: f64) {
        let NamedFilter { filter, sha256, .. } = named;
        let sha256 = data_encoding::HEXLOWER.encode(sha256);
        remove_info(&self.info, "filter", &self.name);
        self.info.with_label_values(&[&self.name, &sha256]).set(1);
        let header = filter.header();
        self.entries.set(header.entry_count.into());
        self.false_positive_ratio.set(filter.false_positive_ratio());
        self.fill_ratio.set(filter.fill_ratio());
        self.loaded.set(now);
        self.revision.set(header.revision.into());
        self.size.set(header.data_size() as f64);
        self.updated.set(header.updated_at as f64);
        self.checks().record_usable(ReloadResult::Loaded);
    }
}

impl GuardedFileMetrics for FilterMetrics {
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

    fn set_last_good_in_use(&self, is_last_good: bool) {
        self.last_good_in_use.set(is_last_good.into());
    }
}

impl FilterSeries {
    pub(super) fn with_name(&self, name: &str, reasons: &[impl Label]) -> FilterMetrics {
        at_zero(&self.rejections, &[name], reasons);
        self.handles(&[name], name.to_owned())
    }

    /// Removes the gauges of a filter. Its counters stay.
    pub(super) fn remove(&self, name: &str) {
        remove_info(&self.info, "filter", name);
        self.remove_gauges(name);
    }
}

#[cfg(test)]
mod tests {
    use keygate_core::pkbf::{Filter, Parameters};

    use super::*;
    use crate::metrics::{ControlMetrics, Exposition, KeyAction};

    fn loaded(sha256: u8) -> NamedFilter {
        let mut filter = Filter::new(Parameters::new(3, 12).unwrap()).unwrap();
        filter.insert(b"key");
        NamedFilter { name: "lost".into(), filter, sha256: [sha256; 32] }
    }

    #[test]
    fn a_filter_shows_one_digest_and_a_removed_one_keeps_its_counters_alone() {
        let control = ControlMetrics::new().unwrap();
        let lines = || {
            let text = Exposition::new(&control, &[]).render().unwrap();
            let lines = text.lines().filter(|line| line.contains("filter=\"lost\""));
            lines.map(str::to_owned).collect::<Vec<_>>()
        };
        let other = control.filter("other", &[KeyAction::Flag]);
        other.record_loaded(&loaded(9), 1.0);
        let filter = control.filter("lost", &[KeyAction::Flag]);
        filter.record_loaded(&loaded(1), 1.0);
        filter.record_loaded(&loaded(2), 2.0);
        filter.checks().record_rejected(KeyAction::Flag);
        filter.checks().accepted.inc();
        let shown = lines();
        let has = |line: &str| shown.iter().any(|it| it == line);
        let digests = shown.iter().filter(|it| it.starts_with("keygate_filter_info"));
        let digests: Vec<_> = digests.map(|it| it.contains(&"02".repeat(32))).collect();
        assert_eq!(digests, [true], "{shown:#?}");
        for line in [
            "keygate_filter_entries{filter=\"lost\"} 1",
            "keygate_filter_last_reload_successful{filter=\"lost\"} 0",
            "keygate_filter_loaded_timestamp_seconds{filter=\"lost\"} 2",
            "keygate_filter_refusals_total{filter=\"lost\",reason=\"flag\"} 1",
            "keygate_filter_reloads_total{filter=\"lost\",result=\"loaded\"} 2",
            "keygate_filter_reloads_total{filter=\"lost\",result=\"refused\"} 1",
            "keygate_filter_updates_accepted_total{filter=\"lost\"} 1",
        ] {
            assert!(has(line), "no {line} in {shown:#?}");
        }
        control.remove_filter("lost");
        let left = lines();
        assert!(left.iter().all(|it| it.contains("_total{")), "{left:#?}");
        assert_eq!(left.len(), 1 + 3 + 1, "a reason, three results, accepted: {left:#?}");
        let text = Exposition::new(&control, &[]).render().unwrap();
        assert!(text.contains(&format!("sha256=\"{}\"}} 1", "09".repeat(32))));
    }
}

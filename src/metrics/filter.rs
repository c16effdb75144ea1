//! The series of filters.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use keygate_core::guard::NamedFilter;
use prometheus::{IntCounter, IntCounterVec, IntGaugeVec, Registry};

use super::file_checks::{FileCheckNames, FileCheckSeries, FileChecks, GuardedFileMetrics};
use super::gauges::{GaugeTable, Gauges, Row};
use super::labels::{Label, ReloadResult};
use super::{counters, opts, register};

/// The series of one filter.
#[derive(Debug, Clone)]
pub struct FilterMetrics {
    name: String,
    info: IntGaugeVec,
    exposed_digest: ExposedDigest,
    gauges: Gauges<FilterGauge>,
    checks: FileChecks,
    /// Updates that an operator accepted although they failed a check.
    accepted: IntCounter,
}

/// The SHA-256 of the file in use, in hex: a label value of `filter_info`.
type ExposedDigest = Arc<Mutex<Option<String>>>;

impl FilterMetrics {
    /// Shows a filter that was activated at `now`, in seconds since the Unix epoch.
    pub fn record_loaded(&self, named: &NamedFilter, now: f64) {
        let NamedFilter { filter, sha256, .. } = named;
        let sha256 = data_encoding::HEXLOWER.encode(sha256);
        let mut exposed = self.exposed_digest.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(before) = exposed.take() {
            let _ = self.info.remove_label_values(&[&self.name, &before]); // fails if there is none
        }
        self.info.with_label_values(&[&self.name, &sha256]).set(1);
        *exposed = Some(sha256);
        let header = filter.header();
        for (gauge, value) in [
            (FilterGauge::Entries, header.entry_count.into()),
            (FilterGauge::FalsePositiveRatio, filter.false_positive_ratio()),
            (FilterGauge::FillRatio, filter.fill_ratio()),
            (FilterGauge::Loaded, now),
            (FilterGauge::Revision, header.revision.into()),
            (FilterGauge::Size, header.data_size() as f64),
            (FilterGauge::Updated, header.updated_at as f64),
        ] {
            self.gauges.set(gauge, value);
        }
        self.checks.record_usable(ReloadResult::Loaded);
    }
}

impl GuardedFileMetrics for FilterMetrics {
    fn checks(&self) -> &FileChecks {
        &self.checks
    }

    fn accepted(&self) -> &IntCounter {
        &self.accepted
    }

    fn set_stale(&self, is_stale: bool) {
        self.gauges.set(FilterGauge::Stale, is_stale.into());
    }

    fn set_last_good_in_use(&self, is_last_good: bool) {
        self.gauges.set(FilterGauge::LastGoodInUse, is_last_good.into());
    }
}

/// A gauge with the label `filter`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum FilterGauge {
    Entries,
    FalsePositiveRatio,
    FillRatio,
    LastGoodInUse,
    Loaded,
    Revision,
    Size,
    Stale,
    Updated,
}

#[rustfmt::skip] // a table
const FILTER_GAUGES: [Row<FilterGauge>; 9] = [
    Row { key: FilterGauge::Entries, name: "filter_entries", help: "Entries of the filter in use, according to its header." },
    Row { key: FilterGauge::FalsePositiveRatio, name: "filter_false_positive_ratio", help: "Probability that one lookup of a key that was never added is a hit, calculated from the header." },
    Row { key: FilterGauge::FillRatio, name: "filter_fill_ratio", help: "Fraction of the bits that are set." },
    Row { key: FilterGauge::LastGoodInUse, name: "filter_last_good_in_use", help: "1 if the filter in use comes from the state directory, because its file was rejected at the start." },
    Row { key: FilterGauge::Loaded, name: "filter_loaded_timestamp_seconds", help: "When the filter in use was loaded." },
    Row { key: FilterGauge::Revision, name: "filter_revision", help: "Revision of the filter in use." },
    Row { key: FilterGauge::Size, name: "filter_size_bytes", help: "Size of the bit field in use." },
    Row { key: FilterGauge::Stale, name: "filter_stale", help: "1 if the filter in use was last changed longer ago than max_age." },
    Row { key: FilterGauge::Updated, name: "filter_updated_timestamp_seconds", help: "When the filter in use was last changed, according to its header." },
];

const CHECKS: FileCheckNames = FileCheckNames {
    last_successful: "filter_last_reload_successful",
    reloads: "filter_reloads_total",
    rejections: "filter_refusals_total",
};

/// The series of all filters.
#[derive(Debug, Clone)]
pub(super) struct FilterSeries {
    info: IntGaugeVec,
    gauges: GaugeTable<FilterGauge>,
    checks: FileCheckSeries,
    accepted: IntCounterVec,
    /// The exposed digests, by the name of the filter.
    exposed_digests: Arc<Mutex<HashMap<String, ExposedDigest>>>,
}

impl FilterSeries {
    #[rustfmt::skip] // a table
    pub(super) fn register(registry: &Registry) -> Result<Self, prometheus::Error> {
        let info = IntGaugeVec::new(opts("filter_info", "1, with the SHA-256 of the file in use as a label."), &["filter", "sha256"]);
        Ok(Self {
            info: register(registry, info)?,
            gauges: GaugeTable::register(registry, "filter", &FILTER_GAUGES)?,
            checks: FileCheckSeries::register(registry, "filter", &CHECKS)?,
            accepted: counters(registry, "filter_updates_accepted_total", "Updates of a filter that an operator accepted although they failed a check.", &["filter"])?,
            exposed_digests: Arc::default(),
        })
    }

    pub(super) fn with_name(&self, name: &str, reasons: &[impl Label]) -> FilterMetrics {
        let mut digests = self.exposed_digests.lock().unwrap_or_else(PoisonError::into_inner);
        FilterMetrics {
            name: name.to_owned(),
            info: self.info.clone(),
            exposed_digest: Arc::clone(digests.entry(name.to_owned()).or_default()),
            gauges: self.gauges.with_label(name),
            checks: self.checks.with_name(name, reasons),
            accepted: self.accepted.with_label_values(&[name]),
        }
    }

    pub(super) fn remove(&self, name: &str) {
        let mut digests = self.exposed_digests.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(digest) = digests.remove(name) else { return };
        if let Some(sha256) = digest.lock().unwrap_or_else(PoisonError::into_inner).take() {
            let _ = self.info.remove_label_values(&[name, &sha256]); // fails only if there is none
        }
        self.gauges.remove(name);
        self.checks.remove(name);
    }
}

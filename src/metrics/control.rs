//! The series of the control plane: filters, lists, certificates, the build and the process.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use prometheus::process_collector::ProcessCollector;
use prometheus::{Gauge, GaugeVec, IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Registry};

use super::confirm::ConfirmMetrics;
use super::gauges::{GaugeTable, Gauges, Row};
use super::labels::{Family, Label, ReloadResult};
use super::{LogMetrics, counter, counters, opts, register};
use crate::guard::NamedFilter;
use crate::tls::CertificateRole;

/// The series of the control plane.
#[derive(Debug, Clone)]
pub struct ControlMetrics {
    pub(super) registry: Registry,
    filters: FilterSeries,
    lists: ListSeries,
    config_reloads: Family<ReloadResult, IntCounter>,
    config_last_reload_successful: IntGauge,
    exception_until: GaugeVec,
    certificate_not_after: GaugeVec,
    crl_entries: GaugeVec,
    crl_last_reload_successful: IntGaugeVec,
    crl_next_update: GaugeVec,
    crl_rejections: IntCounterVec,
    own_key_compromised: IntGaugeVec,
    upstream_up: IntGaugeVec,
    /// 1 while an operator drains this instance.
    pub drained: IntGauge,
    files_checked: Gauge,
    files_hung: IntGauge,
    /// The questions to a source of proofs.
    pub confirm: ConfirmMetrics,
    /// Snapshots that were activated, the first included.
    pub snapshots: IntCounter,
    /// 1 while another process holds the lock on the state directory.
    pub state_lock_waiting: IntGauge,
    /// Failed writes in the state directory.
    pub state_write_failures: IntCounter,
}

impl ControlMetrics {
    /// Registers all series of the control plane.
    ///
    /// # Errors
    /// Returns an error if two series have the same name.
    #[rustfmt::skip] // a table
    pub fn new() -> Result<Self, prometheus::Error> {
        let registry = Registry::new();
        registry.register(Box::new(ProcessCollector::for_self()))?;
        let gauges = |name, help, labels: &[&str]| register(&registry, GaugeVec::new(opts(name, help), labels));
        let integers = |name, help, labels: &[&str]| register(&registry, IntGaugeVec::new(opts(name, help), labels));
        let build = integers("build_info", "1, with the version as a label.", &["version"])?;
        build.with_label_values(&[env!("CARGO_PKG_VERSION")]).set(1);
        let config_reloads = counters(&registry, "config_reloads_total", "Checks of the configuration file, after a change or SIGHUP, by result.", &["result"])?;
        let config_last_reload_successful = register(&registry, IntGauge::with_opts(opts("config_last_reload_successful", "0 if the configuration file was rejected at its last check.")))?;
        config_last_reload_successful.set(1);
        Ok(Self {
            filters: FilterSeries::register(&registry)?,
            lists: ListSeries::register(&registry)?,
            config_reloads: Family::from_vec(&config_reloads, &[]),
            config_last_reload_successful,
            exception_until: gauges("exception_until_timestamp_seconds", "When an exception expires or expired.", &["fingerprint"])?,
            certificate_not_after: gauges("certificate_not_after_timestamp_seconds", "When one of the service's own certificates expires.", &["service", "role"])?,
            crl_entries: gauges("crl_entries", "Revoked certificates on the revocation lists of a service.", &["service"])?,
            crl_last_reload_successful: integers("crl_last_reload_successful", "0 if a revocation list of a service was rejected at its last check.", &["service"])?,
            crl_rejections: counters(&registry, "crl_refusals_total", "Rejected updates of the revocation lists of a service by reason.", &["service", "reason"])?,
            crl_next_update: gauges("crl_next_update_timestamp_seconds", "When the first revocation list of a service expires.", &["service"])?,
            own_key_compromised: integers("own_key_compromised", "Keys of a service's own certificates and CAs that are weak, in a filter or on a list.", &["service", "role"])?,
            upstream_up: integers("upstream_server_up", "1 if the health checks find a server healthy, 0 if unhealthy.", &["service", "server"])?,
            drained: register(&registry, IntGauge::with_opts(opts("drained", "1 while an operator drains this instance, and readiness fails.")))?,
            files_checked: register(&registry, Gauge::with_opts(opts("files_checked_timestamp_seconds", "When the last check of all files ended.")))?,
            files_hung: register(&registry, IntGauge::with_opts(opts("files_hung", "Files that do not respond, because their file system hangs.")))?,
            confirm: ConfirmMetrics::register(&registry)?,
            snapshots: counter(&registry, "snapshots_total", "Snapshots that were activated.")?,
            state_lock_waiting: register(&registry, IntGauge::with_opts(opts("state_lock_waiting", "1 while another process holds the lock on the state directory, and nothing is saved.")))?,
            state_write_failures: counter(&registry, "state_write_failures_total", "Failed writes in the state directory.")?,
            registry,
        })
    }

    /// Adds the series of the logs.
    ///
    /// # Errors
    /// Returns an error if they are registered already.
    pub fn with_logs(self, logs: &LogMetrics) -> Result<Self, prometheus::Error> {
        register(&self.registry, Ok(logs.collector.clone()))?;
        Ok(self)
    }

    /// The series of the filter with this name. `R` is the label of a rejected update's reason.
    #[must_use]
    pub fn filter<R: Label>(&self, name: &str) -> FilterMetrics<R> {
        self.filters.with_name(name)
    }

    /// The series of the list with this name. `R` is the label of a rejected update's reason.
    #[must_use]
    pub fn list<R: Label>(&self, name: &str) -> ListMetrics<R> {
        self.lists.with_name(name)
    }

    /// Counts a check of the configuration file.
    pub fn record_config_reload(&self, result: ReloadResult) {
        self.config_reloads.of(result).inc();
        self.config_last_reload_successful.set((result != ReloadResult::Rejected).into());
    }

    /// Records a check of all files that ended at `now`, in seconds since the Unix epoch, and the
    /// number of files that do not respond.
    pub fn record_file_check(&self, now: f64, hung: usize) {
        self.files_checked.set(now);
        self.files_hung.set(i64::try_from(hung).unwrap_or(i64::MAX));
    }

    /// Removes the series of exceptions, services and servers. A new snapshot sets those that are
    /// still configured.
    pub fn remove_configured(&self) {
        self.exception_until.reset();
        self.certificate_not_after.reset();
        self.crl_entries.reset();
        self.crl_last_reload_successful.reset();
        self.crl_next_update.reset();
        self.own_key_compromised.reset();
        self.upstream_up.reset();
    }

    /// Removes the series of a filter that is no longer configured.
    pub fn remove_filter(&self, name: &str) {
        self.filters.remove(name);
    }

    /// Removes the series of a list that is no longer configured.
    pub fn remove_list(&self, name: &str) {
        self.lists.gauges.remove(name);
    }

    /// Sets when an exception expires, in seconds since the Unix epoch.
    pub fn set_exception_until(&self, fingerprint: &str, seconds: f64) {
        self.exception_until.with_label_values(&[fingerprint]).set(seconds);
    }

    /// Shows the revocation lists of a service: when the first one expires, in seconds since the
    /// Unix epoch, and the number of revoked certificates. `R` is the label of a rejected update's
    /// reason.
    pub fn show_crls<R: Label>(&self, service: &str, next_update: u64, entries: usize) {
        self.crl_next_update.with_label_values(&[service]).set(next_update as f64);
        self.crl_entries.with_label_values(&[service]).set(entries as f64);
        for reason in R::ALL {
            let _ = self.crl_rejections.with_label_values(&[service, reason.as_str()]); // at zero
        }
    }

    /// Sets whether the revocation lists of a service were usable at their last check.
    pub fn set_crl_last_reload_successful(&self, service: &str, is_successful: bool) {
        let gauge = self.crl_last_reload_successful.with_label_values(&[service]);
        gauge.set(is_successful.into());
    }

    /// Counts a rejected update of the revocation lists of a service.
    pub fn record_crl_rejected<R: Label>(&self, service: &str, reason: R) {
        self.crl_rejections.with_label_values(&[service, reason.as_str()]).inc();
        self.set_crl_last_reload_successful(service, false);
    }

    /// Sets how many of a service's certificates in a role have a compromised key.
    pub fn set_own_key_compromised(&self, service: &str, role: CertificateRole, keys: usize) {
        let keys = i64::try_from(keys).unwrap_or(i64::MAX);
        self.own_key_compromised.with_label_values(&[service, role.as_str()]).set(keys);
    }

    /// Sets whether the health checks find a server healthy.
    pub fn set_upstream_up(&self, service: &str, server: &str, is_up: bool) {
        self.upstream_up.with_label_values(&[service, server]).set(is_up.into());
    }

    /// Sets when a service's own certificate in a role expires, in seconds since the Unix epoch.
    pub fn set_certificate_not_after(&self, service: &str, role: CertificateRole, seconds: f64) {
        self.certificate_not_after.with_label_values(&[service, role.as_str()]).set(seconds);
    }
}

/// The series of one filter. `R` is the label of a rejected update's reason.
#[derive(Debug, Clone)]
pub struct FilterMetrics<R> {
    name: String,
    info: IntGaugeVec,
    exposed_digest: ExposedDigest,
    gauges: Gauges<FilterGauge>,
    reloads: Family<ReloadResult, IntCounter>,
    rejections: Family<R, IntCounter>,
    /// Updates that an operator accepted although they failed a check.
    pub accepted: IntCounter,
}

/// The SHA-256 of the file in use, in hex: a label value of `filter_info`.
type ExposedDigest = Arc<Mutex<Option<String>>>;

impl<R: Label> FilterMetrics<R> {
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
            (FilterGauge::LastReloadSuccessful, 1.0),
            (FilterGauge::Loaded, now),
            (FilterGauge::Revision, header.revision.into()),
            (FilterGauge::Size, header.data_size() as f64),
            (FilterGauge::Updated, header.updated_at as f64),
        ] {
            self.gauges.set(gauge, value);
        }
        self.reloads.of(ReloadResult::Loaded).inc();
    }

    /// Counts a check that found the file unchanged.
    pub fn record_unchanged(&self) {
        self.gauges.set(FilterGauge::LastReloadSuccessful, 1.0);
        self.reloads.of(ReloadResult::Unchanged).inc();
    }

    /// Counts a rejected update.
    pub fn record_rejected(&self, reason: R) {
        self.gauges.set(FilterGauge::LastReloadSuccessful, 0.0);
        self.reloads.of(ReloadResult::Rejected).inc();
        self.rejections.of(reason).inc();
    }

    /// Sets whether the filter in use comes from the state directory.
    pub fn set_last_good_in_use(&self, is_last_good: bool) {
        self.gauges.set(FilterGauge::LastGoodInUse, is_last_good.into());
    }

    /// Sets whether the filter in use is older than its `max_age`.
    pub fn set_stale(&self, is_stale: bool) {
        self.gauges.set(FilterGauge::Stale, is_stale.into());
    }
}

/// A gauge with the label `filter`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum FilterGauge {
    Entries,
    FalsePositiveRatio,
    FillRatio,
    LastGoodInUse,
    LastReloadSuccessful,
    Loaded,
    Revision,
    Size,
    Stale,
    Updated,
}

#[rustfmt::skip] // a table
const FILTER_GAUGES: [Row<FilterGauge>; 10] = [
    Row { key: FilterGauge::Entries, name: "filter_entries", help: "Entries of the filter in use, according to its header." },
    Row { key: FilterGauge::FalsePositiveRatio, name: "filter_false_positive_ratio", help: "Probability that one lookup of a key that was never added is a hit, calculated from the header." },
    Row { key: FilterGauge::FillRatio, name: "filter_fill_ratio", help: "Fraction of the bits that are set." },
    Row { key: FilterGauge::LastGoodInUse, name: "filter_last_good_in_use", help: "1 if the filter in use comes from the state directory, because its file was rejected at the start." },
    Row { key: FilterGauge::LastReloadSuccessful, name: "filter_last_reload_successful", help: "0 if the file was rejected at its last check." },
    Row { key: FilterGauge::Loaded, name: "filter_loaded_timestamp_seconds", help: "When the filter in use was loaded." },
    Row { key: FilterGauge::Revision, name: "filter_revision", help: "Revision of the filter in use." },
    Row { key: FilterGauge::Size, name: "filter_size_bytes", help: "Size of the bit field in use." },
    Row { key: FilterGauge::Stale, name: "filter_stale", help: "1 if the filter in use was last changed longer ago than max_age." },
    Row { key: FilterGauge::Updated, name: "filter_updated_timestamp_seconds", help: "When the filter in use was last changed, according to its header." },
];

/// The series of all filters.
#[derive(Debug, Clone)]
struct FilterSeries {
    info: IntGaugeVec,
    gauges: GaugeTable<FilterGauge>,
    reloads: IntCounterVec,
    rejections: IntCounterVec,
    accepted: IntCounterVec,
    /// The exposed digests, by the name of the filter.
    exposed_digests: Arc<Mutex<HashMap<String, ExposedDigest>>>,
}

impl FilterSeries {
    #[rustfmt::skip] // a table
    fn register(registry: &Registry) -> Result<Self, prometheus::Error> {
        let info = IntGaugeVec::new(opts("filter_info", "1, with the SHA-256 of the file in use as a label."), &["filter", "sha256"]);
        Ok(Self {
            info: register(registry, info)?,
            gauges: GaugeTable::register(registry, "filter", &FILTER_GAUGES)?,
            reloads: counters(registry, "filter_reloads_total", "Checks of a filter file by result.", &["filter", "result"])?,
            rejections: counters(registry, "filter_refusals_total", "Rejected updates of a filter file by reason.", &["filter", "reason"])?,
            accepted: counters(registry, "filter_updates_accepted_total", "Updates of a filter that an operator accepted although they failed a check.", &["filter"])?,
            exposed_digests: Arc::default(),
        })
    }

    fn with_name<R: Label>(&self, name: &str) -> FilterMetrics<R> {
        let mut digests = self.exposed_digests.lock().unwrap_or_else(PoisonError::into_inner);
        FilterMetrics {
            name: name.to_owned(),
            info: self.info.clone(),
            exposed_digest: Arc::clone(digests.entry(name.to_owned()).or_default()),
            gauges: self.gauges.with_label(name),
            reloads: Family::from_vec(&self.reloads, &[name]),
            rejections: Family::from_vec(&self.rejections, &[name]),
            accepted: self.accepted.with_label_values(&[name]),
        }
    }

    fn remove(&self, name: &str) {
        let mut digests = self.exposed_digests.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(digest) = digests.remove(name) else { return };
        if let Some(sha256) = digest.lock().unwrap_or_else(PoisonError::into_inner).take() {
            let _ = self.info.remove_label_values(&[name, &sha256]); // fails only if there is none
        }
        self.gauges.remove(name);
    }
}

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
struct ListSeries {
    gauges: GaugeTable<ListGauge>,
    reloads: IntCounterVec,
    rejections: IntCounterVec,
}

impl ListSeries {
    #[rustfmt::skip] // a table
    fn register(registry: &Registry) -> Result<Self, prometheus::Error> {
        Ok(Self {
            gauges: GaugeTable::register(registry, "list", &LIST_GAUGES)?,
            reloads: counters(registry, "list_reloads_total", "Checks of a list file by result.", &["list", "result"])?,
            rejections: counters(registry, "list_refusals_total", "Rejected updates of a list file by reason.", &["list", "reason"])?,
        })
    }

    fn with_name<R: Label>(&self, name: &str) -> ListMetrics<R> {
        ListMetrics {
            gauges: self.gauges.with_label(name),
            reloads: Family::from_vec(&self.reloads, &[name]),
            rejections: Family::from_vec(&self.rejections, &[name]),
        }
    }
}

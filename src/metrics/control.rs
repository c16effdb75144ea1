//! The series of the control plane: filters, certificates, the build, the process.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use prometheus::process_collector::ProcessCollector;
use prometheus::{Gauge, GaugeVec, IntCounter, IntGauge, IntGaugeVec, Registry};

use super::labels::{Family, Label, ReloadResult};
use super::{counter, counters, opts, register};
use crate::guard::NamedFilter;
use crate::tls::CertificateRole;

/// What the control plane counts.
#[derive(Debug, Clone)]
pub struct ControlMetrics {
    pub(super) registry: Registry,
    filters: FilterSeries,
    lists: ListSeries,
    config_reloads: Family<ReloadResult, IntCounter>,
    config_last_reload_successful: IntGauge,
    exception_until: GaugeVec,
    certificate_not_after: GaugeVec,
    crl_next_update: GaugeVec,
    own_key_compromised: IntGaugeVec,
    upstream_up: IntGaugeVec,
    /// Snapshots that were put to use, the first included.
    pub snapshots: IntCounter,
}

/// The series of one filter; `R` is the label of why an update was rejected.
#[derive(Debug, Clone)]
pub struct FilterMetrics<R> {
    name: String,
    info: IntGaugeVec,
    shown: Shown,
    revision: IntGauge,
    updated: Gauge,
    loaded: Gauge,
    entries: IntGauge,
    size: Gauge,
    fill_ratio: Gauge,
    false_positive_ratio: Gauge,
    stale: IntGauge,
    last_reload_successful: IntGauge,
    reloads: Family<ReloadResult, IntCounter>,
    rejections: Family<R, IntCounter>,
}

impl ControlMetrics {
    /// All series of the control plane.
    ///
    /// # Errors
    /// Two series with the same name.
    pub fn new() -> Result<Self, prometheus::Error> {
        let registry = Registry::new();
        registry.register(Box::new(ProcessCollector::for_self()))?;
        let build =
            IntGaugeVec::new(opts("build_info", "1, with the version as a label."), &["version"]);
        register(&registry, build)?
            .get_metric_with_label_values(&[env!("CARGO_PKG_VERSION")])?
            .set(1);
        let not_after = GaugeVec::new(
            opts("certificate_not_after_timestamp_seconds", "When a certificate of ours expires."),
            &["service", "role"],
        );
        let exception_until = GaugeVec::new(
            opts("exception_until_timestamp_seconds", "When an exception ends, or ended."),
            &["fingerprint"],
        );
        let crl_next_update = GaugeVec::new(
            opts(
                "crl_next_update_timestamp_seconds",
                "When the first revocation list of a service is no longer up to date.",
            ),
            &["service"],
        );
        let own_key_compromised = IntGaugeVec::new(
            opts("own_key_compromised", "Keys of our own that are in a filter or on a list."),
            &["service", "role"],
        );
        let upstream_up = IntGaugeVec::new(
            opts("upstream_server_up", "0: the health checks say that a server is not well."),
            &["service", "server"],
        );
        let config_reloads = counters(
            &registry,
            "config_reloads_total",
            "Looks at the configuration file, after it has changed or SIGHUP.",
            &["result"],
        )?;
        let successful = IntGauge::with_opts(opts(
            "config_last_reload_successful",
            "0: the configuration file as it is now was refused.",
        ));
        let config_last_reload_successful = register(&registry, successful)?;
        config_last_reload_successful.set(1);
        Ok(Self {
            lists: ListSeries::register(&registry)?,
            config_reloads: Family::from_vec(&config_reloads, &[]),
            config_last_reload_successful,
            exception_until: register(&registry, exception_until)?,
            filters: FilterSeries::register(&registry)?,
            certificate_not_after: register(&registry, not_after)?,
            crl_next_update: register(&registry, crl_next_update)?,
            own_key_compromised: register(&registry, own_key_compromised)?,
            upstream_up: register(&registry, upstream_up)?,
            snapshots: counter(&registry, "snapshots_total", "Snapshots put to use.")?,
            registry,
        })
    }

    /// The series of the filter with this name.
    #[must_use]
    pub fn filter<R: Label>(&self, name: &str) -> FilterMetrics<R> {
        self.filters.of(name)
    }

    /// The series of the list with this name.
    #[must_use]
    pub fn list(&self, name: &str) -> ListMetrics {
        self.lists.of(name)
    }

    /// Counts a look at the configuration.
    pub fn config_reloaded(&self, result: ReloadResult) {
        self.config_reloads.of(result).inc();
        self.config_last_reload_successful.set((result != ReloadResult::Refused).into());
    }

    /// Forgets what is shown of exceptions, services and their servers: what is left of them is said
    /// again.
    pub fn forget_configured(&self) {
        self.exception_until.reset();
        self.certificate_not_after.reset();
        self.crl_next_update.reset();
        self.own_key_compromised.reset();
        self.upstream_up.reset();
    }

    /// Forgets a filter that is configured no more.
    pub fn forget_filter(&self, name: &str) {
        self.filters.forget(name);
    }

    /// Forgets a list that is configured no more.
    pub fn forget_list(&self, name: &str) {
        self.lists.forget(name);
    }

    /// Shows when an exception ends, in seconds since the Unix epoch.
    pub fn set_exception_until(&self, fingerprint: &str, seconds: f64) {
        self.exception_until.with_label_values(&[fingerprint]).set(seconds);
    }

    /// Shows when the first revocation list of a service ends, in seconds since the Unix epoch.
    pub fn set_crl_next_update(&self, service: &str, seconds: f64) {
        self.crl_next_update.with_label_values(&[service]).set(seconds);
    }

    /// Shows how many of the keys in a role of a service are compromised.
    pub fn set_own_key_compromised(&self, service: &str, role: CertificateRole, keys: usize) {
        let keys = i64::try_from(keys).unwrap_or(i64::MAX);
        self.own_key_compromised.with_label_values(&[service, role.as_str()]).set(keys);
    }

    /// Shows what the health checks say of a server.
    pub fn set_upstream_up(&self, service: &str, server: &str, is_up: bool) {
        self.upstream_up.with_label_values(&[service, server]).set(is_up.into());
    }

    /// Shows when a service's own certificate in a role expires, in seconds since the Unix epoch.
    pub fn set_certificate_not_after(&self, service: &str, role: CertificateRole, seconds: f64) {
        self.certificate_not_after.with_label_values(&[service, role.as_str()]).set(seconds);
    }
}

impl<R: Label> FilterMetrics<R> {
    /// Shows a filter that was put to use at `now`, in seconds since the Unix epoch.
    pub fn loaded(&self, named: &NamedFilter, now: f64) {
        let header = named.filter.header();
        let sha256 = data_encoding::HEXLOWER.encode(&named.sha256);
        let mut shown = self.shown.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(before) = shown.take() {
            let _ = self.info.remove_label_values(&[&self.name, &before]); // it was there
        }
        self.info.with_label_values(&[&self.name, &sha256]).set(1);
        *shown = Some(sha256);
        self.revision.set(header.revision.into());
        self.updated.set(header.updated_at as f64);
        self.loaded.set(now);
        self.entries.set(header.entry_count.into());
        self.size.set(header.data_size() as f64);
        self.fill_ratio.set(named.filter.fill_ratio());
        self.false_positive_ratio.set(named.filter.false_positive_ratio());
        self.last_reload_successful.set(1);
        self.reloads.of(ReloadResult::Loaded).inc();
    }

    /// Shows whether the filter in use is older than the configuration's `max_age`.
    pub fn set_stale(&self, stale: bool) {
        self.stale.set(stale.into());
    }

    /// Counts a look at a file that is the one in use already.
    pub fn unchanged(&self) {
        self.last_reload_successful.set(1);
        self.reloads.of(ReloadResult::Unchanged).inc();
    }

    /// Counts an update that was refused.
    pub fn rejected(&self, reason: R) {
        self.last_reload_successful.set(0);
        self.reloads.of(ReloadResult::Refused).inc();
        self.rejections.of(reason).inc();
    }
}

/// SHA-256 of the file in use, in hex.
type Shown = Arc<Mutex<Option<String>>>;

#[derive(Debug, Clone)]
struct FilterSeries {
    info: IntGaugeVec,
    revision: IntGaugeVec,
    updated: GaugeVec,
    loaded: GaugeVec,
    entries: IntGaugeVec,
    size: GaugeVec,
    fill_ratio: GaugeVec,
    false_positive_ratio: GaugeVec,
    stale: IntGaugeVec,
    last_reload_successful: IntGaugeVec,
    reloads: prometheus::IntCounterVec,
    refusals: prometheus::IntCounterVec,
    /// The label value of `info` that is exposed, by the name of the filter.
    shown: Arc<Mutex<HashMap<String, Shown>>>,
}

impl FilterSeries {
    #[rustfmt::skip] // a table
    fn register(registry: &Registry) -> Result<Self, prometheus::Error> {
        let gauge = |name, help| register(registry, GaugeVec::new(opts(name, help), &["filter"]));
        let integer = |name, help| register(registry, IntGaugeVec::new(opts(name, help), &["filter"]));
        let info = IntGaugeVec::new(opts("filter_info", "1, with the SHA-256 of the file in use as a label."), &["filter", "sha256"]);
        Ok(Self {
            info: register(registry, info)?,
            revision: integer("filter_revision", "Revision of the filter in use.")?,
            updated: gauge("filter_updated_timestamp_seconds", "When the filter in use was last changed, by its own header.")?,
            loaded: gauge("filter_loaded_timestamp_seconds", "When the filter in use was loaded.")?,
            entries: integer("filter_entries", "Entries of the filter in use, by its own header.")?,
            size: gauge("filter_size_bytes", "Size of the bit field in use.")?,
            fill_ratio: gauge("filter_fill_ratio", "Share of the bits that are set.")?,
            false_positive_ratio: gauge("filter_false_positive_ratio", "Probability that one look-up of a key which was never added is a hit, by the header's numbers.")?,
            stale: integer("filter_stale", "1: the filter in use was last changed longer ago than max_age.")?,
            last_reload_successful: integer("filter_last_reload_successful", "0: the file as it is now was refused.")?,
            reloads: counters(registry, "filter_reloads_total", "Looks at a filter's file.", &["filter", "result"])?,
            refusals: counters(registry, "filter_refusals_total", "Updates that were refused.", &["filter", "reason"])?,
            shown: Arc::default(),
        })
    }

    fn of<R: Label>(&self, name: &str) -> FilterMetrics<R> {
        let mut shown = self.shown.lock().unwrap_or_else(PoisonError::into_inner);
        let values = &[name];
        FilterMetrics {
            name: name.to_owned(),
            info: self.info.clone(),
            shown: Arc::clone(shown.entry(name.to_owned()).or_default()),
            revision: self.revision.with_label_values(values),
            updated: self.updated.with_label_values(values),
            loaded: self.loaded.with_label_values(values),
            entries: self.entries.with_label_values(values),
            size: self.size.with_label_values(values),
            fill_ratio: self.fill_ratio.with_label_values(values),
            false_positive_ratio: self.false_positive_ratio.with_label_values(values),
            stale: self.stale.with_label_values(values),
            last_reload_successful: self.last_reload_successful.with_label_values(values),
            reloads: Family::from_vec(&self.reloads, values),
            rejections: Family::from_vec(&self.refusals, values),
        }
    }

    fn forget(&self, name: &str) {
        let mut shown = self.shown.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(shown) = shown.remove(name) else { return };
        let shown = shown.lock().unwrap_or_else(PoisonError::into_inner).take();
        // What was never shown cannot be removed, and need not be.
        let _ = shown.map(|sha256| self.info.remove_label_values(&[name, &sha256]));
        for gauges in
            [&self.updated, &self.loaded, &self.size, &self.fill_ratio, &self.false_positive_ratio]
        {
            let _ = gauges.remove_label_values(&[name]);
        }
        for gauges in [&self.revision, &self.entries, &self.stale, &self.last_reload_successful] {
            let _ = gauges.remove_label_values(&[name]);
        }
    }
}

/// What is known of one list.
#[derive(Debug, Clone)]
pub struct ListMetrics {
    entries: IntGauge,
    last_reload_successful: IntGauge,
    reloads: Family<ReloadResult, IntCounter>,
}

impl ListMetrics {
    /// Shows a list that is in use from now on.
    pub fn loaded(&self, entries: usize) {
        self.entries.set(i64::try_from(entries).unwrap_or(i64::MAX));
        self.last_reload_successful.set(1);
        self.reloads.of(ReloadResult::Loaded).inc();
    }

    /// Counts an update that was refused.
    pub fn refused(&self) {
        self.last_reload_successful.set(0);
        self.reloads.of(ReloadResult::Refused).inc();
    }
}

#[derive(Debug, Clone)]
struct ListSeries {
    entries: IntGaugeVec,
    last_reload_successful: IntGaugeVec,
    reloads: prometheus::IntCounterVec,
}

impl ListSeries {
    #[rustfmt::skip] // a table
    fn register(registry: &Registry) -> Result<Self, prometheus::Error> {
        let integer = |name, help| register(registry, IntGaugeVec::new(opts(name, help), &["list"]));
        Ok(Self {
            entries: integer("list_entries", "Keys on the list in use.")?,
            last_reload_successful: integer("list_last_reload_successful", "0: the file as it is now was refused.")?,
            reloads: counters(registry, "list_reloads_total", "Looks at a list's file.", &["list", "result"])?,
        })
    }

    fn of(&self, name: &str) -> ListMetrics {
        ListMetrics {
            entries: self.entries.with_label_values(&[name]),
            last_reload_successful: self.last_reload_successful.with_label_values(&[name]),
            reloads: Family::from_vec(&self.reloads, &[name]),
        }
    }

    fn forget(&self, name: &str) {
        for gauges in [&self.entries, &self.last_reload_successful] {
            let _ = gauges.remove_label_values(&[name]); // it was there
        }
    }
}

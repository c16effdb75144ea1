//! The series of the control plane: filters, certificates, the build, the process.

use prometheus::process_collector::ProcessCollector;
use prometheus::{Gauge, GaugeVec, IntCounter, IntGauge, IntGaugeVec, Registry};

use super::labels::{Family, Label, RefusalReason, ReloadResult, Role};
use super::{counter, counters, opts, register};
use crate::guard::NamedFilter;

/// What the control plane counts.
#[derive(Debug, Clone)]
pub struct ControlMetrics {
    pub(super) registry: Registry,
    filters: Vec<FilterMetrics>,
    lists: Vec<ListMetrics>,
    exception_until: GaugeVec,
    certificate_not_after: GaugeVec,
    crl_next_update: GaugeVec,
    own_key_compromised: IntGaugeVec,
    upstream_up: IntGaugeVec,
    /// Snapshots that were put to use, the first included.
    pub snapshots: IntCounter,
}

/// What is known of one filter.
#[derive(Debug, Clone)]
pub struct FilterMetrics {
    info: IntGaugeVec,
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
    refusals: Family<RefusalReason, IntCounter>,
}

impl ControlMetrics {
    /// All series of the control plane, for the filters and lists with these names.
    ///
    /// # Errors
    /// Two series with the same name, or a filter named twice.
    pub fn new(filters: &[&str], lists: &[&str]) -> Result<Self, prometheus::Error> {
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
        let series = FilterSeries::register(&registry)?;
        let list_series = ListSeries::register(&registry)?;
        Ok(Self {
            lists: lists.iter().map(|name| list_series.of(name)).collect::<Result<_, _>>()?,
            exception_until: register(&registry, exception_until)?,
            filters: filters.iter().map(|name| series.of(name)).collect::<Result<_, _>>()?,
            certificate_not_after: register(&registry, not_after)?,
            crl_next_update: register(&registry, crl_next_update)?,
            own_key_compromised: register(&registry, own_key_compromised)?,
            upstream_up: register(&registry, upstream_up)?,
            snapshots: counter(&registry, "snapshots_total", "Snapshots put to use.")?,
            registry,
        })
    }

    /// The series of the filter at `index` of the names given to [`ControlMetrics::new`].
    #[expect(clippy::indexing_slicing, reason = "filters are numbered as they were given")]
    #[must_use]
    pub fn filter(&self, index: usize) -> &FilterMetrics {
        &self.filters[index]
    }

    /// The series of the list at `index` of the names given to [`ControlMetrics::new`].
    #[expect(clippy::indexing_slicing, reason = "lists are numbered as they were given")]
    #[must_use]
    pub fn list(&self, index: usize) -> &ListMetrics {
        &self.lists[index]
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
    pub fn set_own_key_compromised(&self, service: &str, role: Role, keys: usize) {
        let keys = i64::try_from(keys).unwrap_or(i64::MAX);
        self.own_key_compromised.with_label_values(&[service, role.as_str()]).set(keys);
    }

    /// Shows what the health checks say of a server.
    pub fn set_upstream_up(&self, service: &str, server: &str, is_up: bool) {
        self.upstream_up.with_label_values(&[service, server]).set(is_up.into());
    }

    /// Shows when a service's own certificate in a role expires, in seconds since the Unix epoch.
    pub fn set_certificate_not_after(&self, service: &str, role: Role, seconds: f64) {
        self.certificate_not_after.with_label_values(&[service, role.as_str()]).set(seconds);
    }
}

impl FilterMetrics {
    /// Shows a filter that was put to use at `now`, in seconds since the Unix epoch.
    pub fn loaded(&self, named: &NamedFilter, now: f64) {
        let header = named.filter.header();
        self.info.reset();
        let sha256 = data_encoding::HEXLOWER.encode(&named.sha256);
        self.info.with_label_values(&[&sha256]).set(1);
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
    pub fn refused(&self, reason: RefusalReason) {
        self.last_reload_successful.set(0);
        self.reloads.of(ReloadResult::Refused).inc();
        self.refusals.of(reason).inc();
    }
}

struct FilterSeries<'a> {
    registry: &'a Registry,
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
}

impl<'a> FilterSeries<'a> {
    #[rustfmt::skip] // a table
    fn register(registry: &'a Registry) -> Result<Self, prometheus::Error> {
        let gauge = |name, help| register(registry, GaugeVec::new(opts(name, help), &["filter"]));
        let integer = |name, help| register(registry, IntGaugeVec::new(opts(name, help), &["filter"]));
        Ok(Self {
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
            registry,
        })
    }

    fn of(&self, name: &str) -> Result<FilterMetrics, prometheus::Error> {
        // A vector for each filter: its one child is replaced with the file, the others stay.
        let info = IntGaugeVec::new(
            opts("filter_info", "1, with the SHA-256 of the file in use as a label.")
                .const_label("filter", name),
            &["sha256"],
        );
        let values = &[name];
        Ok(FilterMetrics {
            info: register(self.registry, info)?,
            revision: self.revision.get_metric_with_label_values(values)?,
            updated: self.updated.get_metric_with_label_values(values)?,
            loaded: self.loaded.get_metric_with_label_values(values)?,
            entries: self.entries.get_metric_with_label_values(values)?,
            size: self.size.get_metric_with_label_values(values)?,
            fill_ratio: self.fill_ratio.get_metric_with_label_values(values)?,
            false_positive_ratio: self.false_positive_ratio.get_metric_with_label_values(values)?,
            stale: self.stale.get_metric_with_label_values(values)?,
            last_reload_successful: self
                .last_reload_successful
                .get_metric_with_label_values(values)?,
            reloads: Family::of_vec(&self.reloads, values),
            refusals: Family::of_vec(&self.refusals, values),
        })
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

    fn of(&self, name: &str) -> Result<ListMetrics, prometheus::Error> {
        let values = &[name];
        Ok(ListMetrics {
            entries: self.entries.get_metric_with_label_values(values)?,
            last_reload_successful: self
                .last_reload_successful
                .get_metric_with_label_values(values)?,
            reloads: Family::of_vec(&self.reloads, values),
        })
    }
}

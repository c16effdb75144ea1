//! The series of the control plane: filters, lists, certificates, the build and the process.

use keygate_core::tls::CertificateRole;
use prometheus::process_collector::ProcessCollector;
use prometheus::{Gauge, GaugeVec, IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Registry};

use super::LogMetrics;
use super::confirm::{ConfirmMetrics, ConfirmSeries};
use super::filter::{FilterMetrics, FilterSeries};
use super::labels::{Family, Label, ReloadResult};
use super::list::{ListMetrics, ListSeries};
use super::series::{at_zero, series, set_count};

series! {
    /// The series of the control plane.
    pub struct ControlMetrics, ControlSeries {
        build_info: IntGaugeVec = "build_info"["version"]
            "1, with the version as a label.",
        config_reloads: Family<ReloadResult, IntCounter> = "config_reloads_total"["result"]
            "Checks of the configuration file, after a change or SIGHUP, by result.",
        config_last_reload_successful: IntGauge = "config_last_reload_successful"[]
            "0 if the configuration file was rejected at its last check.",
        pub exception_until: GaugeVec = "exception_until_timestamp_seconds"["fingerprint"]
            "When an exception expires or expired.",
        pub certificate_not_after: GaugeVec = "certificate_not_after_timestamp_seconds"["service", "role"]
            "When one of the service's own certificates expires.",
        credential_last_reload_successful: IntGaugeVec = "credential_last_reload_successful"["service", "files"]
            "0 if certificates, keys or CAs of a service were rejected at their last check.",
        credential_rejections: IntCounterVec = "credential_refusals_total"["service", "files", "reason"]
            "Rejected updates of certificates, keys and CAs of a service by reason.",
        credential_reloads: IntCounterVec = "credential_reloads_total"["service", "files", "result"]
            "Checks of the certificates, keys and CAs of a service by result.",
        crl_entries: GaugeVec = "crl_entries"["service"]
            "Revoked certificates on the revocation lists of a service.",
        crl_last_reload_successful: IntGaugeVec = "crl_last_reload_successful"["service"]
            "0 if a revocation list of a service was rejected at its last check.",
        crl_rejections: IntCounterVec = "crl_refusals_total"["service", "reason"]
            "Rejected updates of the revocation lists of a service by reason.",
        crl_next_update: GaugeVec = "crl_next_update_timestamp_seconds"["service"]
            "When the first revocation list of a service expires.",
        own_key_compromised: IntGaugeVec = "own_key_compromised"["service", "role"]
            "Keys of a service's own certificates and CAs that are weak, in a filter or on a list.",
        upstream_up: IntGaugeVec = "upstream_server_up"["service", "server"]
            "1 if the health checks find a server healthy, 0 if unhealthy.",
        pub drained: IntGauge = "drained"[]
            "1 while an operator drains this instance, and readiness fails.",
        files_checked: Gauge = "files_checked_timestamp_seconds"[]
            "When the last check of all files ended.",
        files_hung: IntGauge = "files_hung"[]
            "Files that do not respond, because their file system hangs.",
        pub snapshots: IntCounter = "snapshots_total"[]
            "Snapshots that were activated.",
        pub state_lock_waiting: IntGauge = "state_lock_waiting"[]
            "1 while another process holds the lock on the state directory, and nothing is saved.",
        pub state_write_failures: IntCounter = "state_write_failures_total"[]
            "Failed writes in the state directory.",
    } with {
        pub(super) registry: Registry,
        filters: FilterSeries,
        lists: ListSeries,
        /// The questions to a source of proofs.
        pub confirm: ConfirmMetrics,
    }
}

impl ControlMetrics {
    /// Registers all series of the control plane.
    ///
    /// # Errors
    /// Returns an error if two series have the same name.
    pub fn new() -> Result<Self, prometheus::Error> {
        let registry = Registry::new();
        registry.register(Box::new(ProcessCollector::for_self()))?;
        let metrics = ControlSeries::register(&registry)?.handles(
            &[],
            registry.clone(),
            FilterSeries::register(&registry)?,
            ListSeries::register(&registry)?,
            ConfirmSeries::register(&registry)?.handles(&[]),
        );
        metrics.build_info.with_label_values(&[env!("CARGO_PKG_VERSION")]).set(1);
        metrics.config_last_reload_successful.set(1);
        metrics.confirm.set_answers(0, 0);
        Ok(metrics)
    }

    /// Adds the series of the logs.
    ///
    /// # Errors
    /// Returns an error if they are registered already.
    pub fn with_logs(self, logs: &LogMetrics) -> Result<Self, prometheus::Error> {
        self.registry.register(Box::new(logs.collector.clone()))?;
        Ok(self)
    }

    /// The series of the filter with this name, whose rejections have `reasons`.
    #[must_use]
    pub fn filter(&self, name: &str, reasons: &[impl Label]) -> FilterMetrics {
        self.filters.with_name(name, reasons)
    }

    /// The series of the list with this name, whose rejections have `reasons`.
    #[must_use]
    pub fn list(&self, name: &str, reasons: &[impl Label]) -> ListMetrics {
        self.lists.with_name(name, reasons)
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
        set_count(&self.files_hung, hung);
    }

    /// Removes the series of exceptions, services and servers. A new snapshot sets those that are
    /// still configured.
    pub fn remove_configured(&self) {
        self.exception_until.reset();
        self.certificate_not_after.reset();
        self.credential_last_reload_successful.reset();
        self.crl_entries.reset();
        self.crl_last_reload_successful.reset();
        self.crl_next_update.reset();
        self.own_key_compromised.reset();
        self.upstream_up.reset();
    }

    /// Removes the gauges of a filter that is no longer configured. Its counters stay.
    pub fn remove_filter(&self, name: &str) {
        self.filters.remove(name);
    }

    /// Removes the gauges of a list that is no longer configured. Its counters stay.
    pub fn remove_list(&self, name: &str) {
        self.lists.remove(name);
    }

    /// Shows whether the `files` of a service, whose rejections have `reasons`, were usable at their
    /// last check.
    pub fn show_credentials(
        &self,
        service: &str,
        files: impl Label,
        is_usable: bool,
        reasons: &[impl Label],
    ) {
        let labels = [service, files.as_str()];
        self.credential_last_reload_successful.with_label_values(&labels).set(is_usable.into());
        at_zero(&self.credential_rejections, &labels, reasons);
        at_zero(&self.credential_reloads, &labels, ReloadResult::ALL);
    }

    /// Counts a check of the `files` of a service after which their content is in use.
    pub fn record_credential_reload(&self, service: &str, files: impl Label, result: ReloadResult) {
        let labels = [service, files.as_str()];
        self.credential_last_reload_successful.with_label_values(&labels).set(1);
        self.credential_reloads
            .with_label_values(&[service, files.as_str(), result.as_str()])
            .inc();
    }

    /// Counts a rejected update of the `files` of a service.
    pub fn record_credential_rejected(&self, service: &str, files: impl Label, reason: impl Label) {
        self.record_credential_reload(service, files, ReloadResult::Rejected);
        let labels = [service, files.as_str()];
        self.credential_last_reload_successful.with_label_values(&labels).set(0);
        self.credential_rejections
            .with_label_values(&[service, files.as_str(), reason.as_str()])
            .inc();
    }

    /// Shows the revocation lists of a service: when the first one expires, in seconds since the
    /// Unix epoch, and the number of revoked certificates. Their rejections have `reasons`.
    pub fn show_crls(
        &self,
        service: &str,
        next_update: Option<u64>,
        entries: usize,
        reasons: &[impl Label],
    ) {
        match next_update {
            Some(time) => self.crl_next_update.with_label_values(&[service]).set(time as f64),
            // Fails only if there is none.
            None => drop(self.crl_next_update.remove_label_values(&[service])),
        }
        self.crl_entries.with_label_values(&[service]).set(entries as f64);
        at_zero(&self.crl_rejections, &[service], reasons);
    }

    /// Sets whether the revocation lists of a service were usable at their last check.
    pub fn set_crl_last_reload_successful(&self, service: &str, is_successful: bool) {
        let gauge = self.crl_last_reload_successful.with_label_values(&[service]);
        gauge.set(is_successful.into());
    }

    /// Counts a rejected update of the revocation lists of a service.
    pub fn record_crl_rejected(&self, service: &str, reason: impl Label) {
        self.crl_rejections.with_label_values(&[service, reason.as_str()]).inc();
        self.set_crl_last_reload_successful(service, false);
    }

    /// Sets how many of a service's certificates in a role have a compromised key.
    pub fn set_own_key_compromised(&self, service: &str, role: CertificateRole, keys: usize) {
        set_count(&self.own_key_compromised.with_label_values(&[service, role.as_str()]), keys);
    }

    /// Sets whether the health checks find a server healthy.
    pub fn set_upstream_up(&self, service: &str, server: &str, is_up: bool) {
        self.upstream_up.with_label_values(&[service, server]).set(is_up.into());
    }
}

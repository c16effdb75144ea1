//! The state of a loader for operators: report, warnings, expiries and metrics.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use keygate_core::guard::WeakCheck;

use super::Loader;
use crate::files;
use crate::snapshot::report::Report;
use crate::sources::filter::FilterSource;
use crate::sources::list::ListSource;
use crate::sources::{AuthorizerSource, Expiry, ServiceSource, Warning};

impl Loader {
    /// Reports everything in use and the last attempt to read each file.
    #[must_use]
    pub fn report(&self) -> Report {
        Report {
            generation: self.generation,
            configuration_path: self.configuration.path().map(|path| path.display().to_string()),
            configuration: self.configuration.report(),
            restart_needed: self.configuration.restart_needed(),
            filters: self.sources.filters.iter().map(FilterSource::report).collect(),
            lists: self.sources.lists.iter().map(ListSource::report).collect(),
            weak_keys: self.sources.weak_checks.iter().map(WeakCheck::as_str).collect(),
            exceptions: self.sources.exceptions.report(),
            services: self.sources.services.iter().map(ServiceSource::report).collect(),
            authorizers: self.sources.authorizers.iter().map(AuthorizerSource::report).collect(),
            expiries: self.expiries(),
            warnings: self.warnings(),
            unsaved: self.state.problems().to_vec(),
        }
    }

    /// Objects that expire, earliest first.
    fn expiries(&self) -> Vec<Expiry> {
        let services = self.sources.services.iter().flat_map(ServiceSource::expiries);
        let authorizers = self.sources.authorizers.iter().flat_map(AuthorizerSource::expiries);
        let exceptions = self.sources.exceptions.expiries();
        let mut expiries: Vec<_> = services.chain(authorizers).chain(exceptions).collect();
        expiries.sort_by_key(|expiry| expiry.at);
        expiries
    }

    /// The conditions that an operator must mend although everything can be used.
    fn warnings(&self) -> Vec<Warning> {
        let now = SystemTime::now();
        let services = self.sources.services.iter();
        let services = services.flat_map(|source| source.warnings(now));
        let authorizers = self.sources.authorizers.iter();
        let services = services.chain(authorizers.flat_map(|source| source.warnings(now)));
        let own_keys = self.own_keys.iter().map(Warning::own_key);
        let filters = self.sources.filters.iter().flat_map(|filter| filter.warnings(now));
        let lists = self.sources.lists.iter().flat_map(|list| list.warnings(now));
        services.chain(own_keys).chain(filters).chain(lists).collect()
    }

    /// Time until the next exception or CRL expires, or a CRL that is dated in the future is due.
    #[must_use]
    pub fn next_expiry(&self) -> Option<Duration> {
        let now = SystemTime::now();
        let services = self.sources.services.iter();
        let crls = services.filter_map(|source| source.time_to_crl_check(now));
        let authorizers = self.sources.authorizers.iter();
        let crls = crls.chain(authorizers.filter_map(|source| source.time_to_crl_check(now)));
        let crls = crls.filter(|left| !left.is_zero());
        crls.chain(self.sources.exceptions.next_expiry(now)).min()
    }

    /// Sets the metrics that show that files are checked, and how many do not respond.
    pub(super) fn record_file_check(&self) {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        self.metrics.record_file_check(now.as_secs_f64(), files::hung_files());
    }

    /// Sets the metrics that show the files of services, and when certificates and CRLs expire.
    pub(super) fn set_service_metrics(&self) {
        self.sources.services.iter().for_each(ServiceSource::set_metrics);
        self.sources.authorizers.iter().for_each(AuthorizerSource::set_metrics);
    }
}

//! The state of a loader for operators: report, warnings, expiries and metrics.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use keygate_core::guard::WeakCheck;

use super::Loader;
use crate::files;
use crate::snapshot::report::Report;
use crate::sources::assertion::key_set;
use crate::sources::credential_source::CredentialSource;
use crate::sources::filter::FilterSource;
use crate::sources::list::ListSource;
use crate::sources::{Expiry, Warning};

impl Loader {
    /// Reports everything in use and the last attempt to read each file.
    #[must_use]
    pub fn report(&self) -> Report {
        let credentials = || self.sources.credentials.iter();
        Report {
            generation: self.generation,
            configuration_path: self.configuration.path().map(|path| path.display().to_string()),
            configuration: self.configuration.report(),
            restart_needed: self.configuration.restart_needed(),
            filters: self.sources.filters.iter().map(FilterSource::report).collect(),
            lists: self.sources.lists.iter().map(ListSource::report).collect(),
            weak_keys: self.sources.weak_checks.iter().map(WeakCheck::as_str).collect(),
            exceptions: self.sources.exceptions.report(),
            services: credentials().filter_map(CredentialSource::service_report).collect(),
            authorizers: credentials().filter_map(CredentialSource::authorizer_report).collect(),
            readers: credentials().find_map(CredentialSource::readers_report),
            expiries: self.expiries(),
            warnings: self.warnings(),
            key_set: key_set(credentials().map(|it| it.credentials.signing_keys.get())),
            unsaved: self.state.problems.clone(),
        }
    }

    /// Objects that expire, earliest first.
    fn expiries(&self) -> Vec<Expiry> {
        let credentials = self.sources.credentials.iter().flat_map(CredentialSource::expiries);
        let exceptions = self.sources.exceptions.expiries();
        let mut expiries: Vec<_> = credentials.chain(exceptions).collect();
        expiries.sort_by_key(|expiry| expiry.at);
        expiries
    }

    /// The conditions that an operator must mend although everything can be used.
    fn warnings(&self) -> Vec<Warning> {
        let now = SystemTime::now();
        let credentials = self.sources.credentials.iter().flat_map(|it| it.warnings(now));
        let own_keys = self.own_keys.iter().map(Warning::own_key);
        let filters = self.sources.filters.iter().flat_map(|filter| filter.warnings(now));
        let lists = self.sources.lists.iter().flat_map(|list| list.warnings(now));
        let guard = self.sources.guard_without_exceptions();
        let products = guard.oversize_products().map(Warning::oversize_products);
        let alone = guard.has_products_alone().then(Warning::products_alone);
        let all = credentials.chain(own_keys).chain(filters).chain(lists);
        all.chain(products).chain(alone).collect()
    }

    /// Time until the next exception or CRL expires, or a CRL that is dated in the future is due.
    #[must_use]
    pub fn next_expiry(&self) -> Option<Duration> {
        let now = SystemTime::now();
        let crls = self.sources.credentials.iter().filter_map(|it| it.time_to_crl_check(now));
        let crls = crls.filter(|left| !left.is_zero());
        crls.chain(self.sources.exceptions.next_expiry(now)).min()
    }

    /// Sets the metrics that show that files are checked, and how many do not respond.
    pub(super) fn record_file_check(&self) {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        self.metrics.record_file_check(now.as_secs_f64(), files::hung_files());
    }
}

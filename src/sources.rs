//! The files that a configuration names: filters, lists, certificates, keys, CAs and CRLs.
//!
//! Each file or unit of files keeps its last good value. A broken filter therefore does not delay a
//! new CA. A new configuration is staged first. It is applied only if everything new in it can be
//! used; sources that both configurations share are kept.

mod admission_digest;
mod asker_ca;
pub(crate) mod assertion;
mod candidate;
pub(crate) mod check;
mod client_auth;
mod client_gates;
pub(crate) mod configuration;
pub(crate) mod context;
pub(crate) mod credential_files;
pub(crate) mod credential_source;
mod credential_unit;
mod exceptions;
mod expiry;
mod failure;
mod file_rejection;
pub(crate) mod filter;
pub(crate) mod gate;
mod guarded;
pub(crate) mod guards;
mod judgement_context;
mod key_pair;
pub(crate) mod last_good;
mod last_question;
pub(crate) mod list;
mod load_error;
pub(crate) mod load_errors;
mod operator_decision;
mod own_key;
mod private_key;
mod rejection_reason;
mod report;
mod service_credentials;
mod service_file;
pub(crate) mod signed;
mod source_set;
mod ticket_secret;
pub(crate) mod unit_files;
mod upstream_credentials;
mod waiting;
mod warning;
pub(crate) mod webhook_keys;

use std::cell::RefCell;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::SystemTime;

use keygate_core::guard::{JudgedAt, NamedFilter, WeakChecks};
use keygate_core::spki::RsaExponents;

pub use self::candidate::{check_filter_candidate, check_list_candidate};
use self::check::dry_run::DryRun;
pub use self::client_auth::{CrlFileError, check_crl_candidate};
pub use self::configuration::{Commit, Prepare, ReconfigureError, Trigger};
use self::context::LoadContext;
use self::credential_files::CredentialTable;
use self::credential_source::CredentialSource;
pub use self::credential_unit::CredentialUnit;
use self::exceptions::ConfiguredExceptions;
pub use self::expiry::{Expiry, ExpiryState};
pub use self::file_rejection::{CanaryError, CanaryFileError, FileRejection};
use self::filter::FilterSource;
pub use self::gate::AcceptError;
pub use self::judgement_context::JudgementContext;
use self::last_good::ValueChange;
pub use self::last_question::LastQuestion;
use self::list::ListSource;
pub use self::load_error::{CredentialError, LoadError};
pub use self::load_errors::LoadErrors;
use self::load_errors::both;
pub use self::operator_decision::{GuardFile, NeedsOperator, WaitCause};
pub use self::own_key::OwnKey;
pub use self::private_key::ExposedKeyFile;
pub(crate) use self::private_key::read as read_private_key;
pub use self::rejection_reason::RejectionReason;
pub use self::report::{
    AffectedClient, AuthorizerReport, CrlReport, DryRunReport, ExceptionReport, FilterReport,
    ListReport, PolicyReport, ReloadReport, ServiceReport, SignatureReport, WaitingReport,
};
pub(crate) use self::source_set::FileSource;
use self::source_set::{SourceSet, StagedSet};
pub use self::warning::{PeriodProblem, Warning};
use crate::config::{Config, FilterConfig};
use crate::metrics::ControlMetrics;
use crate::saved_state::StateInUse;

/// Everything that a configuration names.
#[derive(Debug, Default)]
pub(crate) struct Sources {
    pub(crate) filters: SourceSet<FilterSource>,
    pub(crate) lists: SourceSet<ListSource>,
    pub(crate) weak_checks: WeakChecks,
    pub(crate) exceptions: ConfiguredExceptions,
    /// The services first, then the authorizers, then the address for readers.
    pub(crate) credentials: SourceSet<CredentialSource>,
}

/// The sources of a new configuration, of which only new ones are loaded.
pub(crate) struct StagedSources {
    filters: StagedSet<FilterSource>,
    lists: StagedSet<ListSource>,
    weak_checks: WeakChecks,
    exceptions: ConfiguredExceptions,
    credentials: StagedSet<CredentialSource>,
}

/// The ids of services, by name. An id is never given to another service.
#[derive(Debug, Default)]
pub(crate) struct ServiceIds(RefCell<Vec<String>>);

impl ServiceIds {
    fn assign(&self, name: &str) -> usize {
        let mut names = self.0.borrow_mut();
        names.iter().position(|known| known == name).unwrap_or_else(|| {
            names.push(name.to_owned());
            names.len() - 1
        })
    }
}

impl Sources {
    /// A dry run of updates on the recent clients of `judgement`, by the policies and exceptions in
    /// `config` and by the lists in use whose names stay.
    pub(crate) fn dry_run(
        &self,
        config: &Config,
        ids: &ServiceIds,
        judgement: &JudgementContext,
        now: SystemTime,
    ) -> DryRun {
        let services = config.services.iter();
        let services = services.map(|it| (&it.name, &it.policy.decisions));
        let authorizers =
            config.authorizers.iter().filter(|it| it.protocol.stage() == JudgedAt::Asked);
        let authorizers = authorizers.map(|it| (&it.name, &it.policy.decisions));
        let policies = services.chain(authorizers);
        let policies = policies.map(|(name, policy)| (ids.assign(name), policy.clone())).collect();
        let stays = |list: &&ListSource| config.lists.iter().any(|it| it.name == list.name());
        let lists = self.lists.iter().filter(stays);
        DryRun {
            recent: judgement.recent.clone(),
            now,
            policies,
            names: ids.0.borrow().clone(),
            filters: self.named_filters(),
            lists: lists.map(|source| source.list().clone()).collect(),
            exponents: exponents_of(&config.filters),
            weak_checks: config.weak_keys.checks,
            exceptions: config.exceptions.clone(),
            answers: judgement.answers.clone(),
        }
    }

    /// Loads what is new in `config`. The sources in use do not change.
    pub(crate) fn stage(
        &self,
        config: &Config,
        context: LoadContext<'_>,
    ) -> Result<StagedSources, LoadErrors> {
        let filters = self.filters.stage(&config.filters, context);
        let lists = self.lists.stage(&config.lists, context);
        let credentials = self.credentials.stage(&CredentialTable::all(config), context);
        let ((filters, lists), credentials) = both(both(filters, lists), credentials)?;
        let exceptions = ConfiguredExceptions::new(&config.exceptions);
        let weak_checks = config.weak_keys.checks;
        Ok(StagedSources { filters, lists, weak_checks, exceptions, credentials })
    }

    /// Puts the staged sources in use.
    pub(crate) fn apply(
        &mut self,
        staged: StagedSources,
        metrics: &ControlMetrics,
        now: SystemTime,
    ) {
        metrics.remove_configured();
        let removed_filters = self.filters.apply(staged.filters, now);
        let removed_lists = self.lists.apply(staged.lists, now);
        self.credentials.apply(staged.credentials, now);
        self.weak_checks = staged.weak_checks;
        self.exceptions = staged.exceptions;
        removed_filters.iter().for_each(|name| metrics.remove_filter(name));
        removed_lists.iter().for_each(|name| metrics.remove_list(name));
        self.exceptions.set_metrics(metrics);
    }

    /// Reads every source again if its files have changed, and returns each result. Updates are
    /// checked by `dry_run` on recent clients.
    pub(crate) fn refresh(&mut self, now: SystemTime, dry_run: &DryRun) -> Vec<ValueChange> {
        let mut changes = Vec::new();
        self.filters.refresh(now, dry_run, &mut changes);
        self.lists.refresh(now, dry_run, &mut changes);
        self.credentials.refresh(now, dry_run, &mut changes);
        changes
    }

    /// The filters in use, in the order of the configuration.
    pub(crate) fn named_filters(&self) -> Vec<Arc<NamedFilter>> {
        self.filters.iter().map(|source| Arc::clone(source.filter())).collect()
    }

    /// The state of the sources that outlives a restart.
    pub(crate) fn state(&self) -> StateInUse {
        let filters = self.filters.iter().map(FilterSource::saved);
        let marks = self.credentials.iter().map(|it| (it.name().to_owned(), it.crl_marks.clone()));
        StateInUse {
            files: filters.chain(self.lists.iter().map(ListSource::saved)).collect(),
            waiting: self.waiting_files(),
            marks: marks.collect(),
            credentials: self.credentials.iter().flat_map(CredentialSource::saved_files).collect(),
        }
    }

    /// Paths of all files that are read again when they change.
    pub(crate) fn paths(&self) -> impl Iterator<Item = &PathBuf> {
        let guarded = self.filters.paths().chain(self.lists.paths());
        guarded.chain(self.credentials.paths())
    }
}

/// The related exponents of each filter, by name.
fn exponents_of<'a>(
    filters: impl IntoIterator<Item = &'a FilterConfig>,
) -> Vec<(String, RsaExponents)> {
    let filters = filters.into_iter();
    filters.map(|filter| (filter.name.clone(), filter.related_exponents)).collect()
}

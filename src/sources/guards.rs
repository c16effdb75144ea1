//! The guard of the sources in use, and the dry run of a new configuration.

use std::sync::Arc;

use keygate_core::guard::{Guard, WeakChecks};
use tracing::warn;

use super::credential_source::{CredentialSource, former};
use super::filter::FilterSource;
use super::list::ListSource;
use super::source_set::FileSource;
use super::{Sources, StagedSources, exponents_of};
use crate::sources::check::dry_run::{DryRun, Judge, NewHits};
use crate::sources::judgement_context::JudgementContext;
use crate::sources::load_error::LoadError;
use crate::sources::load_errors::{LoadErrors, all};
use crate::sources::report::client_list;

impl Sources {
    /// A guard with the filters, lists and weak-key checks in use.
    pub(crate) fn guard_without_exceptions(&self) -> Guard {
        guard(self.filters.iter(), self.lists.iter(), self.weak_checks)
    }

    /// The guard of the sources in use.
    pub(crate) fn guard(&self, judgement: &JudgementContext) -> Guard {
        let guard = self.guard_without_exceptions().with_exceptions(self.exceptions.all());
        guard.with_answers(judgement.answers.clone())
    }

    /// Runs the `staged` configuration as a whole on the recent clients of each service.
    ///
    /// # Errors
    /// Returns an error for each service of which too many recent clients would be rejected.
    pub(crate) fn dry_run_of(
        &self,
        staged: &StagedSources,
        judgement: &JudgementContext,
        dry_run: &DryRun,
    ) -> Result<Vec<ConfigurationHits>, LoadErrors> {
        let filters = staged.filters.sources(&self.filters);
        let lists = staged.lists.sources(&self.lists);
        let next =
            guard(filters, lists, staged.weak_checks).with_exceptions(staged.exceptions.all());
        let guards = [&self.guard(judgement), &next.with_answers(judgement.answers.clone())];
        let credentials: Vec<_> = staged.credentials.sources(&self.credentials).collect();
        let configured: Vec<_> = credentials.iter().map(|it| it.name()).collect();
        // Each source that was in use before, also under another name.
        all(credentials.iter().filter_map(|source| {
            let before = former(&self.credentials, source.id, source.config(), &configured)?;
            Some(source.dry_run_since(before, guards, dry_run))
        }))
    }
}

fn guard<'a>(
    filters: impl Iterator<Item = &'a FilterSource>,
    lists: impl Iterator<Item = &'a ListSource>,
    weak_checks: WeakChecks,
) -> Guard {
    let filters: Vec<_> = filters.collect();
    let guard = Guard::new(filters.iter().map(|source| Arc::clone(source.filter())).collect())
        .with_lists(lists.map(|source| source.list().clone()))
        .with_weak_checks(weak_checks);
    exponents_of(filters.into_iter().map(FilterSource::config))
        .into_iter()
        .fold(guard, |guard, (filter, exponents)| guard.with_related_exponents(&filter, exponents))
}

impl CredentialSource {
    /// Runs the change from `before` on the recent clients of the service. `guards` are the one in
    /// use and the next one.
    fn dry_run_since(
        &self,
        before: &Self,
        guards: [&Guard; 2],
        dry_run: &DryRun,
    ) -> Result<ConfigurationHits, LoadError> {
        let files = self.config.files();
        let [guard_before, guard] = guards;
        let judges = [before.judge(guard_before), self.judge(guard)];
        let (hits, recent) = dry_run.new_hits_of_configuration(before.id, judges);
        if let Some(allowed) = files.clients.max_new_hits.filter(|allowed| hits.count > *allowed) {
            let (owner, hits) = (files.owner(), (hits.count, client_list(&hits.clients)));
            return Err(LoadError::NewHits { owner, hits, recent, allowed });
        }
        Ok(ConfigurationHits { service: files.name.to_owned(), hits, recent })
    }

    fn judge<'a>(&'a self, guard: &'a Guard) -> Judge<'a> {
        (guard, &self.config.files().policy.decisions, self.credentials.client_verifier.as_deref())
    }
}

/// The recent clients of a service that a configuration newly rejects.
pub(crate) struct ConfigurationHits {
    service: String,
    hits: NewHits,
    /// Number of recent clients.
    recent: usize,
}

impl ConfigurationHits {
    /// Logs the clients, if there is one.
    pub(crate) fn log(&self) {
        let Self { service, hits, recent } = self;
        if hits.count > 0 {
            let (new_hits, clients) = (hits.count, client_list(&hits.clients));
            warn!(service, new_hits, recent, clients, "the configuration rejects recent clients");
        }
    }
}

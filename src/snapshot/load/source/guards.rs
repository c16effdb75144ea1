//! The guard of the sources in use, and the trial of that of a new configuration.

use std::sync::Arc;

use super::credential_files::NamesCredentials;
use super::credential_source::{ConfigurationHits, CredentialSource};
use super::filter::FilterSource;
use super::list::ListSource;
use super::{Sources, Staged, StagedSources, exponents_of};
use crate::guard::{Guard, WeakChecks};
use crate::snapshot::load::check::dry_run::DryRun;
use crate::snapshot::load::error::LoadError;
use crate::snapshot::load::links::JudgementLinks;
use crate::snapshot::load::load_errors::{LoadErrors, all};

impl Sources {
    /// A guard with the filters, lists and weak-key checks in use.
    pub(in crate::snapshot::load) fn guard_without_exceptions(&self) -> Guard {
        guard(self.filters.iter(), self.lists.iter(), self.weak_checks)
    }

    /// The guard of the sources in use.
    pub(in crate::snapshot::load) fn guard(&self, links: &JudgementLinks) -> Guard {
        let guard = self.guard_without_exceptions().with_exceptions(self.exceptions.all());
        guard.with_answers(links.answers.clone())
    }

    /// Tries the `staged` configuration as a whole on the recent clients of each service.
    ///
    /// # Errors
    /// Returns an error for each service of which too many recent clients would be rejected.
    pub(in crate::snapshot::load) fn try_on_clients(
        &self,
        staged: &mut StagedSources,
        links: &JudgementLinks,
        dry_run: &DryRun,
    ) -> Result<(), LoadErrors> {
        let filters = staged.filters.iter().filter_map(|it| it.source(&self.filters));
        let lists = staged.lists.iter().filter_map(|it| it.source(&self.lists));
        let next =
            guard(filters, lists, staged.weak_checks).with_exceptions(staged.exceptions.all());
        let guards = [&self.guard(links), &next.with_answers(links.answers.clone())];
        let services = tried(&self.services, &staged.services, guards, dry_run);
        let authorizers = tried(&self.authorizers, &staged.authorizers, guards, dry_run);
        staged.hits = all(services.into_iter().chain(authorizers).filter_map(Result::transpose))?;
        Ok(())
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

/// The result of [`CredentialSource::try_configuration`] for each source that was in use before.
fn tried<C: NamesCredentials>(
    in_use: &[CredentialSource<C>],
    staged: &[Staged<CredentialSource<C>>],
    guards: [&Guard; 2],
    dry_run: &DryRun,
) -> Vec<Result<Option<ConfigurationHits>, LoadError>> {
    let staged = staged.iter().filter_map(|it| it.source(in_use));
    let tried = staged.filter_map(|source| {
        let before = in_use.iter().find(|before| before.id() == source.id())?;
        Some(source.try_configuration(before, guards, dry_run))
    });
    tried.collect()
}

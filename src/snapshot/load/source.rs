//! Everything that a configuration names: filters, lists, exceptions, services and routes.
//!
//! A new configuration is staged first. It is applied only if everything new in it can be used;
//! sources that both configurations share are kept.

pub(crate) mod authorizer;
mod client_gates;
pub(crate) mod configuration;
mod credential_files;
mod credential_source;
pub(crate) mod exceptions;
pub(crate) mod filter;
pub(crate) mod gate;
pub(super) mod guards;
pub(crate) mod list;
mod rejected_unit;
pub(crate) mod service;
mod service_credentials;
mod waiting;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Instant, SystemTime};

use keygate_core::guard::{NamedFilter, WeakChecks};
use keygate_core::spki::RsaExponents;

use self::authorizer::AuthorizerSource;
use self::credential_files::NamesCredentials;
use self::credential_source::CredentialSource;
use self::exceptions::ConfiguredExceptions;
use self::filter::FilterSource;
use self::list::ListSource;
use self::service::ServiceSource;
use super::check::dry_run::{DryRun, Judges};
use super::context::LoadContext;
use super::error::LoadError;
use super::last_good::ValueChange;
use super::links::JudgementLinks;
use super::load_errors::{LoadErrors, all, both};
use super::saved_credentials::SavedFile;
use super::signed::LoadedList;
use crate::config::{Config, FilterConfig, ListConfig};
use crate::metrics::ControlMetrics;
use crate::snapshot::routes::Routes;

/// Everything that a configuration names.
#[derive(Debug)]
pub(super) struct Sources {
    pub(super) filters: Vec<FilterSource>,
    pub(super) lists: Vec<ListSource>,
    pub(super) weak_checks: WeakChecks,
    pub(super) exceptions: ConfiguredExceptions,
    pub(super) services: Vec<ServiceSource>,
    pub(super) authorizers: Vec<AuthorizerSource>,
    pub(super) routes: Arc<Routes>,
}

/// The sources of a new configuration, of which only new ones are loaded.
pub(super) struct StagedSources {
    filters: Vec<Staged<FilterSource>>,
    lists: Vec<Staged<ListSource>>,
    weak_checks: WeakChecks,
    exceptions: ConfiguredExceptions,
    services: Vec<Staged<ServiceSource>>,
    authorizers: Vec<Staged<AuthorizerSource>>,
    routes: Arc<Routes>,
}

/// One source of a new configuration.
enum Staged<S> {
    /// The source in use at this index.
    Kept(usize),
    /// A source that was loaded.
    New(S),
}

impl<S> Staged<S> {
    /// The source, which may be one of those `in_use`.
    fn source<'a>(&'a self, in_use: &'a [S]) -> Option<&'a S> {
        match self {
            Self::Kept(index) => in_use.get(*index),
            Self::New(source) => Some(source),
        }
    }
}

/// The ids of services, by name. An id is never given to another service.
#[derive(Debug, Default)]
pub(super) struct ServiceIds(Vec<String>);

impl ServiceIds {
    fn assign(&mut self, name: &str) -> usize {
        self.0.iter().position(|known| known == name).unwrap_or_else(|| {
            self.0.push(name.to_owned());
            self.0.len() - 1
        })
    }
}

impl Sources {
    /// No sources.
    pub(super) fn none() -> Self {
        Self {
            filters: Vec::new(),
            lists: Vec::new(),
            weak_checks: WeakChecks::NONE,
            exceptions: ConfiguredExceptions::new(&[]),
            services: Vec::new(),
            authorizers: Vec::new(),
            routes: Arc::new(Routes::new([])),
        }
    }

    /// A dry run of updates on the recent clients of `links`, by the policies and exceptions in
    /// `config` and by the lists in use whose names stay.
    pub(super) fn dry_run(
        &self,
        config: &Config,
        ids: &mut ServiceIds,
        links: &JudgementLinks,
        now: SystemTime,
    ) -> DryRun {
        let services = config.services.iter();
        let services = services.map(|it| (&it.name, &it.policy));
        let authorizers = config.authorizers.iter().map(|it| (&it.name, &it.policy));
        let policies = services.chain(authorizers);
        let policies = policies.map(|(name, policy)| (ids.assign(name), policy.clone())).collect();
        let stays =
            |list: &&ListSource| config.lists.iter().any(|it| it.name == list.config().name);
        let lists = self.lists.iter().filter(stays);
        let judges = Judges {
            filters: self.named_filters(),
            lists: lists.map(|source| source.list().clone()).collect(),
            exponents: exponents_of(&config.filters),
            weak_checks: config.weak_checks,
            exceptions: config.exceptions.clone(),
            answers: links.answers.clone(),
        };
        DryRun::new(links.recent.clone(), judges, now, policies, ids.0.clone())
    }

    /// Loads what is new in `config`. The sources in use do not change.
    ///
    /// # Errors
    /// Returns the errors of all files that cannot be used.
    pub(super) fn stage(
        &self,
        config: &Config,
        ids: &mut ServiceIds,
        context: LoadContext<'_>,
    ) -> Result<StagedSources, LoadErrors> {
        let filters = config.filters.iter().map(|filter| self.stage_filter(filter, context));
        let filters = all(filters);
        let lists = config.lists.iter().map(|list| self.stage_list(list, context));
        let lists = all(lists);
        let authorizers = config.authorizers.iter();
        let authorizers = authorizers
            .map(|it| stage_credentials(&self.authorizers, it, ids.assign(&it.name), context));
        let authorizers = all(authorizers);
        let ids: Vec<usize> = config.services.iter().map(|it| ids.assign(&it.name)).collect();
        let services = config.services.iter().zip(&ids);
        let services =
            services.map(|(service, id)| stage_credentials(&self.services, service, *id, context));
        let staged = both(both(filters, lists), both(all(services), authorizers));
        let ((filters, lists), (services, authorizers)) = staged?;
        Ok(StagedSources {
            filters,
            lists,
            weak_checks: config.weak_checks,
            exceptions: ConfiguredExceptions::new(&config.exceptions),
            services,
            authorizers,
            routes: Arc::new(Routes::new(ids.iter().copied().zip(&config.services))),
        })
    }

    fn stage_filter(
        &self,
        config: &FilterConfig,
        context: LoadContext<'_>,
    ) -> Result<Staged<FilterSource>, LoadErrors> {
        if let Some(index) = self.filters.iter().position(|known| known.config() == config) {
            return Ok(Staged::Kept(index));
        }
        let before = self.filters.iter().find(|known| known.name() == config.name);
        let before =
            before.or_else(|| self.filters.iter().find(|known| known.config().path == config.path));
        let loaded = timed(context, || FilterSource::load(config.clone(), before, context));
        loaded.map(Staged::New)
    }

    fn stage_list(
        &self,
        config: &ListConfig,
        context: LoadContext<'_>,
    ) -> Result<Staged<ListSource>, LoadError> {
        if let Some(index) = self.lists.iter().position(|known| known.config() == config) {
            return Ok(Staged::Kept(index));
        }
        let in_use = self.lists.iter().find(|known| known.config().name == config.name);
        let in_use =
            in_use.or_else(|| self.lists.iter().find(|known| known.config().path == config.path));
        let loaded = timed(context, || ListSource::load(config.clone(), in_use, context));
        loaded.map(Staged::New)
    }

    /// Puts the staged sources in use.
    pub(super) fn apply(
        &mut self,
        mut staged: StagedSources,
        metrics: &ControlMetrics,
        now: SystemTime,
    ) {
        let (filters_before, lists_before) = (self.filter_names(), self.list_names());
        metrics.remove_configured();
        each_new(&mut staged.filters, |it| it.show_loaded(now));
        each_new(&mut staged.lists, |it| it.show_loaded(now));
        merge(&mut self.filters, staged.filters);
        merge(&mut self.lists, staged.lists);
        each_new(&mut staged.services, |it| it.show_loaded(now));
        each_new(&mut staged.authorizers, |it| it.show_loaded(now));
        merge(&mut self.services, staged.services);
        merge(&mut self.authorizers, staged.authorizers);
        self.weak_checks = staged.weak_checks;
        self.exceptions = staged.exceptions;
        self.routes = staged.routes;
        let filters = self.filter_names();
        let removed = filters_before.iter().filter(|name| !filters.contains(name));
        removed.for_each(|name| metrics.remove_filter(name));
        let lists = self.list_names();
        let removed = lists_before.iter().filter(|name| !lists.contains(name));
        removed.for_each(|name| metrics.remove_list(name));
        self.exceptions.show(metrics);
    }

    /// Reads every source again if its files have changed, and returns each result. Updates are tried
    /// on the recent clients of `dry_run`.
    pub(super) fn refresh(&mut self, now: SystemTime, dry_run: &DryRun) -> Vec<ValueChange> {
        let filters = self.filters.iter_mut().map(|filter| filter.refresh(now, dry_run));
        let lists = self.lists.iter_mut().map(|list| list.refresh(now, dry_run));
        let services = self.services.iter_mut().flat_map(|service| service.refresh(now, dry_run));
        // `collect` refreshes every source; `any` would stop at the first change.
        let authorizers = self.authorizers.iter_mut().flat_map(|it| it.refresh(now, dry_run));
        filters.chain(lists).chain(services).chain(authorizers).collect()
    }

    /// The filters in use, in the order of the configuration.
    pub(super) fn named_filters(&self) -> Vec<Arc<NamedFilter>> {
        self.filters.iter().map(|source| Arc::clone(source.filter())).collect()
    }

    /// The lists in use with their signatures.
    pub(super) fn loaded_lists(&self) -> impl Iterator<Item = LoadedList> {
        self.lists.iter().map(|source| source.loaded().clone())
    }

    /// The files with CAs and CRLs of clients in use, for their copies.
    pub(super) fn saved_files(&self) -> impl Iterator<Item = SavedFile> {
        let services = self.services.iter().flat_map(ServiceSource::saved_files);
        services.chain(self.authorizers.iter().flat_map(AuthorizerSource::saved_files))
    }

    /// Paths of all files that are read again when they change.
    pub(super) fn paths(&self) -> impl Iterator<Item = &PathBuf> {
        let filters = self.filters.iter().flat_map(FilterSource::paths);
        let lists = self.lists.iter().flat_map(ListSource::paths);
        let services = self.services.iter().flat_map(ServiceSource::paths);
        let authorizers = self.authorizers.iter().flat_map(AuthorizerSource::paths);
        filters.chain(lists).chain(services).chain(authorizers)
    }

    fn filter_names(&self) -> Vec<String> {
        self.filters.iter().map(|filter| filter.name().to_owned()).collect()
    }

    fn list_names(&self) -> Vec<String> {
        self.lists.iter().map(|list| list.config().name.clone()).collect()
    }
}

/// The related exponents of each filter, by name.
fn exponents_of<'a>(
    filters: impl IntoIterator<Item = &'a FilterConfig>,
) -> Vec<(String, RsaExponents)> {
    let filters = filters.into_iter();
    filters.map(|filter| (filter.name.clone(), filter.related_exponents)).collect()
}

fn stage_credentials<C: NamesCredentials + Clone + PartialEq>(
    in_use: &[CredentialSource<C>],
    config: &C,
    id: usize,
    context: LoadContext<'_>,
) -> Result<Staged<CredentialSource<C>>, LoadErrors> {
    if let Some(index) = in_use.iter().position(|known| known.config() == config) {
        return Ok(Staged::Kept(index));
    }
    let before = former(in_use, id, config, &context.configured.names());
    CredentialSource::load(id, config.clone(), before, context).map(Staged::New)
}

/// The source in use with this `id`. Otherwise, of those whose name is not among the `configured` ones,
/// the one that is most like `config`; `None` if several are.
fn former<'a, C: NamesCredentials>(
    in_use: &'a [CredentialSource<C>],
    id: usize,
    config: &C,
    configured: &[&str],
) -> Option<&'a CredentialSource<C>> {
    let same = in_use.iter().find(|it| it.id() == id);
    same.or_else(|| {
        let removed = || in_use.iter().filter(|it| !configured.contains(&it.name()));
        let likeness = removed().map(|it| it.likeness(config)).max().filter(|it| *it > 0)?;
        let mut alike = removed().filter(|it| it.likeness(config) == likeness);
        alike.next().filter(|_| alike.next().is_none())
    })
}

/// Calls `load`. If it fails, the time it took is no longer waited for the writers of other files.
fn timed<T, E>(context: LoadContext<'_>, load: impl FnOnce() -> Result<T, E>) -> Result<T, E> {
    let start = Instant::now();
    load().inspect_err(|_| context.max_wait.spend(start.elapsed()))
}

fn each_new<S>(staged: &mut [Staged<S>], call: impl Fn(&mut S)) {
    for source in staged {
        if let Staged::New(source) = source {
            call(source);
        }
    }
}

fn merge<S>(sources: &mut Vec<S>, staged: Vec<Staged<S>>) {
    let mut known: Vec<Option<S>> = sources.drain(..).map(Some).collect();
    let merged = staged.into_iter().filter_map(|source| match source {
        Staged::Kept(index) => known.get_mut(index).and_then(Option::take),
        Staged::New(source) => Some(source),
    });
    sources.extend(merged);
}

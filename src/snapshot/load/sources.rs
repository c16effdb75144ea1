//! Everything that a configuration names, and how one configuration follows another: what is the
//! same is kept as it is, and nothing changes unless all that is new can be used.

use std::sync::Arc;
use std::time::SystemTime;

use super::exceptions::Exceptions;
use super::filter::FilterSource;
use super::list::ListSource;
use super::mark::RollbackState;
use super::service::ServiceSource;
use super::{LoadError, Routes};
use crate::config::Config;
use crate::metrics::ControlMetrics;

/// Everything that a configuration names.
#[derive(Debug)]
pub(super) struct Sources {
    pub(super) filters: Vec<FilterSource>,
    pub(super) lists: Vec<ListSource>,
    pub(super) exceptions: Exceptions,
    pub(super) services: Vec<ServiceSource>,
    pub(super) routes: Arc<Routes>,
}

/// The sources of another configuration, loaded as far as they are new.
pub(super) struct Staged {
    filters: Vec<Part<FilterSource>>,
    lists: Vec<Part<ListSource>>,
    exceptions: Exceptions,
    services: Vec<Part<ServiceSource>>,
    routes: Arc<Routes>,
}

enum Part<S> {
    /// The one that is at this place now.
    Kept(usize),
    New(S),
}

/// The numbers of services, by name: once given, a number means the same service as long as the
/// process lives.
#[derive(Debug, Default)]
pub(super) struct ServiceIds(Vec<String>);

impl ServiceIds {
    fn of(&mut self, name: &str) -> usize {
        self.0.iter().position(|known| known == name).unwrap_or_else(|| {
            self.0.push(name.to_owned());
            self.0.len() - 1
        })
    }
}

impl Sources {
    /// Loads the first configuration.
    pub(super) fn load(
        config: &Config,
        numbers: &mut ServiceIds,
        metrics: &ControlMetrics,
        marks: &RollbackState,
        now: SystemTime,
    ) -> Result<Self, LoadError> {
        let mut sources = Self {
            filters: Vec::new(),
            lists: Vec::new(),
            exceptions: Exceptions::new(&[]),
            services: Vec::new(),
            routes: Arc::new(Routes::new([])),
        };
        let staged = sources.stage(config, numbers, metrics, marks, now)?;
        sources.apply(staged, metrics, now);
        Ok(sources)
    }

    /// Loads what is new in another configuration; nothing here changes.
    pub(super) fn stage(
        &self,
        config: &Config,
        numbers: &mut ServiceIds,
        metrics: &ControlMetrics,
        marks: &RollbackState,
        now: SystemTime,
    ) -> Result<Staged, LoadError> {
        let filters = config.filters.iter().map(|filter| {
            part(
                &self.filters,
                |known| known.config() == filter,
                || {
                    let series = metrics.filter(&filter.name);
                    FilterSource::load(filter.clone(), series, marks.of(&filter.name), now)
                },
            )
        });
        let lists = config.lists.iter().map(|list| {
            part(
                &self.lists,
                |known| known.config() == list,
                || ListSource::load(list.clone(), metrics.list(&list.name), now),
            )
        });
        let (filters, lists) =
            (filters.collect::<Result<_, _>>()?, lists.collect::<Result<_, _>>()?);
        let indices = config.services.iter().map(|service| numbers.of(&service.name));
        let indices: Vec<usize> = indices.collect();
        let services = config.services.iter().zip(&indices).map(|(service, index)| {
            part(
                &self.services,
                |known| known.config() == service,
                || {
                    let before = self.services.iter().find(|known| known.index() == *index);
                    ServiceSource::load(*index, service.clone(), before, now)
                },
            )
        });
        Ok(Staged {
            filters,
            lists,
            exceptions: Exceptions::new(&config.exceptions),
            services: services.collect::<Result<_, _>>()?,
            routes: Arc::new(Routes::new(indices.iter().copied().zip(&config.services))),
        })
    }
}

/// The source that is known already, or a new one.
fn part<S>(
    known: &[S],
    is_it: impl Fn(&S) -> bool,
    load: impl FnOnce() -> Result<S, LoadError>,
) -> Result<Part<S>, LoadError> {
    known.iter().position(is_it).map_or_else(|| load().map(Part::New), |at| Ok(Part::Kept(at)))
}

impl Sources {
    /// Becomes what was staged for it.
    pub(super) fn apply(&mut self, staged: Staged, metrics: &ControlMetrics, now: SystemTime) {
        let names = |sources: &[FilterSource]| -> Vec<String> {
            sources.iter().map(|filter| filter.name().to_owned()).collect()
        };
        let (old_filters, old_lists) = (names(&self.filters), list_names(&self.lists));
        metrics.remove_configured();
        for filter in &staged.filters {
            if let Part::New(filter) = filter {
                filter.announce(now);
            }
        }
        settle(&mut self.filters, staged.filters);
        settle(&mut self.lists, staged.lists);
        settle(&mut self.services, staged.services);
        self.exceptions = staged.exceptions;
        self.routes = staged.routes;
        let (filters, lists) = (names(&self.filters), list_names(&self.lists));
        let gone = |old: Vec<String>, new: Vec<String>| {
            old.into_iter().filter(move |it| !new.contains(it))
        };
        gone(old_filters, filters).for_each(|name| metrics.remove_filter(&name));
        gone(old_lists, lists).for_each(|name| metrics.remove_list(&name));
        self.exceptions.announce(metrics);
    }
}

fn list_names(lists: &[ListSource]) -> Vec<String> {
    lists.iter().map(|list| list.config().name.clone()).collect()
}

fn settle<S>(sources: &mut Vec<S>, parts: Vec<Part<S>>) {
    let mut known: Vec<Option<S>> = sources.drain(..).map(Some).collect();
    let settled = parts.into_iter().filter_map(|part| match part {
        Part::Kept(at) => known.get_mut(at).and_then(Option::take),
        Part::New(source) => Some(source),
    });
    sources.extend(settled);
}

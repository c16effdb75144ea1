//! From files to the next snapshot. Every file keeps its last good state: a bad filter does not
//! hold up a new CA, nor the other way round.

mod canary;
mod check;
mod configuration;
mod error;
mod exceptions;
mod file;
mod filter;
mod list;
mod mark;
mod material;
mod secret;
mod service;
mod sources;
mod trial;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

pub use self::configuration::{Commit, Prepare, Trigger};
use self::configuration::{ConfigChange, Configuration};
pub use self::error::LoadError;
use self::file::{FileState, read_bounded};
pub use self::filter::AcceptError;
use self::filter::FilterSource;
pub use self::list::ListFileError;
use self::list::ListSource;
use self::mark::RollbackState;
pub use self::secret::ExposedKeyFile;
pub use self::service::OwnKey;
use self::service::ServiceSource;
use self::sources::{ServiceIds, Sources};
use self::trial::DryRun;
use super::report::ReloadReport;
use super::{FilterRejection, Report, Routes, Service, Snapshot};
use crate::config::{Config, ServiceConfig};
use crate::guard::{CurrentGuard, FingerprintList, Guard, NamedFilter, Policy, RecentKeys};
use crate::metrics::{ControlMetrics, ReloadResult};
use crate::process::sandbox;
use crate::tls::{self, CertificateRole};
use crate::unix_time::seconds as unix_seconds;

/// A file that changed less than this ago is looked at again later: its writer may not be done.
pub(super) const SETTLE: Duration = Duration::from_millis(200);

/// Builds snapshots from the files that the configuration names.
#[derive(Debug)]
pub struct Loader {
    sources: Sources,
    numbers: ServiceIds,
    /// The configuration in use, and its file if it is to be followed.
    configuration: Configuration,
    metrics: ControlMetrics,
    /// What handshakes ask: a connection keeps this, and through it no old filter.
    guard: CurrentGuard,
    recent: RecentKeys,
    marks: RollbackState,
    generation: u64,
    /// Whether a source has changed since the last snapshot was built.
    unbuilt: bool,
}

/// What a look at all files came to.
pub struct Progress {
    /// The next snapshot, if anything changed for good.
    pub snapshot: Option<Snapshot>,
    /// Whether a file is being written to: look again soon.
    pub pending: bool,
    /// Whether an exception has ended: keys that it covered are to be judged again.
    pub exception_ended: bool,
    /// What another configuration needs besides, once the snapshot is in use.
    pub commit: Option<Commit>,
}

impl Loader {
    /// Loads everything for the first time. Updates are tried on the keys in `recent`.
    ///
    /// # Errors
    /// Any file that cannot be used: there is no good state to fall back to.
    pub fn start(
        config: &Config,
        metrics: ControlMetrics,
        recent: RecentKeys,
    ) -> Result<(Self, Snapshot), LoadError> {
        let now = SystemTime::now();
        let directory = config.state_dir.as_deref();
        let marks = RollbackState::read(directory).map_err(|source| LoadError::State {
            path: directory.map(mark::file_in).unwrap_or_default(),
            source,
        })?;
        let mut numbers = ServiceIds::default();
        let sources = Sources::load(config, &mut numbers, &metrics, &marks, now)?;
        let mut loader = Self {
            sources,
            numbers,
            configuration: Configuration::new(config.clone()),
            metrics,
            guard: CurrentGuard::from(Guard::default()),
            recent,
            marks,
            generation: 0,
            unbuilt: true,
        };
        loader.sources.exceptions.look(now);
        let snapshot = loader.build()?;
        loader.check_own_keys()?;
        Ok((loader, snapshot))
    }

    /// Looks at every file and builds the next snapshot if any changed for good. What cannot be
    /// used is logged, counted and left out; what was in use stays.
    pub fn refresh(&mut self, look: Trigger, prepare: &mut Prepare) -> Progress {
        let now = SystemTime::now();
        let (commit, is_config_pending) = self.look_at_config(look, prepare, now);
        let exception_ended = self.sources.exceptions.look(now);
        let trial = DryRun::of(self);
        let Sources { filters, lists, services, .. } = &mut self.sources;
        let filters = filters.iter_mut().enumerate().map(|(index, filter)| {
            filter.refresh(now, |update| trial.new_hits(&self.recent, index, update))
        });
        let lists = lists.iter_mut().map(|list| list.refresh(now));
        let services = services.iter_mut().map(|service| service.refresh(now));
        // Every source is looked at, whatever the ones before it came to.
        let changes: Vec<Change> = filters.chain(lists).chain(services).collect();
        let pending = is_config_pending || changes.contains(&Change::Pending);
        self.unbuilt |= changes.contains(&Change::Replaced);
        if !self.unbuilt {
            return Progress { snapshot: None, pending, exception_ended, commit };
        }
        let snapshot = self
            .build()
            .inspect_err(|error| tracing::error!(%error, "cannot build the snapshot, keeping the one in use"))
            .ok();
        if snapshot.is_some()
            && let Err(error) = self.check_own_keys()
        {
            tracing::error!(%error, "own key is compromised");
        }
        Progress { snapshot, pending, exception_ended, commit }
    }

    /// Follows the file that the configuration was read from.
    pub fn follow(&mut self, file: &Path) {
        self.configuration.follow(file);
    }

    /// Puts another configuration to use, if the file has one: all of it or nothing. Returns what is
    /// to be done once it is in use, and whether the file is being written to.
    fn look_at_config(
        &mut self,
        look: Trigger,
        prepare: &mut Prepare,
        now: SystemTime,
    ) -> (Option<Commit>, bool) {
        let config = match self.configuration.look(look, now) {
            ConfigChange::Changed(config) => *config,
            ConfigChange::Pending => return (None, true),
            ConfigChange::Refused(problem) => {
                self.refuse_config(problem, now);
                return (None, false);
            }
            ConfigChange::Same => return (None, false),
            ConfigChange::Unchanged => {
                self.config_reloaded(ReloadResult::Unchanged, now);
                return (None, false);
            }
        };
        let prepared = sandbox::check_config(&config).and_then(|()| {
            let staged =
                self.sources.stage(&config, &mut self.numbers, &self.metrics, &self.marks, now);
            let staged = staged.map_err(|error| error.to_string())?;
            Ok((staged, prepare(&config)?))
        });
        match prepared {
            Ok((staged, commit)) => {
                self.sources.apply(staged, &self.metrics, now);
                self.configuration.activate(config);
                self.config_reloaded(ReloadResult::Loaded, now);
                self.unbuilt = true;
                (Some(commit), false)
            }
            Err(problem) => {
                self.refuse_config(problem, now);
                (None, false)
            }
        }
    }

    fn config_reloaded(&mut self, result: ReloadResult, now: SystemTime) {
        self.metrics.record_config_reload(result);
        self.configuration.note(ReloadReport::done(result, unix_seconds(now)));
    }

    fn refuse_config(&mut self, problem: String, now: SystemTime) {
        self.metrics.record_config_reload(ReloadResult::Rejected);
        tracing::error!(%problem, "configuration rejected, keeping the one in use");
        self.configuration.note(ReloadReport::refused(None, problem, unix_seconds(now)));
    }

    /// How long it is until the next exception or revocation list ends.
    #[must_use]
    pub fn next_end(&self) -> Option<Duration> {
        let now = SystemTime::now();
        let crls = self.sources.services.iter().filter_map(|source| source.crl_end(now));
        crls.filter(|left| !left.is_zero()).chain(self.sources.exceptions.next_end(now)).min()
    }

    /// Lets the update of a filter through that waits for the operator, if it is the one with this
    /// SHA-256. [`Loader::refresh`] then puts it to use.
    ///
    /// # Errors
    /// There is no such filter, nothing waits, or another update does.
    pub fn accept(&mut self, filter: &str, sha256: &[u8; 32]) -> Result<(), AcceptError> {
        match self.sources.filters.iter_mut().find(|source| source.name() == filter) {
            Some(source) => source.accept(sha256),
            None => Err(AcceptError::Unknown { filter: filter.to_owned() }),
        }
    }

    /// Whether the update that was let through has been put to use since.
    ///
    /// # Errors
    /// Why not.
    pub fn has_accepted(&self, filter: &str, sha256: &[u8; 32]) -> Result<(), AcceptError> {
        match self.sources.filters.iter().find(|source| source.name() == filter) {
            Some(source) => source.has_accepted(sha256),
            None => Err(AcceptError::Unknown { filter: filter.to_owned() }),
        }
    }

    /// Writes down which filters are in use, if the configuration names a state directory: after a
    /// restart, older ones are refused.
    ///
    /// # Errors
    /// The state cannot be written.
    pub fn save(&mut self) -> Result<(), LoadError> {
        let marks =
            self.sources.filters.iter().map(|source| (source.name().to_owned(), source.mark()));
        let path = self.marks.file().map(Path::to_owned).unwrap_or_default();
        self.marks.keep(marks).map_err(|source| LoadError::State { path, source })
    }

    /// What is in use and what became of the last change of each file.
    #[must_use]
    pub fn report(&self) -> Report {
        Report {
            generation: self.generation,
            configuration: self.configuration.report(),
            filters: self.sources.filters.iter().map(FilterSource::report).collect(),
            lists: self.sources.lists.iter().map(ListSource::report).collect(),
            exceptions: self.sources.exceptions.report(),
            services: self.sources.services.iter().map(ServiceSource::report).collect(),
        }
    }

    /// Every file that is named by path.
    #[must_use]
    pub fn paths(&self) -> Vec<PathBuf> {
        let filters = self.sources.filters.iter().flat_map(FilterSource::paths);
        let lists = self.sources.lists.iter().flat_map(ListSource::paths);
        let services = self.sources.services.iter().flat_map(ServiceSource::paths);
        filters.chain(lists).chain(services).chain(self.configuration.path()).collect()
    }

    /// The keys of our own that are in a filter or on a list: who finds one can be taken for us, or
    /// issue certificates to anybody. Exceptions are for clients and do not cover them.
    #[must_use]
    pub fn compromised_own_keys(&self) -> Vec<OwnKey> {
        let guard = Guard::new(self.filters()).with_lists(self.lists());
        let now = SystemTime::now();
        self.sources
            .services
            .iter()
            .flat_map(|source| source.compromised_keys(&guard, now))
            .collect()
    }

    /// What is wrong with the modes of private key files: they serve all the same.
    #[must_use]
    pub fn exposed_key_files(&self) -> Vec<ExposedKeyFile> {
        self.sources.services.iter().flat_map(ServiceSource::exposed_key_files).cloned().collect()
    }

    /// Judges the keys of our own like those of clients.
    ///
    /// # Errors
    /// The first that is a hit, of a service that does not tolerate it.
    fn check_own_keys(&self) -> Result<(), LoadError> {
        let found = self.compromised_own_keys();
        let mut first = Ok(());
        for source in &self.sources.services {
            let found = || found.iter().filter(|key| key.service == source.name());
            for role in CertificateRole::ALL {
                let count = found().filter(|key| key.role == role).count();
                self.metrics.set_own_key_compromised(source.name(), role, count);
            }
            for key in found() {
                if source.tolerates_compromised_keys() {
                    tracing::warn!(problem = %key, "own key is compromised");
                } else if first.is_ok() {
                    first = Err(LoadError::OwnKey(Box::new(key.clone())));
                }
            }
        }
        first
    }

    fn filters(&self) -> Vec<Arc<NamedFilter>> {
        self.sources.filters.iter().map(|source| Arc::clone(source.named())).collect()
    }

    fn lists(&self) -> Vec<Arc<FingerprintList>> {
        self.sources.lists.iter().map(|source| Arc::clone(source.list())).collect()
    }

    fn build(&mut self) -> Result<Snapshot, LoadError> {
        let guard = Guard::new(self.filters()).with_lists(self.lists());
        let guard = Arc::new(guard.with_exceptions(self.sources.exceptions.all()));
        let services = self.sources.services.iter();
        let services: Vec<_> = services
            .map(|source| source.build(&self.guard).map(Arc::new))
            .collect::<Result<_, _>>()?;
        let places = services.iter().enumerate().map(|(place, it)| (it.index, place)).collect();
        // Before the snapshot itself: a handshake that is under way meets the newer filter.
        self.guard.replace(Arc::clone(&guard));
        self.unbuilt = false;
        self.generation += 1;
        self.metrics.snapshots.inc();
        for source in &self.sources.services {
            for (role, end) in source.certificate_ends() {
                self.metrics.set_certificate_not_after(source.name(), role, end as f64);
            }
            if let Some(next) = source.crl_next_update() {
                self.metrics.set_crl_next_update(source.name(), next as f64);
            }
        }
        Ok(Snapshot {
            generation: self.generation,
            guard,
            services,
            places,
            routes: Arc::clone(&self.sources.routes),
        })
    }
}

/// What a look at one source came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Change {
    /// It is being written to.
    Pending,
    /// A new state is in use.
    Replaced,
    /// The state in use is as it was.
    Same,
}

//! Builds snapshots from files. Every file keeps its own last good value, so that a broken filter
//! does not delay a new CA.

mod accept;
mod build;
mod own_key_check;
mod reporting;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use arc_swap::ArcSwapOption;
use keygate_core::guard::{CurrentGuard, Guard};
use rustls::ServerConfig;
use tracing::error;

use super::current::Snapshot;
use super::routes::Routes;
use crate::config::{Config, ReadersTls};
use crate::files;
use crate::metrics::ControlMetrics;
use crate::process::sandbox;
use crate::saved_state::{SavedState, StateError, StateLock};
use crate::sources::configuration::{Commit, ConfigChange, Configuration, Prepare, Trigger};
use crate::sources::context::LoadContext;
use crate::sources::credential_files::CredentialTable;
use crate::sources::credential_source::CredentialSource;
use crate::sources::guards::ConfigurationHits;
use crate::sources::last_good::{MaxWait, ValueChange};
use crate::sources::load_errors::{all, both};
use crate::sources::{
    JudgementContext, LoadError, LoadErrors, OwnKey, ReconfigureError, ServiceIds, Sources,
    StagedSources,
};

/// Builds snapshots from the files that the configuration names.
#[derive(Debug)]
pub struct Loader {
    configuration: Configuration,
    sources: Sources,
    service_ids: ServiceIds,
    routes: Arc<Routes>,
    metrics: ControlMetrics,
    /// The guard of the newest snapshot. Connections hold this and not a guard, so that they do not
    /// keep old filters in memory.
    guard: CurrentGuard,
    judgement: JudgementContext,
    /// TLS towards readers. Without its table no handshake succeeds: the address is bound until a
    /// restart.
    readers_tls: Arc<ArcSwapOption<ServerConfig>>,
    state: SavedState,
    /// Number of snapshots built.
    generation: u64,
    /// Whether a source has changed since the last snapshot was built.
    is_outdated: bool,
    /// The compromised own keys under the newest snapshot.
    own_keys: Vec<OwnKey>,
}

/// Result of [`Loader::refresh`].
pub struct RefreshedSnapshot {
    /// The next snapshot, if anything has changed.
    pub snapshot: Option<Snapshot>,
    /// Whether a file is being written; refresh again soon.
    pub pending: bool,
    /// Whether an exception has expired; open connections must be judged again.
    pub exception_expired: bool,
    /// Must be called once the snapshot is in use, if there is a new configuration.
    pub commit: Option<Commit>,
}

impl Loader {
    /// TLS towards readers, with the files that are in use. It is empty without such files.
    pub(crate) fn readers_tls(&self) -> Arc<ArcSwapOption<ServerConfig>> {
        Arc::clone(&self.readers_tls)
    }

    /// Loads everything for the first time. Every snapshot has this `judgement`. Errors name the
    /// configuration file, `file`.
    ///
    /// # Errors
    /// Returns the errors of all files that cannot be used, because they have no last good value
    /// yet.
    pub fn start(
        config: &Config,
        file: Option<&Path>,
        metrics: ControlMetrics,
        judgement: JudgementContext,
    ) -> Result<(Self, Snapshot), LoadErrors> {
        files::start_thread().map_err(LoadError::Thread)?;
        let state = SavedState::read(config.state.dir.as_deref());
        Self::start_with(state, config, file, metrics, judgement)
    }

    /// Loads everything as [`Loader::start`] does, for a process that saves its state. `file` is
    /// the configuration file. It is read again when it changes.
    ///
    /// # Errors
    /// Returns an error also if a process of another configuration file uses the state directory.
    pub fn start_locked(
        config: &Config,
        file: Option<&Path>,
        metrics: ControlMetrics,
        judgement: JudgementContext,
    ) -> Result<(Self, Snapshot), LoadErrors> {
        files::start_thread().map_err(LoadError::Thread)?;
        let state = SavedState::read_locked(config.state.dir.as_deref(), file);
        let (mut loader, snapshot) = Self::start_with(state, config, file, metrics, judgement)?;
        if let Some(file) = file {
            loader.configuration.watch(file);
        }
        Ok((loader, snapshot))
    }

    fn start_with(
        state: Result<SavedState, Vec<StateError>>,
        config: &Config,
        file: Option<&Path>,
        metrics: ControlMetrics,
        judgement: JudgementContext,
    ) -> Result<(Self, Snapshot), LoadErrors> {
        let now = SystemTime::now();
        // Without the state, the files are read for their errors only.
        let no_state = SavedState::default();
        let service_ids = ServiceIds::default();
        let mut sources = Sources::default();
        let dry_run = sources.dry_run(config, &service_ids, &judgement, now);
        let max_wait = MaxWait::default();
        let context = LoadContext {
            metrics: &metrics,
            ids: &service_ids,
            state: state.as_ref().unwrap_or(&no_state),
            configured: config,
            file,
            dry_run: &dry_run,
            max_wait: &max_wait,
            is_start: true,
            now,
        };
        let staged = sources.stage(config, context);
        let (state, staged) = both(state, staged)?;
        sources.apply(staged, &metrics, now);
        let mut loader = Self {
            configuration: Configuration::new(config.clone(), metrics.clone(), now),
            routes: routes_of(&sources),
            sources,
            service_ids,
            metrics,
            guard: CurrentGuard::from(Guard::default()),
            judgement,
            readers_tls: Arc::default(),
            state,
            generation: 0,
            is_outdated: true,
            own_keys: Vec::new(),
        };
        loader.sources.exceptions.log_expiry(now);
        let snapshot = loader.build();
        let (snapshot, ()) = both(snapshot, loader.check_own_keys())?;
        loader.record_file_check();
        Ok((loader, snapshot))
    }

    /// Reads files that have changed, and builds the next snapshot if any of them changed a source.
    ///
    /// A file that cannot be used is logged and counted, and its last good value stays in use.
    pub fn refresh(&mut self, trigger: Trigger, prepare: &mut Prepare) -> RefreshedSnapshot {
        let now = SystemTime::now();
        let (mut commit, mut pending) = (None, false);
        match self.configuration.refresh(trigger, now) {
            ConfigChange::Changed(config) => commit = self.reconfigure(*config, prepare, now),
            ConfigChange::Pending => pending = true,
            ConfigChange::Same => {}
        }
        let exception_expired = self.sources.exceptions.log_expiry(now);
        let config = self.configuration.in_use();
        let dry_run = self.sources.dry_run(config, &self.service_ids, &self.judgement, now);
        let changes = self.sources.refresh(now, &dry_run);
        pending |= changes.contains(&ValueChange::Pending);
        self.is_outdated |= changes.contains(&ValueChange::Replaced);
        let snapshot = if self.is_outdated { self.rebuild() } else { None };
        self.record_file_check();
        RefreshedSnapshot { snapshot, pending, exception_expired, commit }
    }

    /// Applies a new configuration as a whole, or rejects it.
    fn reconfigure(
        &mut self,
        config: Config,
        prepare: &mut Prepare,
        now: SystemTime,
    ) -> Option<Commit> {
        match self.stage(&config, prepare, now) {
            Ok((staged, commit)) => {
                self.sources.apply(staged, &self.metrics, now);
                self.routes = routes_of(&self.sources);
                self.configuration.activate(config, now);
                self.is_outdated = true;
                Some(commit)
            }
            Err(error) => {
                self.configuration.reject(&error, now);
                None
            }
        }
    }

    /// Loads what is new in `config` and prepares the rest of the process. Nothing changes yet.
    fn stage(
        &mut self,
        config: &Config,
        prepare: &mut Prepare,
        now: SystemTime,
    ) -> Result<(StagedSources, Commit), ReconfigureError> {
        sandbox::check_config(config)?;
        let dry_run = self.sources.dry_run(config, &self.service_ids, &self.judgement, now);
        let max_wait = MaxWait::default();
        let context = LoadContext {
            metrics: &self.metrics,
            ids: &self.service_ids,
            state: &self.state,
            configured: config,
            file: self.configuration.path(),
            dry_run: &dry_run,
            max_wait: &max_wait,
            is_start: false,
            now,
        };
        let staged = self.sources.stage(config, context)?;
        let hits = self.sources.dry_run_of(&staged, &self.judgement, &dry_run)?;
        let commit = prepare(config).map_err(ReconfigureError::Prepare)?;
        hits.iter().for_each(ConfigurationHits::log);
        Ok((staged, commit))
    }

    /// Saves the state of filters and CRLs, if the configuration names a state directory. After a
    /// restart, older filters and CRLs are rejected, waiting updates still wait, and the filters in
    /// use can replace a file that is rejected. Nothing is written while another process holds the
    /// lock on the directory. A failure is counted, and logged unless it is the same as the last
    /// one.
    ///
    /// # Errors
    /// Returns an error if the state file cannot be written. A copy that cannot be written is only
    /// logged, because the filter itself is in use.
    pub fn save(&mut self) -> Result<(), LoadError> {
        let saved = self.state.save(self.sources.state(), &self.metrics);
        for list in self.sources.lists.iter_mut() {
            list.forget_text_if(|id| self.state.rollback.is_kept(id));
        }
        saved.map_err(LoadError::from)
    }

    /// The lock on the state directory; `None` if this process does not save its state there.
    #[must_use]
    pub fn state_lock(&self) -> Option<StateLock> {
        self.state.lock.clone()
    }

    /// Paths of all files that are read again when they change.
    #[must_use]
    pub fn paths(&self) -> Vec<PathBuf> {
        let configuration = self.configuration.path().map(Path::to_owned);
        self.sources.paths().cloned().chain(configuration).collect()
    }

    /// Builds the next snapshot while the proxy runs; errors are logged.
    fn rebuild(&mut self) -> Option<Snapshot> {
        let snapshot = self
            .build()
            .inspect_err(
                |error| error!(%error, "cannot build the snapshot, keeping the one in use"),
            )
            .ok()?;
        if let Err(error) = self.check_own_keys() {
            error!(%error, "own key is compromised");
        }
        Some(snapshot)
    }

    fn build(&mut self) -> Result<Snapshot, LoadErrors> {
        let guard = Arc::new(self.sources.guard(&self.judgement));
        let deferral = self.judgement.deferral.as_ref();
        let (mut services, mut authorizers, mut readers) = (Vec::new(), Vec::new(), None);
        let judging = self.sources.judging_digest();
        let built = self.sources.credentials.iter().map(|source| match &source.config {
            CredentialTable::Authorizer(config) => source
                .build_authorizer(config, &self.guard)
                .map(|authorizer| authorizers.push(Arc::new(authorizer))),
            CredentialTable::Readers(_) => source
                .build_asker_tls(ReadersTls::SETTINGS, &self.guard)
                .map(|tls| readers = tls.filter(|it| it.verifier.is_some()).map(|it| it.config)),
            CredentialTable::Service(config) => source
                .build_service(config, (&self.guard, judging), deferral)
                .map(|service| services.push(Arc::new(service))),
        });
        all(built)?;
        // The guard is replaced before the snapshot is swapped in, so that handshakes in progress
        // are judged by the newer filters.
        self.guard.replace(Arc::clone(&guard));
        self.readers_tls.store(readers);
        self.is_outdated = false;
        self.generation += 1;
        self.metrics.snapshots.inc();
        self.sources.credentials.iter().for_each(CredentialSource::set_metrics);
        let routes = Arc::clone(&self.routes);
        Ok(Snapshot::new(self.generation, guard, services, routes, authorizers))
    }
}

fn routes_of(sources: &Sources) -> Arc<Routes> {
    let services = sources.credentials.iter().filter_map(|source| match &source.config {
        CredentialTable::Authorizer(_) | CredentialTable::Readers(_) => None,
        CredentialTable::Service(config) => Some((source.id, &**config)),
    });
    Arc::new(Routes::new(services))
}

#[cfg(test)]
mod tests;

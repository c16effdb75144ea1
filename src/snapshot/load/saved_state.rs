//! The state that outlives a restart, read from the state directory at the start and saved after
//! each change.

use std::path::Path;
use std::sync::Arc;

use tracing::error;

use super::crl_state::CrlState;
use super::error::LoadError;
use super::load_errors::{LoadErrors, both};
use super::rollback_state::{self, RollbackState};
use super::saved_credentials::SavedCredentials;
use super::saved_lists::SavedLists;
use super::source::Sources;
use super::state_directory;
use super::state_lock::StateLock;
use crate::metrics::ControlMetrics;

/// The state of filters and CRLs, and the directory that keeps it, if there is one.
#[derive(Debug, Default)]
pub(super) struct SavedState {
    pub(super) rollback: RollbackState,
    pub(super) crls: CrlState,
    pub(super) lists: SavedLists,
    pub(super) credentials: SavedCredentials,
    /// Nothing is saved until this lock is held. `None` if the process does not share the
    /// directory.
    lock: Option<StateLock>,
    /// Why the state could not be saved the last time.
    problems: Vec<String>,
}

impl SavedState {
    /// Reads the state in `directory`; without a directory, the state lasts as long as the process.
    ///
    /// # Errors
    /// Returns an error if the directory cannot be used, or if a file in it cannot be read.
    pub(super) fn read(directory: Option<&Path>) -> Result<Self, LoadErrors> {
        if let Some(directory) = directory {
            state_directory::check(directory).map_err(|source| LoadError::StateDirectory {
                path: directory.to_owned(),
                source,
            })?;
        }
        let rollback = RollbackState::read(directory).map_err(|source| {
            let path = directory.map(rollback_state::path_in).unwrap_or_default();
            LoadError::State { path, source }
        });
        let (rollback, crls) = both(rollback, CrlState::read(directory))?;
        let lists = SavedLists::new(directory);
        let credentials = SavedCredentials::new(directory);
        Ok(Self { rollback, crls, lists, credentials, lock: None, problems: Vec::new() })
    }

    /// Reads the state as [`SavedState::read`] does, for a process that saves it.
    ///
    /// # Errors
    /// Returns an error also if a process of another configuration file uses the directory. The
    /// state is then not read, because it is foreign.
    pub(super) fn read_locked(
        directory: Option<&Path>,
        configuration: Option<&Path>,
    ) -> Result<Self, LoadErrors> {
        let lock = directory.map(|directory| StateLock::acquire(directory, configuration));
        let lock = lock.transpose()?;
        Ok(Self { lock, ..Self::read(directory)? })
    }

    /// The lock on the directory; `None` if the process does not share the directory.
    pub(super) fn lock(&self) -> Option<&StateLock> {
        self.lock.as_ref()
    }

    /// Why the state could not be saved the last time.
    pub(super) fn problems(&self) -> &[String] {
        &self.problems
    }

    /// Saves the state of `sources`. Nothing is written while another process holds the lock. A
    /// failure is counted, and logged unless it is the same as the last one.
    ///
    /// # Errors
    /// Returns an error if a state file cannot be written. A copy that cannot be written is only
    /// logged, because the filter itself is in use.
    pub(super) fn save(
        &mut self,
        sources: &Sources,
        metrics: &ControlMetrics,
    ) -> Result<(), LoadError> {
        let filters = sources.filters.iter();
        let filters = filters.map(|source| (source.record(), Arc::clone(source.filter())));
        let lock = self.lock.as_ref().map_or(Ok(true), StateLock::try_hold);
        let may_write = matches!(lock, Ok(true));
        metrics.state_lock_waiting.set(matches!(lock, Ok(false)).into());
        let lists = sources.lists.iter();
        let lists = lists.map(|source| (source.config().name.clone(), source.record())).collect();
        let filters = self.rollback.save(filters, lists, sources.waiting_files(), may_write);
        let services = sources.services.iter();
        let services = services.map(|source| (source.name(), source.crl_marks()));
        let authorizers = sources.authorizers.iter();
        let authorizers = authorizers.map(|source| (source.name(), source.crl_marks()));
        let marks = services.chain(authorizers);
        let crls = self.crls.save(marks, may_write);
        let lists = self.lists.save(sources.loaded_lists(), may_write);
        let credentials = self.credentials.save(sources.saved_files(), may_write);
        let results = [lock.map(|_| ()), filters, lists, crls, credentials];
        let problems: Vec<LoadError> = results.into_iter().filter_map(Result::err).collect();
        let texts: Vec<String> = problems.iter().map(ToString::to_string).collect();
        for (error, text) in problems.iter().zip(&texts) {
            metrics.state_write_failures.inc();
            if !self.problems.contains(text) {
                error!(%error, "cannot save rollback state");
            }
        }
        self.problems = texts;
        let is_copy = |error: &LoadError| {
            matches!(
                error,
                LoadError::LastGood { .. }
                    | LoadError::LastGoodCredentials { .. }
                    | LoadError::LastGoodList { .. }
            )
        };
        problems.into_iter().find(|error| !is_copy(error)).map_or(Ok(()), Err)
    }
}

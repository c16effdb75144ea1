//! The state directory: what outlives a restart. It is read at the start and saved after each change.
//!
//! | file | content |
//! | --- | --- |
//! | `filters.json` | the record of each filter and list, and the updates that wait |
//! | `revocation-lists.json` | the newest CRLs of each service |
//! | `last-good-…` | a copy of each file in use: its bytes, and the files beside it |
//! | `state.lock` | the process that writes here |
//!
//! Nothing here decides whether a copy is used.

pub(crate) mod copies;
pub(crate) mod crl_state;
mod error;
pub(crate) mod file_record;
mod file_records;
mod guard_file;
pub(crate) mod rollback_state;
pub(crate) mod saved_credentials;
pub(crate) mod state_directory;
mod state_file;
pub(crate) mod state_lock;
mod waiting_report;

pub use self::error::StateError;
pub(crate) use self::file_record::Watermark;
pub use self::guard_file::GuardFile;
pub use self::state_directory::StateDirectoryError;
pub use self::state_lock::StateLock;
pub(crate) use self::waiting_report::MAX_NAMED;
pub use self::waiting_report::{AffectedClient, WaitingReport};

use std::collections::BTreeMap;
use std::path::Path;

use keygate_core::tls::CrlMarks;
use tracing::error;

use self::crl_state::CrlState;
use self::rollback_state::{FileInUse, RollbackState};
use self::saved_credentials::{SavedCredentials, SavedFile};
use crate::metrics::ControlMetrics;

/// The state of filters and CRLs, and the directory that keeps it, if there is one.
#[derive(Debug, Default)]
pub(crate) struct SavedState {
    pub(crate) rollback: RollbackState,
    pub(crate) crls: CrlState,
    pub(crate) credentials: SavedCredentials,
    /// Nothing is saved until this lock is held. `None` if the process does not share the
    /// directory.
    pub(crate) lock: Option<StateLock>,
    /// Why the state could not be saved the last time.
    pub(crate) problems: Vec<String>,
}

/// The state of the sources in use that is saved.
pub(crate) struct StateInUse {
    pub(crate) files: Vec<FileInUse>,
    /// The updates of CAs and CRLs that wait, by the name of each service.
    pub(crate) waiting: BTreeMap<String, Vec<WaitingReport>>,
    /// The newest CRLs of each service.
    pub(crate) marks: BTreeMap<String, CrlMarks>,
    pub(crate) credentials: Vec<SavedFile>,
}

impl SavedState {
    /// Reads the state in `directory`; without a directory, the state lasts as long as the process.
    ///
    /// # Errors
    /// Returns the errors if the directory cannot be used, or of each file in it that cannot be read.
    pub(crate) fn read(directory: Option<&Path>) -> Result<Self, Vec<StateError>> {
        if let Some(directory) = directory {
            let path = directory.to_owned();
            state_directory::check(directory)
                .map_err(|source| vec![StateError::Directory { path, source }])?;
        }
        let credentials = SavedCredentials::new(directory);
        match (RollbackState::read(directory), CrlState::read(directory)) {
            (Ok(rollback), Ok(crls)) => {
                Ok(Self { rollback, crls, credentials, lock: None, problems: Vec::new() })
            }
            (rollback, crls) => Err(rollback.err().into_iter().chain(crls.err()).collect()),
        }
    }

    /// Reads the state as [`SavedState::read`] does, for a process that saves it.
    ///
    /// # Errors
    /// Returns an error also if a process of another configuration file uses the directory. The
    /// state is then not read, because it is foreign.
    pub(crate) fn read_locked(
        directory: Option<&Path>,
        configuration: Option<&Path>,
    ) -> Result<Self, Vec<StateError>> {
        let lock = directory.map(|directory| StateLock::acquire(directory, configuration));
        let lock = lock.transpose().map_err(|error| vec![error])?;
        Ok(Self { lock, ..Self::read(directory)? })
    }

    /// Saves what is `in_use`. Nothing is written while another process holds the lock. A failure is
    /// counted, and logged unless it is the same as the last one.
    ///
    /// # Errors
    /// Returns an error if a state file cannot be written. A copy that cannot be written is only
    /// logged, because the file itself is in use.
    pub(crate) fn save(
        &mut self,
        in_use: StateInUse,
        metrics: &ControlMetrics,
    ) -> Result<(), StateError> {
        let StateInUse { files, waiting, marks, credentials } = in_use;
        let lock = self.lock.as_ref().map_or(Ok(true), StateLock::try_hold);
        let may_write = matches!(lock, Ok(true));
        metrics.state_lock_waiting.set(matches!(lock, Ok(false)).into());
        let results = [
            lock.map(|_| ()),
            self.rollback.save(files, waiting, may_write),
            self.crls.save(marks, may_write),
            self.credentials.save(credentials, may_write),
        ];
        let problems: Vec<StateError> = results.into_iter().filter_map(Result::err).collect();
        let texts: Vec<String> = problems.iter().map(ToString::to_string).collect();
        for (error, text) in problems.iter().zip(&texts) {
            metrics.state_write_failures.inc();
            if !self.problems.contains(text) {
                error!(%error, "cannot save rollback state");
            }
        }
        self.problems = texts;
        problems.into_iter().find(|error| !error.is_about_copy()).map_or(Ok(()), Err)
    }
}

//! The configuration in use, and the file that it is read from again.

use std::path::{Path, PathBuf};
use std::time::SystemTime;

use tracing::{info, warn};

use super::super::report::ReloadReport;
use super::FileState;
use crate::config::Config;
use crate::process::sandbox;

/// Whether the configuration is read although its file seems to be the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Trigger {
    /// It is: somebody asked for it.
    Requested,
    /// Only if the file has changed.
    Poll,
}

/// Gets ready for another configuration outside of the snapshot, such as by binding its addresses.
/// It returns what is to be done once the configuration is in use, or why it cannot be.
pub type Prepare = Box<dyn FnMut(&Config) -> Result<Commit, String> + Send>;

/// The second half of [`Prepare`].
pub type Commit = Box<dyn FnOnce() + Send>;

#[derive(Debug)]
pub(super) struct Configuration {
    in_use: Config,
    file: Option<(PathBuf, FileState)>,
    /// Somebody has asked for it, and it has not been read since.
    is_wanted: bool,
    /// The last look at it that came to anything.
    last_reload: Option<ReloadReport>,
}

/// What a look at the file came to.
pub(super) enum ConfigChange {
    Changed(Box<Config>),
    Pending,
    Refused(String),
    /// Nobody has touched it.
    Same,
    /// It says the same as before.
    Unchanged,
}

impl Configuration {
    pub(super) fn new(in_use: Config) -> Self {
        Self { in_use, file: None, is_wanted: false, last_reload: None }
    }

    pub(super) fn follow(&mut self, file: &Path) {
        self.file = Some((file.to_owned(), FileState::of(file)));
    }

    pub(super) fn note(&mut self, reload: ReloadReport) {
        self.last_reload = Some(reload);
    }

    pub(super) fn report(&self) -> Option<ReloadReport> {
        self.last_reload.clone()
    }

    pub(super) fn path(&self) -> Option<PathBuf> {
        self.file.as_ref().map(|(path, _)| path.clone())
    }

    pub(super) fn look(&mut self, look: Trigger, now: SystemTime) -> ConfigChange {
        let Some((path, seen)) = &mut self.file else { return ConfigChange::Same };
        let found = FileState::of(path);
        self.is_wanted |= look == Trigger::Requested;
        if found == *seen && !self.is_wanted {
            return ConfigChange::Same;
        }
        if !found.is_settled(now) {
            return ConfigChange::Pending;
        }
        let config = match sandbox::check(path) {
            Ok(()) => Config::read(path).map_err(|error| error.to_string()),
            Err(error) => Err(error.to_string()),
        };
        if FileState::of(path) != found {
            return ConfigChange::Pending; // changed while it was read: whatever was found, it is over
        }
        *seen = found;
        self.is_wanted = false;
        match config {
            Err(error) => ConfigChange::Refused(error),
            Ok(config) if config == self.in_use => ConfigChange::Unchanged,
            Ok(config) => ConfigChange::Changed(Box::new(config)),
        }
    }

    pub(super) fn activate(&mut self, config: Config) {
        let changed = config.needs_restart(&self.in_use);
        info!(services = config.services.len(), "configuration loaded");
        if !changed.is_empty() {
            let settings = changed.join(" ");
            warn!(settings, "these settings are read at the start only: restart to change them");
        }
        self.in_use = config;
    }
}

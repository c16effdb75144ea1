//! The configuration in use, and the file that it is read from again.

use std::io;
use std::path::Path;
use std::time::SystemTime;

use tracing::{error, info, warn};

use crate::config::{Config, ConfigError, KeyLines, PlacedProblem};
use crate::files::read_with;
use crate::metrics::{ControlMetrics, ReloadResult};
use crate::process::sandbox;
use crate::sources::failure::{Failure, ReadError};
use crate::sources::last_good::{LastGood, ReadIf, Reread};
use crate::sources::reconfigure_error::ReconfigureError;
use crate::sources::report::ReloadReport;

/// Why the files are refreshed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Trigger {
    /// A file event or the poll: the configuration is read only if its file has changed.
    Poll,
    /// A request of the operator: the configuration is read in any case.
    Requested,
}

/// Prepares the rest of the process for a new configuration, for example by binding its addresses.
///
/// Returns what must run once the configuration is in use.
pub type Prepare = Box<dyn FnMut(&Config) -> Result<Commit, PlacedProblem> + Send>;

/// The second half of [`Prepare`].
pub type Commit = Box<dyn FnOnce() + Send>;

/// The configuration in use.
#[derive(Debug)]
pub(crate) struct Configuration {
    config: LastGood<Config>,
    /// The configuration that the process was started with.
    first: Box<Config>,
    metrics: ControlMetrics,
    /// Whether the file must be read although it has not changed.
    is_requested: bool,
}

/// Result of [`Configuration::refresh`].
pub(crate) enum ConfigChange {
    /// The file holds another configuration, which is valid in itself.
    Changed(Box<Config>),
    /// The file is being written.
    Pending,
    /// The configuration in use stays.
    Same,
}

impl Configuration {
    /// The first configuration. [`Configuration::watch`] names its file.
    pub(crate) fn new(config: Config, metrics: ControlMetrics, now: SystemTime) -> Self {
        let first = Box::new(config.clone());
        Self { config: LastGood::new(config, now), first, metrics, is_requested: false }
    }

    /// Reads the configuration again when `file` changes.
    pub(crate) fn watch(&mut self, file: &Path) {
        self.config.watch(vec![file.to_owned()]);
    }

    /// The configuration in use.
    pub(crate) fn in_use(&self) -> &Config {
        self.config.get()
    }

    /// Path of the file, if there is one.
    pub(crate) fn path(&self) -> Option<&Path> {
        self.config.paths().first().map(AsRef::as_ref)
    }

    /// The result of the last attempt to read the file again; `None` before the first one.
    pub(crate) fn report(&self) -> Option<ReloadReport> {
        self.config.last_attempt().cloned()
    }

    /// The settings that differ from the start's and take effect only after a restart.
    pub(crate) fn restart_needed(&self) -> Vec<&'static str> {
        self.config.get().needs_restart(&self.first)
    }

    /// Reads the file again if it has changed or `trigger` requires it.
    ///
    /// The caller then calls [`Configuration::activate`] or [`Configuration::reject`] for a
    /// configuration that has changed.
    pub(crate) fn refresh(&mut self, trigger: Trigger, now: SystemTime) -> ConfigChange {
        let Some(file) = self.path().map(Path::to_owned) else { return ConfigChange::Same };
        self.is_requested |= trigger == Trigger::Requested;
        let read_if = if self.is_requested { ReadIf::Always } else { ReadIf::Changed };
        let config = match self.config.reread(read_if, now, |_| read(&file)) {
            Reread::Pending => return ConfigChange::Pending,
            Reread::Read(config) => config,
            Reread::Unchanged => return ConfigChange::Same,
        };
        self.is_requested = false;
        match config {
            Ok(config) if config != *self.config.get() => ConfigChange::Changed(Box::new(config)),
            Ok(_) => {
                self.config.record_unchanged(now);
                self.metrics.record_config_reload(ReloadResult::Unchanged);
                ConfigChange::Same
            }
            Err(error) => {
                self.reject(&error, now);
                ConfigChange::Same
            }
        }
    }

    /// Puts `config` in use.
    pub(crate) fn activate(&mut self, config: Config, now: SystemTime) {
        let (services, settings) = (config.services.len(), config.needs_restart(self.config.get()));
        self.config.replace(config, now);
        self.metrics.record_config_reload(ReloadResult::Loaded);
        info!(services, "configuration loaded");
        if !settings.is_empty() {
            let settings = settings.join(" ");
            warn!(settings, "these settings are read at the start only: restart to change them");
        }
    }

    /// Records and logs that a new configuration cannot be used. The one in use stays.
    pub(crate) fn reject(&mut self, cause: &ReconfigureError, now: SystemTime) {
        let problem = LocatedRejection { text: self.text_of(cause), failure: cause.failure() };
        if !self.config.record_rejection(None, &problem, now) {
            return;
        }
        self.metrics.record_config_reload(ReloadResult::Rejected);
        error!(%problem, "configuration rejected, keeping the one in use");
    }

    /// The errors with file and line.
    fn text_of(&self, cause: &ReconfigureError) -> String {
        let (Some(problems), Some(file)) = (cause.problems(), self.path()) else {
            return cause.to_string();
        };
        let lines = read_with(file, |file| Ok::<_, io::Error>(KeyLines::read(file)));
        let lines = lines.unwrap_or_else(|_| KeyLines::unknown(file));
        let located = lines.locate(problems).into_iter().map(|problem| problem.to_string());
        located.collect::<Vec<_>>().join("; ")
    }
}

/// Why a new configuration cannot be used, with the lines of the file.
#[derive(Debug, thiserror::Error)]
#[error("{text}")]
struct LocatedRejection {
    text: String,
    failure: Failure,
}

impl ReadError for LocatedRejection {
    fn failure(&self) -> Failure {
        self.failure
    }
}

fn read(file: &Path) -> Result<Config, ReconfigureError> {
    let read = read_with(file, |file| {
        sandbox::check(file)?;
        Ok::<_, io::Error>(Config::read(file))
    });
    let unreadable = |source| ConfigError::Read { file: file.to_owned(), source };
    Ok(read.map_err(unreadable)??)
}

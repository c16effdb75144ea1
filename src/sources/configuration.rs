//! The configuration in use, and the file that it is read from again.

use std::io;
use std::path::Path;
use std::time::SystemTime;

use tracing::{error, info, warn};

use crate::config::{Config, ConfigError, KeyLines, PlacedProblem};
use crate::files::read_with;
use crate::metrics::{ControlMetrics, ReloadResult};
use crate::process::sandbox::{self, OutsideSandbox};
use crate::sources::failure::{Failure, ReadError};
use crate::sources::last_good::{LastGood, ReadIf, Reread};
use crate::sources::load_errors::LoadErrors;
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
        let problem = cause.located(self.path());
        if !self.config.record_rejection(None, cause.failure(), &problem, now) {
            return;
        }
        self.metrics.record_config_reload(ReloadResult::Rejected);
        error!(problem, "configuration rejected, keeping the one in use");
    }
}

/// Why a new configuration is rejected while the proxy runs.
#[derive(Debug, thiserror::Error)]
pub enum ReconfigureError {
    /// The configuration file cannot be read or parsed, or a value cannot be used.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// Files that the configuration names cannot be used.
    #[error(transparent)]
    Load(#[from] LoadErrors),
    /// The rest of the process cannot follow the configuration, for example because an address
    /// cannot be bound.
    #[error("{}", .0.problem)]
    Prepare(PlacedProblem),
    /// The configuration needs more than the sandbox allows.
    #[error(transparent)]
    Sandbox(#[from] OutsideSandbox),
}

impl ReconfigureError {
    /// The errors with file and line. Errors of the file itself name both.
    fn located(&self, file: Option<&Path>) -> String {
        let problems = match self {
            Self::Config(_) => return self.to_string(),
            Self::Load(errors) => errors.problems(),
            Self::Prepare(problem) => vec![problem.clone()],
            Self::Sandbox(error) => vec![error.placed()],
        };
        let Some(file) = file else { return self.to_string() };
        let lines = read_with(file, |file| Ok::<_, io::Error>(KeyLines::read(file)));
        let lines = lines.unwrap_or_else(|_| KeyLines::unknown(file));
        let located = lines.locate(problems).into_iter().map(|problem| problem.to_string());
        located.collect::<Vec<_>>().join("; ")
    }
}

impl ReadError for ReconfigureError {
    fn failure(&self) -> Failure {
        match self {
            Self::Config(ConfigError::Read { source, .. }) => source.failure(),
            Self::Load(source) => source.failure(),
            Self::Config(ConfigError::Invalid { .. }) | Self::Prepare(_) | Self::Sandbox(_) => {
                Failure::Content
            }
        }
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

//! Why a new configuration is rejected while the proxy runs.

use super::load_errors::LoadErrors;
use crate::config::{ConfigError, PlacedProblem};
use crate::process::sandbox::OutsideSandbox;

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
    /// The errors, each with the key of the configuration that causes it. `None` if the errors
    /// name file and line themselves.
    pub(super) fn problems(&self) -> Option<Vec<PlacedProblem>> {
        match self {
            Self::Config(_) => None,
            Self::Load(errors) => Some(errors.problems()),
            Self::Prepare(problem) => Some(vec![problem.clone()]),
            Self::Sandbox(error) => Some(vec![error.placed()]),
        }
    }
}

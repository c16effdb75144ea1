//! Why a new configuration is rejected while the proxy runs.

use super::load_errors::LoadErrors;
use crate::config::ConfigError;
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
    #[error(transparent)]
    Prepare(#[from] PrepareError),
    /// The configuration needs more than the sandbox allows.
    #[error(transparent)]
    Sandbox(#[from] OutsideSandbox),
}

/// Why the rest of the process cannot follow a new configuration.
pub type PrepareError = Box<dyn std::error::Error + Send + Sync>;

//! The source by its configuration: its name, its directories, and whether its 404 counts.

use std::io;
use std::path::Path;

use super::lookup::ProofDirectories;
use super::source_files::ConfirmError;
use crate::config::{CanaryConfig, ConfirmConfig};
use crate::process::sandbox;

/// Name of the directory of kept proofs in the state directory.
pub(super) const KEPT_PROOFS: &str = "proofs";

/// The URL or the directory of the source, as logs and the status name it.
pub(super) fn source_of(config: &ConfirmConfig) -> String {
    match (&config.url, &config.proofs) {
        (Some(url), _) => url.to_string(),
        (None, Some(directory)) => directory.display().to_string(),
        (None, None) => String::new(),
    }
}

/// Whether a key that the source does not know can be cleared.
pub(super) fn clears(config: &ConfirmConfig) -> bool {
    let is_trusted = match &config.url {
        Some(url) => url.is_authenticated(),
        None => config.directory_is_complete,
    };
    is_trusted && config.canary != CanaryConfig::Off
}

/// Creates the directory for proofs in the state directory, because the sandbox allows no new
/// directories.
///
/// # Errors
/// Returns an error if the directory cannot be created.
pub fn create_directories(
    config: Option<&ConfirmConfig>,
    state_dir: Option<&Path>,
) -> Result<(), ConfirmError> {
    let (Some(_), Some(state_dir)) = (config, state_dir) else { return Ok(()) };
    let path = state_dir.join(KEPT_PROOFS);
    match std::fs::create_dir(&path) {
        Err(source) if source.kind() != io::ErrorKind::AlreadyExists => {
            // A missing state directory has an error of its own.
            if state_dir.exists() {
                Err(ConfirmError::Directory { key: "state.dir", path, source })
            } else {
                Ok(())
            }
        }
        Ok(()) | Err(_) => Ok(()),
    }
}

/// The directories with proofs, which can be read.
pub(super) fn open_directories(
    config: &ConfirmConfig,
    state_dir: Option<&Path>,
) -> Result<ProofDirectories, ConfirmError> {
    let kept = state_dir.map(|directory| directory.join(KEPT_PROOFS));
    let directories = ProofDirectories { kept, configured: config.proofs.clone() };
    let configured = directories.configured.iter().map(|it| ("confirm.proofs", it));
    let used = directories.kept.iter().map(|it| ("state.dir", it)).chain(configured);
    for (key, path) in used {
        let readable = sandbox::check(path).and_then(|()| std::fs::read_dir(path));
        let unusable = |source| ConfirmError::Directory { key, path: path.clone(), source };
        readable.map_err(unusable)?;
    }
    Ok(directories)
}

//! The source of proofs: its name, its files, directories and URL, and whether its 404 counts.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use super::client::SourceClient;
use super::lookup::ProofDirectories;
use super::source_files::{ConfirmError, SourceFiles};
use crate::config::{CanaryConfig, ConfirmConfig};
use crate::process::sandbox;
use crate::resolver::Resolver;

/// Name of the directory of saved proofs in the state directory.
const SAVED_PROOFS: &str = "proofs";

/// A source of proofs: directories, then a URL. Clones share the client.
#[derive(Debug, Clone)]
pub(super) struct Source {
    pub(super) config: ConfirmConfig,
    pub(super) files: SourceFiles,
    pub(super) directories: ProofDirectories,
    /// `None` without a URL.
    pub(super) client: Option<Arc<SourceClient>>,
}

impl Source {
    /// Reads the files of the source. Its directories are not opened. Blocks.
    pub(super) fn new(
        config: &ConfirmConfig,
        state_dir: Option<&Path>,
        resolver: Resolver,
    ) -> Result<Self, ConfirmError> {
        let saved = state_dir.map(|directory| directory.join(SAVED_PROOFS));
        let client = config.url.clone().map(|url| SourceClient::new(url, config.timeout, resolver));
        Ok(Self {
            config: config.clone(),
            files: SourceFiles::read(config)?,
            directories: ProofDirectories { saved, configured: config.proofs.clone() },
            client: client.map(Arc::new),
        })
    }

    /// The URL, or the directory if there is no URL, as logs and the status name it.
    pub(super) fn name(&self) -> String {
        match (&self.config.url, &self.config.proofs) {
            (Some(url), _) => url.to_string(),
            (None, Some(directory)) => directory.display().to_string(),
            (None, None) => String::new(),
        }
    }

    /// Whether a key that the source does not know can be cleared.
    pub(super) fn clears(&self) -> bool {
        let is_trusted = match &self.config.url {
            Some(url) => url.is_authenticated(),
            None => self.config.directory_is_complete,
        };
        is_trusted && self.config.canary != CanaryConfig::Off
    }

    /// The end of the pause that a 429 has requested; `None` if requests may be sent.
    pub(super) fn paused_until(&self, now: Instant) -> Option<Instant> {
        self.client.as_ref()?.paused_until(now)
    }

    /// Checks that the directories can be read. Blocks.
    pub(super) fn check_directories(&self) -> Result<(), ConfirmError> {
        let configured = self.directories.configured.iter().map(|it| ("confirm.proofs", it));
        let saved = self.directories.saved.iter().map(|it| ("state.dir", it));
        for (key, path) in saved.chain(configured) {
            let readable = sandbox::check(path).and_then(|()| std::fs::read_dir(path));
            readable.map_err(|error| ConfirmError::directory(key, path, &error))?;
        }
        Ok(())
    }
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
    let path = state_dir.join(SAVED_PROOFS);
    match std::fs::create_dir(&path) {
        // A missing state directory has an error of its own.
        Err(source) if source.kind() != io::ErrorKind::AlreadyExists && state_dir.exists() => {
            Err(ConfirmError::directory("state.dir", &path, &source))
        }
        Ok(()) | Err(_) => Ok(()),
    }
}

#[cfg(test)]
impl Source {
    /// A source with this URL and canary, without files and directories.
    pub(super) fn fixture(url: Option<crate::config::SourceUrl>, canary: CanaryConfig) -> Self {
        let config = ConfirmConfig {
            filters: vec!["lost".to_owned()],
            url,
            trust_anchors: None,
            api_key: None,
            proofs: None,
            directory_is_complete: false,
            canary,
            wait: std::time::Duration::from_secs(2),
            timeout: std::time::Duration::from_secs(5),
            cleared_ttl: std::time::Duration::from_secs(86_400),
            stale_for: std::time::Duration::from_secs(7 * 86_400),
            rate: 1,
        };
        Self::new(&config, None, Resolver::start().unwrap()).unwrap()
    }
}

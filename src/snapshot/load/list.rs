//! One list of fingerprints and the last good state of its file.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use aws_lc_rs::digest::{SHA256, digest};
use tracing::{info, warn};

use super::super::report::{ListReport, ReloadReport};
use super::{Change, FileState, LoadError, read_bounded, unix_seconds};
use crate::config::ListConfig;
use crate::guard::{FingerprintList, ListError};
use crate::metrics::{ListMetrics, ReloadResult};
use crate::pkbf::{FilterError, check_sidecar, sidecar_of};

/// The largest list that is read, in bytes: more than two hundred thousand keys.
const MAX_SIZE: u64 = 16 << 20;

#[derive(Debug)]
pub(super) struct ListSource {
    config: ListConfig,
    metrics: ListMetrics,
    list: Arc<FingerprintList>,
    /// The list and its checksum.
    seen: [FileState; 2],
    last_reload: ReloadReport,
}

/// Why a list is not put to use.
#[derive(Debug, thiserror::Error)]
pub enum ListFileError {
    /// It is not what the checksum beside it speaks of, or that cannot be read.
    #[error(transparent)]
    Checksum(#[from] FilterError),
    /// A line is no fingerprint.
    #[error(transparent)]
    Content(#[from] ListError),
    /// There is nothing in it, where there were keys before.
    #[error(
        "empty, and {entries} keys are in use: a list that is to have none says so in a comment"
    )]
    Emptied {
        /// How many keys are in use.
        entries: usize,
    },
    /// It cannot be read.
    #[error(transparent)]
    Read(#[from] std::io::Error),
    /// It is not text.
    #[error("not UTF-8 text")]
    Text,
}

impl ListSource {
    pub(super) fn load(
        config: ListConfig,
        metrics: ListMetrics,
        now: SystemTime,
    ) -> Result<Self, LoadError> {
        let seen = see(&config);
        let list = read(&config, 0).map_err(|source| LoadError::List {
            name: config.name.clone(),
            path: config.path.clone(),
            source,
        })?;
        metrics.record_loaded(list.len());
        let last_reload = ReloadReport::done(ReloadResult::Loaded, unix_seconds(now));
        Ok(Self { config, metrics, list: Arc::new(list), seen, last_reload })
    }

    pub(super) fn refresh(&mut self, now: SystemTime) -> Change {
        let seen = see(&self.config);
        if seen == self.seen {
            return Change::Same;
        }
        if !seen.iter().all(|seen| seen.is_settled(now)) {
            return Change::Pending;
        }
        let list = read(&self.config, self.list.len());
        if see(&self.config) != seen {
            return Change::Pending; // changed while it was read: whatever was found, it is over
        }
        self.seen = seen;
        match list {
            Ok(list) => {
                self.metrics.record_loaded(list.len());
                let before = self.list.len();
                info!(list = %self.config.name, entries = list.len(), before, "list loaded");
                self.list = Arc::new(list);
                self.last_reload = ReloadReport::done(ReloadResult::Loaded, unix_seconds(now));
                Change::Replaced
            }
            Err(error) => {
                self.metrics.record_rejected();
                let path = self.config.path.display();
                warn!(list = %self.config.name, %path, %error, "list update rejected, keeping the one in use");
                self.last_reload =
                    ReloadReport::refused(None, error.to_string(), unix_seconds(now));
                Change::Same
            }
        }
    }

    pub(super) fn config(&self) -> &ListConfig {
        &self.config
    }

    pub(super) fn list(&self) -> &Arc<FingerprintList> {
        &self.list
    }

    pub(super) fn paths(&self) -> [PathBuf; 2] {
        [self.config.path.clone(), sidecar_of(&self.config.path)]
    }

    pub(super) fn report(&self) -> ListReport {
        let path: &Path = &self.config.path;
        ListReport::of(&self.list, path, self.last_reload.clone())
    }
}

fn see(config: &ListConfig) -> [FileState; 2] {
    [FileState::of(&config.path), FileState::of(&sidecar_of(&config.path))]
}

/// The list, where one with so many keys is in use.
fn read(config: &ListConfig, entries: usize) -> Result<FingerprintList, ListFileError> {
    let content = read_bounded(&config.path, MAX_SIZE)?;
    let sha256 = || digest(&SHA256, &content).as_ref().try_into().unwrap_or_default();
    check_sidecar(&config.path, sha256)?;
    // Somebody has opened it to write, and has not written: for a moment, or for good.
    if content.is_empty() && entries > 0 {
        return Err(ListFileError::Emptied { entries });
    }
    let text = String::from_utf8(content).map_err(|_| ListFileError::Text)?;
    Ok(FingerprintList::parse(&config.name, &text)?)
}

//! One list of fingerprints and the last good state of its file.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use tracing::{info, warn};

use super::super::report::{ListReport, ReloadReport};
use super::{Change, LoadError, Seen, read_bounded, unix_seconds};
use crate::config::ListConfig;
use crate::guard::{FingerprintList, ListError};
use crate::metrics::{ListMetrics, ReloadResult};

/// The largest list that is read, in bytes: more than two hundred thousand keys.
const MAX_SIZE: u64 = 16 << 20;

#[derive(Debug)]
pub(super) struct ListSource {
    config: ListConfig,
    metrics: ListMetrics,
    list: Arc<FingerprintList>,
    seen: Seen,
    last_reload: ReloadReport,
}

/// Why a list is not put to use.
#[derive(Debug, thiserror::Error)]
pub enum ListFileError {
    /// A line is no fingerprint.
    #[error(transparent)]
    Content(#[from] ListError),
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
        let seen = Seen::of(&config.path);
        let list = read(&config).map_err(|source| LoadError::List {
            name: config.name.clone(),
            path: config.path.clone(),
            source,
        })?;
        metrics.loaded(list.len());
        let last_reload = ReloadReport::done(ReloadResult::Loaded, unix_seconds(now));
        Ok(Self { config, metrics, list: Arc::new(list), seen, last_reload })
    }

    pub(super) fn refresh(&mut self, now: SystemTime) -> Change {
        let seen = Seen::of(&self.config.path);
        if seen == self.seen {
            return Change::Same;
        }
        if !seen.is_settled(now) {
            return Change::Pending;
        }
        let list = read(&self.config);
        if Seen::of(&self.config.path) != seen {
            return Change::Pending; // changed while it was read: whatever was found, it is over
        }
        self.seen = seen;
        match list {
            Ok(list) => {
                self.metrics.loaded(list.len());
                info!(list = %self.config.name, entries = list.len(), "list loaded");
                self.list = Arc::new(list);
                self.last_reload = ReloadReport::done(ReloadResult::Loaded, unix_seconds(now));
                Change::Replaced
            }
            Err(error) => {
                self.metrics.refused();
                let path = self.config.path.display();
                warn!(list = %self.config.name, %path, %error, "list update refused, the one in use stays");
                self.last_reload =
                    ReloadReport::refused(None, error.to_string(), unix_seconds(now));
                Change::Same
            }
        }
    }

    pub(super) fn list(&self) -> &Arc<FingerprintList> {
        &self.list
    }

    pub(super) fn path(&self) -> PathBuf {
        self.config.path.clone()
    }

    pub(super) fn report(&self) -> ListReport {
        let path: &Path = &self.config.path;
        ListReport::of(&self.list, path, self.last_reload.clone())
    }
}

fn read(config: &ListConfig) -> Result<FingerprintList, ListFileError> {
    let content = read_bounded(&config.path, MAX_SIZE)?;
    let text = String::from_utf8(content).map_err(|_| ListFileError::Text)?;
    Ok(FingerprintList::parse(&config.name, &text)?)
}

//! The files and the directory of the source: watched, and read again when they change.

use std::path::PathBuf;
use std::time::Instant;

use tracing::warn;

use super::super::TARGET;
use super::super::source_files::SourceFiles;
use super::FILE_TIMEOUT;
use crate::blocking::BlockingPool;
use crate::config::{CanaryConfig, ConfirmConfig};
use crate::files::{FileState, SETTLE};
use crate::snapshot::watch::{Directories, POLL_INTERVAL};

/// The watch on the files of the source and on the directory of proofs.
pub(super) struct SourceWatch {
    paths: WatchedPaths,
    /// `None` while a look is in progress.
    directories: Option<Directories>,
    /// The states of the files, then the state of the directory, at the last look.
    seen: Vec<FileState>,
    looked_at: Instant,
    /// The end of the time in which changes of a directory settle.
    settles_at: Option<Instant>,
}

/// The findings of a look.
pub(super) struct Look {
    directories: Directories,
    states: Vec<FileState>,
    /// The content of the files, if they have changed and can be used.
    files: Option<SourceFiles>,
    pub(super) is_directory_changed: bool,
}

impl SourceWatch {
    pub(super) fn new(config: &ConfirmConfig, thread: BlockingPool) -> Self {
        Self {
            paths: WatchedPaths { config: config.clone(), thread },
            directories: None,
            seen: Vec::new(),
            looked_at: Instant::now(),
            settles_at: None,
        }
    }

    /// Watches the directories, and looks at the files for the first time.
    pub(super) async fn start(&mut self) {
        self.directories = Some(self.paths.watch(Directories::new()).await);
        self.seen = self.paths.states(Vec::new()).await;
    }

    /// Waits for a change in a directory. Cancel-safe.
    pub(super) async fn changed(&mut self) {
        match &mut self.directories {
            Some(directories) if self.settles_at.is_none() => directories.changed().await,
            Some(_) | None => std::future::pending().await,
        }
        self.settles_at = Some(Instant::now() + SETTLE);
    }

    /// When the files are looked at next.
    pub(super) fn next_look(&self) -> Instant {
        let poll = self.looked_at + POLL_INTERVAL;
        self.settles_at.map_or(poll, |at| at.min(poll))
    }

    /// Begins a look, if it is due and none is in progress. Queries go on during a look.
    pub(super) fn look(&mut self, now: Instant) -> Option<impl Future<Output = Look> + 'static> {
        if self.next_look() > now {
            return None;
        }
        (self.looked_at, self.settles_at) = (now, None);
        let (paths, before) = (self.paths.clone(), self.seen.clone());
        self.directories.take().map(|directories| async move {
            let directories = paths.watch(directories).await;
            let states = paths.states(before.clone()).await;
            let files = paths.files().len();
            let is_directory_changed = before.get(files..) != states.get(files..);
            let is_unchanged = before.get(..files) == states.get(..files);
            let files = if is_unchanged { None } else { paths.read().await };
            Look { directories, states, files, is_directory_changed }
        })
    }

    /// Ends a look. Its states are the last ones.
    pub(super) fn end(&mut self, look: Look) -> Option<SourceFiles> {
        self.directories = Some(look.directories);
        self.seen = look.states;
        look.files
    }
}

/// The files that `[confirm]` names, the directory of proofs, and the thread for them.
#[derive(Debug, Clone)]
struct WatchedPaths {
    config: ConfirmConfig,
    thread: BlockingPool,
}

impl WatchedPaths {
    fn files(&self) -> Vec<PathBuf> {
        let ConfirmConfig { trust_anchors, api_key, canary, .. } = &self.config;
        let canary = match canary {
            CanaryConfig::File(path) => Some(path),
            CanaryConfig::Off | CanaryConfig::Published => None,
        };
        let files = [trust_anchors.as_ref(), api_key.as_ref(), canary];
        files.into_iter().flatten().cloned().collect()
    }

    /// Watches the directories of the files, and the directory of proofs.
    async fn watch(&self, mut directories: Directories) -> Directories {
        let mut paths = self.files();
        // The directory of a file is watched, so this name stands for all proofs.
        paths.extend(self.config.proofs.iter().map(|it| it.join("any")));
        let watch = move || {
            directories.watch(&paths);
            directories
        };
        match self.thread.run_within(FILE_TIMEOUT, watch).await {
            Ok(directories) => directories,
            Err(error) => {
                warn!(target: TARGET, %error, "the files of [confirm] cannot be watched, they are polled only");
                Directories::new()
            }
        }
    }

    /// The states of the files, then of the directory of proofs; `before` if they cannot be read.
    async fn states(&self, before: Vec<FileState>) -> Vec<FileState> {
        let mut paths = self.files();
        paths.extend(self.config.proofs.clone());
        let states = move || paths.iter().map(|path| FileState::read(path)).collect();
        self.thread.run_within(FILE_TIMEOUT, states).await.unwrap_or(before)
    }

    /// The content of the files; `None` if they cannot be used.
    async fn read(&self) -> Option<SourceFiles> {
        let config = self.config.clone();
        match self.thread.run_within(FILE_TIMEOUT, move || SourceFiles::read(&config)).await {
            Ok(Ok(files)) => return Some(files),
            Ok(Err(error)) => {
                warn!(target: TARGET, %error, "files of the source of proofs rejected, keeping those in use");
            }
            Err(error) => {
                warn!(target: TARGET, %error, "files of the source of proofs cannot be read");
            }
        }
        None
    }
}

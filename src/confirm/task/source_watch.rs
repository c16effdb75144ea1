//! The files and the directory of the source: watched, and read again when they change.

use std::path::PathBuf;

use tokio::sync::mpsc;
use tokio::time::{sleep, timeout};
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
    directories: Directories,
    /// The states of the files, then the state of the directory, at the last look.
    seen: Vec<FileState>,
}

/// A change of the files or of the directory.
pub(super) struct SourceChange {
    /// The content of the files, if they have changed and can be used.
    pub(super) files: Option<SourceFiles>,
    pub(super) is_directory_changed: bool,
}

impl SourceWatch {
    /// Watches the directories, and looks at the files for the first time.
    pub(super) async fn start(config: &ConfirmConfig, thread: BlockingPool) -> Self {
        let paths = WatchedPaths { config: config.clone(), thread };
        let directories = paths.watch(Directories::new()).await;
        let seen = paths.states(Vec::new()).await;
        Self { paths, directories, seen }
    }

    /// Looks at the files after a change in a directory, and every [`POLL_INTERVAL`]. Sends each
    /// change, until the receiver is dropped.
    pub(super) async fn run(self, changes: mpsc::Sender<SourceChange>) {
        let Self { paths, mut directories, mut seen } = self;
        let count = paths.files().len();
        loop {
            if timeout(POLL_INTERVAL, directories.changed()).await.is_ok() {
                sleep(SETTLE).await;
            }
            directories = paths.watch(directories).await;
            let states = paths.states(seen.clone()).await;
            let is_directory_changed = seen.get(count..) != states.get(count..);
            let is_unchanged = seen.get(..count) == states.get(..count);
            seen = states;
            let files = if is_unchanged { None } else { paths.read().await };
            let has_change = files.is_some() || is_directory_changed;
            let change = SourceChange { files, is_directory_changed };
            if has_change && changes.send(change).await.is_err() {
                return;
            }
        }
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::confirm::source::Source;

    /// A change in one place is no change in the other.
    #[tokio::test]
    async fn changes_of_the_files_and_of_the_directory_are_told_apart() {
        let directory = tempfile::tempdir().unwrap();
        let [key, proofs] = ["key", "proofs"].map(|name| directory.path().join(name));
        std::fs::write(&key, "first").unwrap();
        std::fs::create_dir(&proofs).unwrap();
        let mut config = Source::fixture(None, CanaryConfig::Off).config;
        (config.api_key, config.proofs) = (Some(key.clone()), Some(proofs.clone()));
        let thread = BlockingPool::new("test-watch", 1).unwrap();
        let watch = SourceWatch::start(&config, thread).await;
        let (sender, mut changes) = mpsc::channel::<SourceChange>(1);
        let seen = async {
            std::fs::write(proofs.join("proof"), "proof").unwrap();
            let change = changes.recv().await.unwrap();
            assert!(change.is_directory_changed && change.files.is_none());
            std::fs::write(&key, "second").unwrap();
            let change = changes.recv().await.unwrap();
            assert!(!change.is_directory_changed);
            assert_eq!(change.files.unwrap().authorization.unwrap(), "Bearer second");
            drop(changes);
            std::fs::write(proofs.join("another"), "proof").unwrap();
            std::future::pending::<()>().await;
        };
        tokio::select! {
            () = watch.run(sender) => {}
            () = seen => {}
        }
    }
}

//! The files and the directory of proofs: watched, and read again when they change.

use std::path::PathBuf;

use keygate_core::spki::Fingerprint;
use tokio::task::JoinSet;
use tracing::{info, warn};

use super::super::TARGET;
use super::super::source_files::{ConfirmError, SourceFiles};
use super::{AskingTask, FILE_TIMEOUT, TaskEnd};
use crate::blocking::{BlockingError, BlockingPool};
use crate::config::CanaryConfig;
use crate::snapshot::watch::Directories;
use crate::snapshot::{FileState, Warning};

/// The result of a look at the files.
pub(super) struct RefreshedFiles {
    directories: Directories,
    /// The states of the files, then that of the directory of proofs.
    states: Vec<FileState>,
    /// The content of the files, if one has changed.
    files: Option<Result<Result<SourceFiles, ConfirmError>, BlockingError>>,
}

/// Waits for a change in a directory. Cancel-safe.
pub(super) async fn changed(directories: &mut Option<Directories>) {
    match directories {
        Some(directories) => directories.changed().await,
        None => std::future::pending().await,
    }
}

/// Watches the directories of `paths`.
async fn watch(
    thread: &BlockingPool,
    mut directories: Directories,
    paths: Vec<PathBuf>,
) -> Directories {
    let watch = move || {
        directories.watch(&paths);
        directories
    };
    match thread.run_within(FILE_TIMEOUT, watch).await {
        Ok(directories) => directories,
        Err(error) => {
            warn!(target: TARGET, %error, "the files of [confirm] cannot be watched, they are polled only");
            Directories::new()
        }
    }
}

/// The states of `paths`; `before` if they cannot be read.
async fn states(
    thread: &BlockingPool,
    paths: Vec<PathBuf>,
    before: Vec<FileState>,
) -> Vec<FileState> {
    let states = move || paths.iter().map(|path| FileState::of(path)).collect();
    thread.run_within(FILE_TIMEOUT, states).await.unwrap_or(before)
}

impl AskingTask {
    /// Watches the directories of the files, and looks at the files.
    pub(super) async fn watch_first(&mut self) -> Directories {
        let directories = watch(&self.thread, Directories::new(), self.watched()).await;
        self.seen = states(&self.thread, self.seen_paths(), Vec::new()).await;
        directories
    }

    /// The paths whose directories are watched.
    fn watched(&self) -> Vec<PathBuf> {
        let mut paths: Vec<PathBuf> = self.files_to_watch();
        // The directory of a file is watched, so that this name stands for all of them.
        paths.extend(self.directories.configured.iter().map(|it| it.join("any")));
        paths
    }

    fn files_to_watch(&self) -> Vec<PathBuf> {
        let canary = match &self.config.canary {
            CanaryConfig::File(path) => Some(path),
            CanaryConfig::Off | CanaryConfig::Published => None,
        };
        let files = [self.config.trust_anchors.as_ref(), self.config.api_key.as_ref(), canary];
        files.into_iter().flatten().cloned().collect()
    }

    /// The files, then the directory of proofs.
    fn seen_paths(&self) -> Vec<PathBuf> {
        let mut paths = self.files_to_watch();
        paths.extend(self.directories.configured.clone());
        paths
    }

    /// Watches the directories again and looks at the files, without a pause of the questions.
    pub(super) fn start_refresh(&self, directories: Directories, tasks: &mut JoinSet<TaskEnd>) {
        let (thread, config) = (self.thread.clone(), self.config.clone());
        let (watched, paths, before) = (self.watched(), self.seen_paths(), self.seen.clone());
        let files = self.files_to_watch().len();
        tasks.spawn_local(async move {
            let directories = watch(&thread, directories, watched).await;
            let states = states(&thread, paths, before.clone()).await;
            let read = move || SourceFiles::read(&config);
            let files = match before.get(..files) == states.get(..files) {
                true => None,
                false => Some(thread.run_within(FILE_TIMEOUT, read).await),
            };
            TaskEnd::Refreshed(RefreshedFiles { directories, states, files })
        });
    }

    /// Uses files that have changed, and asks again what a new proof may answer.
    pub(super) fn end_refresh(
        &mut self,
        refreshed: RefreshedFiles,
        tasks: &mut JoinSet<TaskEnd>,
    ) -> Directories {
        let RefreshedFiles { directories, states, files } = refreshed;
        let before = std::mem::replace(&mut self.seen, states);
        match files {
            None => {}
            Some(Ok(Ok(read))) => {
                if let Some(exposed) = &read.exposed {
                    Warning::unsafe_permissions(exposed).log();
                }
                self.files = read;
                info!(target: TARGET, "files of the source of proofs loaded");
                self.check_canary_anew(tasks);
            }
            Some(Ok(Err(error))) => {
                warn!(target: TARGET, %error, "files of the source of proofs rejected, keeping those in use");
            }
            Some(Err(error)) => {
                warn!(target: TARGET, %error, "files of the source of proofs cannot be read");
            }
        }
        let files = self.files_to_watch().len();
        if before.get(files..) != self.seen.get(files..) {
            self.consult_directory(tasks);
        }
        directories
    }

    /// Looks for new proofs: of keys that wait for an answer, of cleared keys, and of probable keys
    /// whose clients are connected.
    fn consult_directory(&mut self, tasks: &mut JoinSet<TaskEnd>) {
        if let Some(mut schedule) = self.questions.schedule() {
            schedule.retry_directory();
        }
        let cleared: Vec<Fingerprint> = self.book.cleared().map(|(it, _)| *it).collect();
        let (directories, thread) = (self.directories.clone(), self.thread.clone());
        tasks.spawn_local(async move {
            let named = move || directories.named(&cleared);
            let named = thread.run_within(FILE_TIMEOUT, named).await;
            TaskEnd::Named(named.unwrap_or_default())
        });
        self.news.judge_again = true;
        self.canary.forget();
        if self.config.directory_is_complete {
            self.check_canary_anew(tasks);
        }
    }
}

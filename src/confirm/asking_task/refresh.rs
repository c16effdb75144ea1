//! The files and the directory of proofs: watched, and read again when they change.

use std::path::PathBuf;
use std::time::Instant;

use tokio::task::JoinSet;
use tracing::{info, warn};

use super::super::TARGET;
use super::super::source_files::SourceFiles;
use super::{AskingTask, FILE_TIMEOUT, TaskEnd};
use crate::config::CanaryConfig;
use crate::snapshot::watch::Directories;
use crate::snapshot::{FileState, Warning};
use crate::spki::Fingerprint;

impl AskingTask {
    /// Watches the directories of the files. The calls run on the thread for files.
    pub(super) async fn watched(&self, mut directories: Directories) -> Directories {
        let mut paths: Vec<PathBuf> = self.files_to_watch();
        // The directory of a file is watched, so that this name stands for all of them.
        paths.extend(self.directories.configured.iter().map(|it| it.join("any")));
        let watch = move || {
            directories.watch(&paths);
            directories
        };
        match self.thread.run(watch).await {
            Ok(directories) => directories,
            Err(error) => {
                warn!(target: TARGET, %error, "the files of [confirm] cannot be watched, they are polled only");
                Directories::new()
            }
        }
    }

    pub(super) fn files_to_watch(&self) -> Vec<PathBuf> {
        let canary = match &self.config.canary {
            CanaryConfig::File(path) => Some(path),
            CanaryConfig::Off | CanaryConfig::Published => None,
        };
        let files = [self.config.trust_anchors.as_ref(), self.config.api_key.as_ref(), canary];
        files.into_iter().flatten().cloned().collect()
    }

    /// The states of the files, then that of the directory of proofs.
    pub(super) async fn look_at_files(&self) -> Vec<FileState> {
        let mut paths = self.files_to_watch();
        paths.extend(self.directories.configured.clone());
        let states = move || paths.iter().map(|path| FileState::of(path)).collect();
        self.thread.run(states).await.unwrap_or_else(|_| self.seen.clone())
    }

    /// Reads the files again if one has changed, and asks again what a new proof may answer.
    pub(super) async fn refresh_files(&mut self, tasks: &mut JoinSet<TaskEnd>) {
        self.looked_at = Instant::now();
        let states = self.look_at_files().await;
        let before = std::mem::replace(&mut self.seen, states);
        let files = self.files_to_watch().len();
        if before.get(..files) != self.seen.get(..files) {
            let config = self.config.clone();
            match self.thread.run(move || SourceFiles::read(&config)).await {
                Ok(Ok(read)) => {
                    if let Some(exposed) = &read.exposed {
                        Warning::UnsafePermissions(exposed.clone()).log();
                    }
                    self.files = read;
                    info!(target: TARGET, "files of the source of proofs loaded");
                    self.check_canary_anew(tasks);
                }
                Ok(Err(error)) => {
                    warn!(target: TARGET, %error, "files of the source of proofs rejected, keeping those in use");
                }
                Err(error) => {
                    warn!(target: TARGET, %error, "files of the source of proofs cannot be read");
                }
            }
        }
        if before.get(files..) != self.seen.get(files..) {
            self.consult_directory(tasks).await;
        }
    }

    /// Looks for new proofs: of keys that wait for an answer, of cleared keys, and of probable keys
    /// whose clients are connected.
    pub(super) async fn consult_directory(&mut self, tasks: &mut JoinSet<TaskEnd>) {
        if let Some(mut schedule) = self.questions.schedule() {
            schedule.retry_directory();
        }
        let cleared: Vec<Fingerprint> = self.book.cleared().map(|(it, _)| *it).collect();
        let directories = self.directories.clone();
        let named = move || directories.named(&cleared);
        let named = self.thread.run_within(FILE_TIMEOUT, named).await;
        let named = named.unwrap_or_default();
        self.ask_again(|fingerprint| named.contains(fingerprint));
        self.judge_again = true;
        self.canary.forget();
        if self.config.directory_is_complete {
            self.check_canary_anew(tasks);
        }
    }
}

//! Answers and proofs in the state directory.

use std::io;
use std::path::Path;
use std::time::{Duration, Instant};

use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinSet;
use tracing::{error, warn};

use super::super::source_files::ConfirmError;
use super::super::{TARGET, answer_book, proof_directory};
use super::{AskingTask, FILE_TIMEOUT, TaskEnd};
use crate::config::ConfirmConfig;
use crate::spki::Fingerprint;

/// Minimum time between two writes of the state file, 10 s.
pub(super) const SAVE_INTERVAL: Duration = Duration::from_secs(10);

/// Maximum time for the last write of the state file, 5 s.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(5);

/// Name of the directory of kept proofs in the state directory.
pub(super) const KEPT_PROOFS: &str = "proofs";

/// Saves the answers at the end of the process.
#[derive(Debug, Clone)]
pub struct AnswerKeeper(pub(super) mpsc::Sender<oneshot::Sender<()>>);

impl AnswerKeeper {
    /// Saves the answers, within 5 s.
    pub async fn save(&self) {
        let (done, saved) = oneshot::channel();
        let save = async {
            if self.0.send(done).await.is_ok() {
                let _ = saved.await; // an error means that the task has ended
            }
        };
        if tokio::time::timeout(FLUSH_TIMEOUT, save).await.is_err() {
            warn!(target: TARGET, "answers about keys could not be saved in time");
        }
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
    let path = state_dir.join(KEPT_PROOFS);
    match std::fs::create_dir(&path) {
        Err(source) if source.kind() != io::ErrorKind::AlreadyExists => {
            // A missing state directory has an error of its own.
            if state_dir.exists() { Err(ConfirmError::Directory { path, source }) } else { Ok(()) }
        }
        Ok(()) | Err(_) => Ok(()),
    }
}

impl AskingTask {
    /// Writes the state file if it is due.
    pub(super) fn save(&mut self, tasks: &mut JoinSet<TaskEnd>) {
        let now = Instant::now();
        let was_saved = |at: Instant| now.saturating_duration_since(at) < SAVE_INTERVAL;
        if !self.is_dirty || self.saved_at.is_some_and(was_saved) {
            return;
        }
        self.saved_at = Some(now);
        self.is_dirty = false;
        if let Some(write) = self.write() {
            tasks.spawn_local(async move { TaskEnd::Saved(write.await) });
        }
    }

    /// Writes the state file before the process ends.
    pub(super) async fn write_now(&mut self) {
        if let Some(write) = self.write().filter(|_| self.is_dirty) {
            self.is_dirty = false;
            if let Err(error) = write.await {
                error!(target: TARGET, %error, "answers about keys cannot be saved");
            }
        }
    }

    /// The write of the state file; `None` without a state directory.
    pub(super) fn write(&self) -> Option<impl Future<Output = io::Result<()>> + 'static> {
        let directory = self.state_dir.clone()?;
        let (text, thread) = (self.book.to_file(), self.thread.clone());
        Some(async move {
            let text = text?;
            let write =
                thread.run_within(FILE_TIMEOUT, move || answer_book::write(&directory, &text));
            write.await.unwrap_or_else(|error| Err(io::Error::other(error)))
        })
    }

    /// Keeps the body of a proof in the state directory.
    pub(super) fn keep(
        &self,
        fingerprint: Fingerprint,
        body: Vec<u8>,
        tasks: &mut JoinSet<TaskEnd>,
    ) {
        let Some(directory) = self.directories.kept.clone() else { return };
        let thread = self.thread.clone();
        tasks.spawn_local(async move {
            let keep = move || proof_directory::keep(&directory, &fingerprint, &body).map(drop);
            let kept = thread.run_within(FILE_TIMEOUT, keep).await;
            TaskEnd::Kept(kept.unwrap_or_else(|error| Err(io::Error::other(error))))
        });
    }
}

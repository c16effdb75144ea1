//! Answers and proofs in the state directory.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use keygate_core::spki::Fingerprint;
use keygate_core::unix_time;
use tokio::sync::{mpsc, oneshot};
use tokio::task::{JoinError, JoinSet};
use tracing::{error, warn};

use super::super::answer_book::AnswerBook;
use super::super::{TARGET, answer_book, proof_directory};
use super::{AskingTask, FILE_TIMEOUT};
use crate::snapshot::StateLock;

/// Minimum time between two writes of the state file, 10 s.
const SAVE_INTERVAL: Duration = Duration::from_secs(10);

/// Maximum time for the last write of the state file, 5 s.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(5);

/// Maximum number of proofs whose write has failed and is repeated, 64: 1 MiB. A further proof is
/// found again when its client comes back after a restart.
const MAX_UNKEPT: usize = 64;

/// Saves the answers at the end of the process.
#[derive(Debug, Clone)]
pub struct AnswerKeeper(pub(super) mpsc::Sender<oneshot::Sender<()>>);

impl AnswerKeeper {
    /// Saves the answers, within 5 s. Writes in progress end first.
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

/// How a write in the state directory has ended.
#[derive(Debug)]
pub(super) enum WriteEnd {
    Answers(io::Result<()>),
    Proof {
        proof: UnkeptProof,
        result: io::Result<()>,
    },
    /// The answers of the process that held the lock; `None` while it runs.
    TakenOver(io::Result<Option<Box<AnswerBook>>>),
}

/// A proof that is not in the state directory yet.
#[derive(Debug, Clone)]
pub(super) struct UnkeptProof {
    fingerprint: Fingerprint,
    body: Arc<[u8]>,
}

/// The writes in the state directory, and the lock on it.
#[derive(Debug)]
pub(super) struct Keeping {
    directory: Option<PathBuf>,
    lock: Option<StateLock>,
    /// Whether the state file is of this process alone, and its answers are in the book.
    owns_state: bool,
    /// Whether answers have changed since they were saved.
    pub(super) is_dirty: bool,
    saved_at: Option<Instant>,
    /// Writes that are in progress.
    pub(super) writes: JoinSet<WriteEnd>,
    /// Proofs whose write has failed.
    unkept: Vec<UnkeptProof>,
}

impl Keeping {
    pub(super) fn new(directory: Option<&Path>, lock: Option<StateLock>, owns_state: bool) -> Self {
        Self {
            directory: directory.map(Path::to_owned),
            lock,
            owns_state,
            is_dirty: false,
            saved_at: None,
            writes: JoinSet::new(),
            unkept: Vec::new(),
        }
    }

    /// When changed answers may be saved; `None` if there are none, or at once.
    pub(super) fn next_save(&self) -> Option<Instant> {
        self.saved_at.filter(|_| self.is_dirty).map(|at| at + SAVE_INTERVAL)
    }
}

impl AskingTask {
    /// Writes the state file if it is due, and the proofs whose last write has failed.
    pub(super) fn save(&mut self) {
        let now = Instant::now();
        let was_saved = |at: Instant| now.saturating_duration_since(at) < SAVE_INTERVAL;
        if (self.keeping.owns_state && !self.keeping.is_dirty)
            || self.keeping.saved_at.is_some_and(was_saved)
        {
            return;
        }
        self.keeping.saved_at = Some(now);
        if self.keeping.owns_state {
            self.start_writes();
        } else {
            self.start_take_over();
        }
    }

    fn start_take_over(&mut self) {
        if let Some(take_over) = self.take_over() {
            self.keeping.writes.spawn_local(async move { WriteEnd::TakenOver(take_over.await) });
        }
    }

    fn start_writes(&mut self) {
        self.keeping.is_dirty = false;
        for proof in std::mem::take(&mut self.keeping.unkept) {
            self.keep(proof);
        }
        if let Some(write) = self.write() {
            self.keeping.writes.spawn_local(async move { WriteEnd::Answers(write.await) });
        }
    }

    /// Finishes all writes before the process ends. Repeats failed writes once.
    pub(super) async fn write_now(&mut self) {
        self.finish_writes().await;
        if !self.keeping.owns_state {
            self.start_take_over();
            self.finish_writes().await;
        }
        // While another process holds the lock, that process saves its answers.
        if self.keeping.owns_state && self.keeping.is_dirty {
            self.start_writes();
            self.finish_writes().await;
        }
    }

    async fn finish_writes(&mut self) {
        while let Some(ended) = self.keeping.writes.join_next().await {
            self.end_write(ended);
        }
    }

    /// The attempt to take the lock on the state directory, which another process held at the
    /// start, and to read the answers of that process; `None` without a state directory. The result
    /// is `None` while the other process runs.
    fn take_over(
        &self,
    ) -> Option<impl Future<Output = io::Result<Option<Box<AnswerBook>>>> + 'static> {
        let (directory, lock) = (self.keeping.directory.clone()?, self.keeping.lock.clone()?);
        let (mut kept, directories) = (self.book.emptied(), self.directories.clone());
        let thread = self.thread.clone();
        let take_over = move || {
            if !lock.try_hold().map_err(io::Error::other)? {
                return Ok(None);
            }
            kept.add_kept(&directory, &directories, unix_time::now());
            Ok(Some(Box::new(kept)))
        };
        Some(async move {
            let taken = thread.run_within(FILE_TIMEOUT, take_over).await;
            taken.unwrap_or_else(|error| Err(io::Error::other(error)))
        })
    }

    /// Adds the answers of the process that held the lock before.
    fn end_take_over(&mut self, taken: io::Result<Option<Box<AnswerBook>>>) -> io::Result<()> {
        if let Some(kept) = taken? {
            let learned = self.book.merge(*kept);
            self.news.learned.extend(learned);
            (self.keeping.owns_state, self.news.is_unpublished) = (true, true);
            (self.keeping.is_dirty, self.keeping.saved_at) = (true, None);
        }
        Ok(())
    }

    /// The write of the state file; `None` without a state directory.
    fn write(&self) -> Option<impl Future<Output = io::Result<()>> + 'static> {
        let directory = self.keeping.directory.clone()?;
        let (text, thread) = (self.book.to_file(), self.thread.clone());
        Some(async move {
            let text = text?;
            let write =
                thread.run_within(FILE_TIMEOUT, move || answer_book::write(&directory, &text));
            write.await.unwrap_or_else(|error| Err(io::Error::other(error)))
        })
    }

    /// Keeps the body of a proof in the state directory.
    pub(super) fn keep_new(&mut self, fingerprint: Fingerprint, body: Vec<u8>) {
        self.keep(UnkeptProof { fingerprint, body: body.into() });
    }

    fn keep(&mut self, proof: UnkeptProof) {
        let Some(directory) = self.directories.kept.clone() else { return };
        let thread = self.thread.clone();
        self.keeping.writes.spawn_local(async move {
            let UnkeptProof { fingerprint, body } = proof.clone();
            let keep = move || proof_directory::keep(&directory, &fingerprint, &body).map(drop);
            let kept = thread.run_within(FILE_TIMEOUT, keep).await;
            let result = kept.unwrap_or_else(|error| Err(io::Error::other(error)));
            WriteEnd::Proof { proof, result }
        });
    }

    /// Records how a write has ended. The next save repeats a failed write.
    pub(super) fn end_write(&mut self, ended: Result<WriteEnd, JoinError>) {
        let result = match ended {
            Ok(WriteEnd::Answers(result)) => result,
            Ok(WriteEnd::Proof { proof, result }) => {
                if result.is_err() && self.keeping.unkept.len() < MAX_UNKEPT {
                    self.keeping.unkept.push(proof);
                }
                result
            }
            Ok(WriteEnd::TakenOver(taken)) => self.end_take_over(taken),
            Err(error) => Err(io::Error::other(error)),
        };
        if let Err(error) = result {
            self.metrics.state_write_failures.inc();
            self.keeping.is_dirty = true;
            error!(target: TARGET, %error, "answers about keys cannot be saved");
        }
    }
}

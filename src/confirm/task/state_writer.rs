//! Writes answers and proofs to the state directory.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use keygate_core::unix_time;
use prometheus::IntCounter;
use tokio::sync::{mpsc, oneshot};
use tokio::task::{JoinError, JoinSet};
use tracing::{error, warn};

use super::super::TARGET;
use super::super::answer_book::{AnswerBook, state_file};
use super::super::lookup::{FoundProof, ProofDirectories};
use super::super::proof_directory::{saved_path, write};
use super::FILE_TIMEOUT;
use crate::blocking::BlockingPool;
use crate::saved_state::StateLock;

/// Minimum time between two writes of the state file, 10 s.
const SAVE_INTERVAL: Duration = Duration::from_secs(10);

/// Maximum time for the last write of the state file, 5 s.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(5);

/// Maximum number of proofs whose write has failed and is repeated, 64: 1 MiB. A further proof is
/// found again when its client comes back after a restart.
const MAX_UNSAVED: usize = 64;

/// Saves the answers at the end of the process.
#[derive(Debug, Clone)]
pub struct AnswerFlusher(mpsc::Sender<oneshot::Sender<()>>);

impl AnswerFlusher {
    /// Saves the answers, within 5 s. Writes in progress end first.
    pub async fn flush(&self) {
        let (done, saved) = oneshot::channel();
        let flush = async {
            if self.0.send(done).await.is_ok() {
                let _ = saved.await; // an error means that the task has ended
            }
        };
        if tokio::time::timeout(FLUSH_TIMEOUT, flush).await.is_err() {
            warn!(target: TARGET, "answers about keys could not be saved in time");
        }
    }
}

/// How a write in the state directory has ended.
#[derive(Debug)]
pub(super) enum WriteEnd {
    Answers(io::Result<()>),
    Proof {
        proof: UnsavedProof,
        result: io::Result<()>,
    },
    /// The answers of the process that held the lock; `None` while it runs.
    TakenOver(io::Result<Option<Box<AnswerBook>>>),
}

/// A proof that is not in the state directory yet.
#[derive(Debug, Clone)]
pub(super) struct UnsavedProof {
    file: PathBuf,
    body: Arc<[u8]>,
}

/// The state directory and the lock on it.
#[derive(Debug, Clone)]
pub(super) struct StateDirectory {
    pub(super) path: PathBuf,
    /// Directories with the proofs of saved answers. New proofs are saved in the first one.
    pub(super) proofs: ProofDirectories,
    /// Answers are saved while it is held; always if `None`.
    pub(super) lock: Option<StateLock>,
    pub(super) thread: BlockingPool,
}

/// Writes answers and proofs to the state directory, if there is one.
#[derive(Debug)]
pub(super) struct StateWriter {
    directory: Option<StateDirectory>,
    /// Whether the state file is of this process alone, and its answers are in the book.
    owns_state: bool,
    /// The revision of the answer book in the state file; `None` if the last write has failed.
    saved: Option<u64>,
    saved_at: Option<Instant>,
    /// Writes that are in progress.
    pub(super) writes: JoinSet<WriteEnd>,
    /// Proofs whose write has failed.
    unsaved: Vec<UnsavedProof>,
    failures: IntCounter,
    pub(super) flusher: AnswerFlusher,
    /// The flushes to make.
    pub(super) flushes: mpsc::Receiver<oneshot::Sender<()>>,
}

impl StateDirectory {
    /// Takes the lock, which another process held at the start, and adds the answers of that
    /// process to `book`. The result is `None` while the other process runs. Blocks.
    fn take_over(&self, mut book: AnswerBook) -> io::Result<Option<Box<AnswerBook>>> {
        if let Some(lock) = &self.lock
            && !lock.try_hold().map_err(io::Error::other)?
        {
            return Ok(None);
        }
        book.add_saved(&self.path, &self.proofs, unix_time::now());
        Ok(Some(Box::new(book)))
    }

    /// Calls `access` on the thread for files.
    async fn run<T: Send + 'static>(
        self,
        access: impl FnOnce(&Self) -> io::Result<T> + Send + 'static,
    ) -> io::Result<T> {
        let thread = self.thread.clone();
        let result = thread.run_within(FILE_TIMEOUT, move || access(&self)).await;
        result.unwrap_or_else(|error| Err(io::Error::other(error)))
    }
}

impl StateWriter {
    /// `book` has the answers in the directory. If `owns_state` is false, it may lack some.
    pub(super) fn new(
        directory: Option<StateDirectory>,
        owns_state: bool,
        book: &AnswerBook,
        failures: IntCounter,
    ) -> Self {
        let (sender, flushes) = mpsc::channel(1);
        Self {
            directory,
            owns_state,
            saved: owns_state.then_some(book.revision),
            saved_at: None,
            writes: JoinSet::new(),
            unsaved: Vec::new(),
            failures,
            flusher: AnswerFlusher(sender),
            flushes,
        }
    }

    fn is_dirty(&self, book: &AnswerBook) -> bool {
        self.directory.is_some() && self.saved != Some(book.revision)
    }

    /// When changed answers may be saved; `None` if there are none, or at once.
    pub(super) fn next_save(&self, book: &AnswerBook) -> Option<Instant> {
        self.saved_at.filter(|_| self.is_dirty(book)).map(|at| at + SAVE_INTERVAL)
    }

    /// Writes the state file if it is due, and the proofs whose last write has failed.
    pub(super) fn save(&mut self, book: &AnswerBook) {
        let now = Instant::now();
        if self.is_dirty(book) && self.next_save(book).is_none_or(|at| at <= now) {
            self.saved_at = Some(now);
            self.start(book);
        }
    }

    fn start(&mut self, book: &AnswerBook) {
        let Some(directory) = self.directory.clone() else { return };
        if !self.owns_state {
            let book = book.emptied();
            let take_over = directory.run(move |it| it.take_over(book));
            self.writes.spawn_local(async { WriteEnd::TakenOver(take_over.await) });
            return;
        }
        self.saved = Some(book.revision);
        for proof in std::mem::take(&mut self.unsaved) {
            self.start_proof(proof);
        }
        let text = book.to_file();
        let write = directory.run(move |it| write(&state_file(&it.path), &text?));
        self.writes.spawn_local(async { WriteEnd::Answers(write.await) });
    }

    /// Saves the proof, unless it is saved already. Returns the file that will have it.
    pub(super) fn save_proof(&mut self, found: &FoundProof) -> Option<PathBuf> {
        let directory = self.directory.as_ref().and_then(|it| it.proofs.saved.clone());
        let Some(directory) = directory.filter(|_| !found.is_saved) else {
            return found.file.clone();
        };
        let file = saved_path(&directory, &found.fingerprint);
        self.start_proof(UnsavedProof { file: file.clone(), body: found.body.as_slice().into() });
        Some(file)
    }

    fn start_proof(&mut self, proof: UnsavedProof) {
        let Some(directory) = self.directory.clone() else { return };
        self.writes.spawn_local(async move {
            let UnsavedProof { file, body } = proof.clone();
            let result = directory.run(move |_| write(&file, &body)).await;
            WriteEnd::Proof { proof, result }
        });
    }

    /// Records how a write has ended, and adds answers of another process to `book`. The next save
    /// repeats a failed write.
    pub(super) fn end(&mut self, ended: Result<WriteEnd, JoinError>, book: &mut AnswerBook) {
        let result = match ended {
            Ok(WriteEnd::Answers(result)) => result,
            Ok(WriteEnd::Proof { proof, result }) => {
                if result.is_err() && self.unsaved.len() < MAX_UNSAVED {
                    self.unsaved.push(proof);
                }
                result
            }
            Ok(WriteEnd::TakenOver(Ok(Some(taken)))) => {
                book.merge(*taken);
                (self.owns_state, self.saved_at) = (true, None);
                Ok(())
            }
            Ok(WriteEnd::TakenOver(taken)) => taken.map(drop),
            Err(error) => Err(io::Error::other(error)),
        };
        if let Err(error) = result {
            self.failures.inc();
            self.saved = None;
            error!(target: TARGET, %error, "answers about keys cannot be saved");
        }
    }

    /// Finishes all writes before the process ends. Repeats failed writes once.
    pub(super) async fn flush(&mut self, book: &mut AnswerBook) {
        self.finish_writes(book).await;
        if !self.owns_state {
            self.start(book);
            self.finish_writes(book).await;
        }
        // While another process holds the lock, that process saves its answers.
        if self.owns_state && self.is_dirty(book) {
            self.start(book);
            self.finish_writes(book).await;
        }
    }

    async fn finish_writes(&mut self, book: &mut AnswerBook) {
        while let Some(ended) = self.writes.join_next().await {
            self.end(ended, book);
        }
    }
}

#[cfg(test)]
mod tests;

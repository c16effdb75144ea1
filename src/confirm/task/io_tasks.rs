//! The look-ups and checks that are in progress.

use std::sync::Arc;
use std::time::Instant;

use keygate_core::spki::Fingerprint;
use tokio::task::{JoinError, JoinSet};
use tracing::error;

use super::super::TARGET;
use super::super::lookup::{self, CanaryProblem, LookUpOutcome};
use super::super::schedule::{Job, Stage};
use super::super::source::Source;
use super::FILE_TIMEOUT;
use crate::blocking::BlockingPool;

/// Runs what waits for the source or for files.
#[derive(Debug)]
pub(super) struct IoTasks {
    /// The thread for files.
    pub(super) thread: BlockingPool,
    tasks: JoinSet<IoEnd>,
}

/// How a task has ended.
pub(super) enum IoEnd {
    Canary(Result<(), CanaryProblem>),
    LookedUp(LookedUp),
    /// Cleared keys with a file in the directory of proofs.
    Named(Vec<Fingerprint>),
}

/// A job that has ended.
pub(super) struct LookedUp {
    pub(super) job: Job,
    pub(super) began: Instant,
    pub(super) outcome: LookUpOutcome,
    /// The check of the canary after the look into a complete directory without a proof.
    pub(super) canary: Option<Result<(), CanaryProblem>>,
}

impl IoTasks {
    pub(super) fn new(thread: BlockingPool) -> Self {
        Self { thread, tasks: JoinSet::new() }
    }

    /// Looks up the key of `job`. An unmounted directory lacks every key, so a look into a complete
    /// one without a proof is followed by a check of the canary.
    pub(super) fn look_up(&mut self, job: Job, source: &Source) {
        let (began, source, thread) = (Instant::now(), source.clone(), self.thread.clone());
        self.tasks.spawn_local(async move {
            let outcome = match (job.stage, &source.client) {
                (Stage::Url, Some(client)) => {
                    lookup::query_url(client, &source.files, &job.query.encodings).await
                }
                (Stage::Directory | Stage::Url, _) => {
                    let (query, directories) = (Arc::clone(&job.query), source.directories.clone());
                    let look_up = move || directories.look_up(&query.encodings);
                    let outcome = thread.run_within(source.config.timeout, look_up).await;
                    outcome.unwrap_or_else(|error| {
                        LookUpOutcome::DirectoryFailed(std::io::Error::other(error))
                    })
                }
            };
            let is_missing = matches!(outcome, LookUpOutcome::Unknown) && source.client.is_none();
            let canary = match is_missing && source.clears() {
                true => Some(check_canary(source, thread).await),
                false => None,
            };
            IoEnd::LookedUp(LookedUp { job, began, outcome, canary })
        });
    }

    /// Checks whether the source knows its canary.
    pub(super) fn check_canary(&mut self, source: &Source) {
        let check = check_canary(source.clone(), self.thread.clone());
        self.tasks.spawn_local(async { IoEnd::Canary(check.await) });
    }

    /// Finds the keys of `cleared` that have a file in the directory of proofs.
    pub(super) fn find_named(&mut self, cleared: Vec<Fingerprint>, source: &Source) {
        let (directories, thread) = (source.directories.clone(), self.thread.clone());
        self.tasks.spawn_local(async move {
            let named = move || directories.named(&cleared);
            IoEnd::Named(thread.run_within(FILE_TIMEOUT, named).await.unwrap_or_default())
        });
    }

    /// Waits for the end of a task; for ever if there is none. `None` if the task panicked.
    /// Cancel-safe.
    pub(super) async fn next(&mut self) -> Option<IoEnd> {
        match self.tasks.join_next().await {
            Some(ended) => logged(ended),
            None => std::future::pending().await,
        }
    }

    /// The end of a task that has ended already.
    pub(super) fn try_next(&mut self) -> Option<IoEnd> {
        self.tasks.try_join_next().and_then(logged)
    }
}

fn logged(ended: Result<IoEnd, JoinError>) -> Option<IoEnd> {
    let failed = |error: &JoinError| {
        error!(target: TARGET, %error, "a question about a key has failed");
    };
    ended.inspect_err(failed).ok()
}

async fn check_canary(source: Source, thread: BlockingPool) -> Result<(), CanaryProblem> {
    let Source { config, files, directories, client } = source;
    if let Some(client) = client {
        return lookup::check_canaries(&client, &files).await;
    }
    let check = move || directories.check_canaries(&files.canaries);
    let checked = thread.run_within(config.timeout, check).await;
    checked.unwrap_or_else(|error| Err(CanaryProblem::unfinished(&error)))
}

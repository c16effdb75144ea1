//! The checks of the canary: a source that does not know it clears no key.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::task::JoinSet;
use tracing::{info, warn};

use super::super::TARGET;
use super::super::lookup::{self, CanaryProblem};
use super::super::pace::back_off;
use super::super::report::CanaryState;
use super::super::schedule::Job;
use super::super::source::{clears, source_of};
use super::{AskingTask, TaskEnd};

/// Age of the last check of the canary above which a 404 causes a new one, 10 min.
const CANARY_AGE: Duration = Duration::from_secs(10 * 60);

/// The checks of the canary, and the questions whose 404 waits for one.
#[derive(Debug, Default)]
pub(super) struct CanaryCheck {
    is_running: bool,
    /// Whether the files have changed since the check in progress began.
    is_outdated: bool,
    /// When the canary was known the last time.
    known_at: Option<Instant>,
    /// Failed checks in a row.
    failures: u32,
    retry_at: Option<Instant>,
    /// Whether the source answered the last check that failed and was logged.
    logged_answer: Option<bool>,
    waiting: Vec<Job>,
}

impl CanaryCheck {
    /// When the check is made again after a failure.
    pub(super) fn retry_at(&self) -> Option<Instant> {
        self.retry_at.filter(|_| !self.is_running)
    }

    pub(super) fn is_retry_due(&self, now: Instant) -> bool {
        self.retry_at().is_some_and(|at| at <= now)
    }

    /// Makes the next 404 wait for a new check.
    pub(super) fn forget(&mut self) {
        self.known_at = None;
    }
}

impl AskingTask {
    /// Clears the key of a question if the source knew its canary lately; otherwise after a check.
    pub(super) fn clear_if_trusted(&mut self, job: Job, tasks: &mut JoinSet<TaskEnd>) {
        let now = Instant::now();
        let is_fresh = |at: Instant| now.saturating_duration_since(at) < CANARY_AGE;
        if self.canary.known_at.is_some_and(is_fresh) {
            self.clear(&job);
        } else if self.canary.retry_at().is_some_and(|at| at > now) || self.paused_until().is_some()
        {
            self.untrusted(&job, "the check of the canary failed", false);
        } else {
            self.canary.waiting.push(job);
            self.check_canary(tasks);
        }
    }

    /// Asks the source for its canary with the files in use, after a check in progress. Until then
    /// no key is cleared.
    pub(super) fn check_canary_anew(&mut self, tasks: &mut JoinSet<TaskEnd>) {
        self.canary.forget();
        self.canary.is_outdated = self.canary.is_running;
        self.check_canary(tasks);
    }

    /// Asks the source for its canary, unless it clears no key anyway or is asked already. During a
    /// pause of the source, the check is made after it.
    pub(super) fn check_canary(&mut self, tasks: &mut JoinSet<TaskEnd>) {
        let paused_until = self.paused_until();
        if paused_until.is_some() && !self.canary.is_running {
            self.canary.retry_at = self.canary.retry_at.max(paused_until);
            for job in std::mem::take(&mut self.canary.waiting) {
                self.untrusted(&job, "the source has paused the check of its canary", false);
            }
            return;
        }
        if !clears(&self.config) || std::mem::replace(&mut self.canary.is_running, true) {
            return;
        }
        let canaries = self.files.canaries.clone();
        if let Some(client) = &self.client {
            let (client, files) = (Arc::clone(client), self.files.clone());
            if let Some(mut schedule) = self.questions.schedule() {
                schedule.take_tokens(canaries.len() as f64, Instant::now());
            }
            tasks.spawn_local(async move {
                TaskEnd::Canary(lookup::check_canaries(&client, &files, &canaries).await)
            });
            return;
        }
        let directories = self.directories.clone();
        let (thread, timeout) = (self.thread.clone(), self.config.timeout);
        tasks.spawn_local(async move {
            let check = move || directories.check_canaries(&canaries);
            let checked = thread.run_within(timeout, check).await;
            TaskEnd::Canary(checked.unwrap_or_else(|error| Err(CanaryProblem::unfinished(&error))))
        });
    }

    /// Records a check of the canary, and ends the questions that wait for it.
    pub(super) fn end_canary(
        &mut self,
        outcome: Result<(), CanaryProblem>,
        tasks: &mut JoinSet<TaskEnd>,
    ) {
        self.canary.is_running = false;
        if std::mem::take(&mut self.canary.is_outdated) {
            return self.check_canary(tasks);
        }
        self.record_canary(outcome);
    }

    /// Puts the outcome of a check of the canary in use.
    pub(super) fn record_canary(&mut self, outcome: Result<(), CanaryProblem>) {
        let is_known = outcome.is_ok();
        self.metrics.confirm.record_canary(is_known);
        self.news.is_unpublished |= self.book.set_can_clear(is_known);
        let now = Instant::now();
        let waiting = std::mem::take(&mut self.canary.waiting);
        match outcome {
            Ok(()) => {
                if self.canary.failures > 0 {
                    info!(target: TARGET, source = source_of(&self.config), "source of proofs knows its canary again");
                }
                self.status.update(|report| {
                    report.canary = CanaryState::Ok;
                    report.failure = None;
                });
                self.canary.known_at = Some(now);
                self.canary.failures = 0;
                self.canary.logged_answer = None;
                self.canary.retry_at = None;
                waiting.iter().for_each(|job| self.clear(job));
            }
            Err(CanaryProblem { error, pause, is_answer, .. }) => {
                if self.canary.logged_answer.replace(is_answer) != Some(is_answer) {
                    let source = source_of(&self.config);
                    if is_answer {
                        warn!(target: TARGET, source, error, "source does not know its canary, no key is cleared");
                    } else {
                        warn!(target: TARGET, source, error, "source cannot be asked about its canary, no key is cleared");
                    }
                }
                self.status.update(|report| {
                    report.canary = CanaryState::Failed;
                    report.failure = (!is_answer).then(|| error.clone());
                });
                self.canary.known_at = None;
                // Each look-up into a complete directory has a check, which is no further failure.
                if self.canary.retry_at.is_none_or(|at| at <= now) {
                    self.canary.failures = self.canary.failures.saturating_add(1);
                }
                let retry = back_off(self.canary.failures).max(pause.unwrap_or_default());
                self.canary.retry_at = Some(now + retry);
                if let Some(pause) = pause {
                    self.record_blocked(pause);
                    if let Some(mut schedule) = self.questions.schedule() {
                        schedule.pause(pause, now);
                    }
                }
                let error = format!("the check of the canary failed: {error}");
                waiting.iter().for_each(|job| self.untrusted(job, &error, false));
            }
        }
    }
}

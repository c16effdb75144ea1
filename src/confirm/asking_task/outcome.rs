//! The outcomes of questions and of canary checks.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::task::JoinSet;
use tracing::{error, info, warn};

use super::super::TARGET;
use super::super::answer_book::{MAX_CONFIRMED, ProofEffect, until_text};
use super::super::client::RequestError;
use super::super::lookup::{self, CanaryProblem, FoundProof, LookUp, UnusableProof};
use super::super::report::{AnswerReport, CanaryState};
use super::super::schedule::{Finished, Job, Stage, back_off};
use super::{AskingTask, TaskEnd, clears, source_of};
use crate::metrics::{ConfirmationResult, Label};
use crate::spki::Fingerprint;
use crate::unix_time::{self, rfc3339};

/// Time after a body that proves nothing until the same question is asked again, 1 h.
const BAD_PROOF_PAUSE: Duration = Duration::from_secs(60 * 60);
/// Time after a proof that has no room until the same question is asked again, 1 h.
const NO_ROOM_PAUSE: Duration = Duration::from_secs(60 * 60);
/// Age of the last check of the canary above which a 404 causes a new one, 10 min.
const CANARY_AGE: Duration = Duration::from_secs(10 * 60);
/// Minimum interval between two log lines of one kind about questions, 10 s.
const LOG_INTERVAL: Duration = Duration::from_secs(10);

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

/// Limits the log lines of one kind about questions.
#[derive(Debug, Default)]
pub(super) struct LogLimit {
    logged_at: Option<Instant>,
    left_out: u64,
}

impl LogLimit {
    /// The number of lines that were left out since the last one; `None` if this one is left out.
    fn pass(&mut self, now: Instant) -> Option<u64> {
        if self.logged_at.is_some_and(|at| now.saturating_duration_since(at) < LOG_INTERVAL) {
            self.left_out += 1;
            return None;
        }
        self.logged_at = Some(now);
        Some(std::mem::take(&mut self.left_out))
    }
}

impl AskingTask {
    /// Records how a question has ended.
    pub(super) fn end_look_up(
        &mut self,
        job: Job,
        began: Instant,
        look_up: LookUp,
        tasks: &mut JoinSet<TaskEnd>,
    ) {
        if job.stage == Stage::Url || self.client.is_none() {
            self.record_response(&look_up);
        }
        let goes_on = job.stage == Stage::Directory && self.client.is_some();
        if !goes_on || matches!(look_up, LookUp::Confirmed(_)) {
            self.metrics.confirm.record_duration(began.elapsed());
        }
        match look_up {
            LookUp::Confirmed(found) => self.confirm(&job, found),
            LookUp::DirectoryFailed(error) => {
                if let Some(left_out) = self.directory_log.pass(Instant::now()) {
                    warn!(target: TARGET, %error, left_out, "directory of proofs cannot be read");
                }
                let error = error.to_string();
                self.leave_directory(&job, goes_on, ConfirmationResult::Unreachable, &error, None);
            }
            LookUp::Failed(error) => self.fail(&job, &error),
            LookUp::Unknown if goes_on => self.finish(&job, Finished::NotInDirectory),
            LookUp::Unknown if job.directory_failed => {
                self.untrusted(&job, "the directory of proofs may have an unreadable proof", false);
            }
            LookUp::Unknown if clears(&self.config) => self.clear_if_trusted(job, tasks),
            LookUp::Unknown => {
                self.untrusted(&job, "a key that it does not know is not cleared", true);
            }
            LookUp::Unusable(unusable) => {
                self.log_unusable(&unusable);
                let (error, pause) = ("the proof does not verify", Some(BAD_PROOF_PAUSE));
                self.leave_directory(&job, goes_on, ConfirmationResult::BadProof, error, pause);
            }
        }
    }

    /// Records a response of the URL, or of the directory if there is no URL.
    fn record_response(&mut self, look_up: &LookUp) {
        let responded = match look_up {
            LookUp::Confirmed(_) | LookUp::Unknown | LookUp::Unusable(_) => true,
            LookUp::DirectoryFailed(_) | LookUp::Failed(_) => false,
        };
        if !responded {
            return;
        }
        let now = unix_time::now();
        self.metrics.confirm.set_last_answer(now);
        self.status.update(|report| report.last_answer = Some(rfc3339(now)));
        // The response may be to a request that was sent before a 429.
        if self.paused_until().is_none() {
            self.metrics.confirm.set_blocked_until(0);
            self.status.update(|report| report.blocked_until = None);
        }
        if self.questions.schedule().is_some_and(|mut schedule| schedule.record_response()) {
            info!(target: TARGET, source = source_of(&self.config), "source of proofs answers again");
        }
    }

    fn confirm(&mut self, job: &Job, found: FoundProof) {
        let FoundProof { fingerprint, spki, body, file, is_kept } = found;
        let kept = self.directories.kept.as_ref();
        let kept = kept.map(|directory| directory.join(format!("{fingerprint}.jws")));
        let proof: Option<PathBuf> = if is_kept { file.clone() } else { kept.or(file.clone()) };
        let effect = self.book.confirm(fingerprint, spki);
        if effect == ProofEffect::NoRoom {
            return self.leave_unconfirmed(job, fingerprint);
        }
        self.learned.push((fingerprint, None));
        if !is_kept {
            self.keep_new(fingerprint, body);
        }
        let proof_file = proof.map(|path| path.display().to_string());
        if effect == ProofEffect::New {
            let source = match &file {
                Some(path) => path.display().to_string(),
                None => source_of(&self.config),
            };
            warn!(target: TARGET, %fingerprint, source, proof_file, "compromise of a client key proved");
            self.add_answer(AnswerReport {
                time: rfc3339(unix_time::now()),
                fingerprint: fingerprint.to_string(),
                verdict: ConfirmationResult::Confirmed.as_str(),
                proof_file,
                until: None,
            });
        }
        self.has_news = true;
        self.metrics.confirm.record_result(ConfirmationResult::Confirmed);
        self.answered.push(job.number);
    }

    /// Ends a question whose proof has no room among the answers. The key is probable.
    fn leave_unconfirmed(&mut self, job: &Job, fingerprint: Fingerprint) {
        if let Some(mut schedule) = self.questions.schedule() {
            schedule.forget_cleared(&fingerprint);
        }
        self.has_news = true;
        self.metrics.confirm.record_result(ConfirmationResult::Confirmed);
        let next = self.finish_and_get_retry(job, Finished::Unanswered(Some(NO_ROOM_PAUSE)));
        let Some(left_out) = self.log.pass(Instant::now()) else { return };
        let next = next.map(|next| rfc3339(unix_time::now().saturating_add(next.as_secs())));
        let maximum = MAX_CONFIRMED;
        error!(target: TARGET, %fingerprint, maximum, next, left_out, "too many confirmed keys, a proved compromise stays probable");
    }

    /// Goes on to the URL, whose 404 clears no key then, or ends the question without an answer.
    fn leave_directory(
        &mut self,
        job: &Job,
        goes_on: bool,
        result: ConfirmationResult,
        error: &str,
        pause: Option<Duration>,
    ) {
        if goes_on {
            self.finish(job, Finished::DirectoryFailed);
        } else {
            self.metrics.confirm.record_result(result);
            self.record_error(error);
            let next = self.finish_and_get_retry(job, Finished::Unanswered(pause));
            self.log_unanswered(job, result, error, next);
        }
    }

    fn log_unusable(&mut self, unusable: &UnusableProof) {
        let Some(left_out) = self.unusable_log.pass(Instant::now()) else { return };
        let UnusableProof { fingerprint, file, reason } = unusable;
        let source = match file {
            Some(path) => path.display().to_string(),
            None => source_of(&self.config),
        };
        let reason = reason.as_str();
        error!(target: TARGET, %fingerprint, source, reason, left_out, "proof does not verify");
    }

    fn fail(&mut self, job: &Job, error: &RequestError) {
        let result = error.result();
        self.metrics.confirm.record_result(result);
        self.record_error(&error.to_string());
        let finished = match error {
            RequestError::RateLimited(pause) => {
                self.record_blocked(*pause);
                Finished::Blocked(*pause)
            }
            RequestError::Encoded | RequestError::TooLarge => Finished::Unanswered(None),
            RequestError::Refused(_)
            | RequestError::Server(_)
            | RequestError::Timeout(_)
            | RequestError::Unreachable(_) => Finished::Failed,
        };
        let next = self.finish_and_get_retry(job, finished);
        self.log_unanswered(job, result, &error.to_string(), next);
    }

    /// The end of the pause that the URL has asked for.
    fn paused_until(&self) -> Option<Instant> {
        self.client.as_ref().and_then(|client| client.paused_until(Instant::now()))
    }

    fn record_error(&self, error: &str) {
        let (time, source) = (rfc3339(unix_time::now()), source_of(&self.config));
        let error = format!("{time} {source}: {error}");
        self.status.update(|report| report.last_error = Some(error));
    }

    fn record_blocked(&mut self, pause: Duration) {
        let until = unix_time::now().saturating_add(pause.as_secs());
        self.metrics.confirm.set_blocked_until(until);
        self.status.update(|report| report.blocked_until = Some(rfc3339(until)));
    }

    /// Ends a question about a key that the source does not know, because that counts for nothing.
    fn untrusted(&mut self, job: &Job, error: &str, is_permanent: bool) {
        let result = ConfirmationResult::Untrusted;
        self.metrics.confirm.record_result(result);
        // What never counts is asked again as seldom as a cleared key.
        let pause = is_permanent.then_some(self.config.cleared_ttl);
        let next = self.finish_and_get_retry(job, Finished::Unanswered(pause));
        if !is_permanent {
            return self.log_unanswered(job, result, error, next);
        }
        let Some(left_out) = self.log.pass(Instant::now()) else { return };
        let (fingerprint, next) = (first_fingerprint(job), next.map(time_after));
        let (result, source) = (result.as_str(), source_of(&self.config));
        info!(target: TARGET, fingerprint, source, result, error, next, left_out, "no answer about a client key");
    }

    fn log_unanswered(
        &mut self,
        job: &Job,
        result: ConfirmationResult,
        error: &str,
        next: Option<Duration>,
    ) {
        let Some(left_out) = self.log.pass(Instant::now()) else { return };
        let (fingerprint, next) = (first_fingerprint(job), next.map(time_after));
        let (result, source) = (result.as_str(), source_of(&self.config));
        warn!(target: TARGET, fingerprint, source, result, error, next, left_out, "no answer about a client key");
    }

    /// Clears the key of a question if the source knew its canary lately; otherwise after a check.
    fn clear_if_trusted(&mut self, job: Job, tasks: &mut JoinSet<TaskEnd>) {
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

    fn clear(&mut self, job: &Job) {
        let now = unix_time::now();
        let mut until = None;
        for (fingerprint, _) in &job.question.encodings {
            let (clearance, forgotten) = self.book.clear(*fingerprint, now);
            until = Some(until_text(clearance));
            self.learned.push((*fingerprint, Some(clearance.due)));
            if let (Some(forgotten), Some(mut schedule)) = (forgotten, self.questions.schedule()) {
                schedule.forget_cleared(&forgotten);
            }
        }
        if let Some((fingerprint, _)) = job.question.encodings.first() {
            info!(target: TARGET, %fingerprint, until, "client key cleared");
            self.add_answer(AnswerReport {
                time: rfc3339(now),
                fingerprint: fingerprint.to_string(),
                verdict: ConfirmationResult::Cleared.as_str(),
                proof_file: None,
                until,
            });
        }
        self.has_news = true;
        self.metrics.confirm.record_result(ConfirmationResult::Cleared);
        self.answered.push(job.number);
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
            TaskEnd::Canary(checked.unwrap_or_else(|error| Err(CanaryProblem::other(&error))))
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
        if let Some(mut schedule) = self.questions.schedule() {
            schedule.set_canary_missing(!is_known);
        }
        let now = Instant::now();
        let waiting = std::mem::take(&mut self.canary.waiting);
        match outcome {
            Ok(()) => {
                if self.canary.failures > 0 {
                    info!(target: TARGET, source = source_of(&self.config), "source of proofs knows its canary again");
                }
                self.status.update(|report| report.canary = CanaryState::Ok);
                self.canary.known_at = Some(now);
                self.canary.failures = 0;
                self.canary.logged_answer = None;
                self.canary.retry_at = None;
                waiting.iter().for_each(|job| self.clear(job));
            }
            Err(CanaryProblem { error, pause, is_answer }) => {
                if self.canary.logged_answer.replace(is_answer) != Some(is_answer) {
                    let source = source_of(&self.config);
                    if is_answer {
                        warn!(target: TARGET, source, error, "source does not know its canary, no key is cleared");
                    } else {
                        warn!(target: TARGET, source, error, "source cannot be asked about its canary, no key is cleared");
                    }
                }
                self.status.update(|report| report.canary = CanaryState::Failed);
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

    fn add_answer(&self, answer: AnswerReport) {
        self.status.update(|report| report.add(answer));
    }

    fn finish(&mut self, job: &Job, finished: Finished) {
        let _ = self.finish_and_get_retry(job, finished);
    }

    fn finish_and_get_retry(&mut self, job: &Job, finished: Finished) -> Option<Duration> {
        let mut schedule = self.questions.schedule()?;
        schedule.finish(job.number, finished, Instant::now())
    }
}

fn first_fingerprint(job: &Job) -> Option<String> {
    job.question.encodings.first().map(|(fingerprint, _)| fingerprint.to_string())
}

/// The time after `pause`, RFC 3339.
fn time_after(pause: Duration) -> String {
    rfc3339(unix_time::now().saturating_add(pause.as_secs()))
}

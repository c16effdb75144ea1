//! The outcomes of questions.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use keygate_core::spki::Fingerprint;
use keygate_core::unix_time::{self, rfc3339};
use tokio::task::JoinSet;
use tracing::{error, info, warn};

use super::super::TARGET;
use super::super::answer_book::{MAX_CONFIRMED, ProofEffect, until_text};
use super::super::client::SourceError;
use super::super::lookup::{FoundProof, LookUpOutcome};
use super::super::report::AnswerReport;
use super::super::schedule::{Finished, Job, Stage};
use super::super::source::{clears, source_of};
use super::{AskingTask, TaskEnd};
use crate::metrics::{ConfirmationResult, Label};

/// Time after a body that proves nothing until the same question is asked again, 1 h.
const BAD_PROOF_PAUSE: Duration = Duration::from_secs(60 * 60);
/// Time after a proof that has no room until the same question is asked again, 1 h.
const NO_ROOM_PAUSE: Duration = Duration::from_secs(60 * 60);

impl AskingTask {
    /// Records how a question has ended.
    pub(super) fn end_look_up(
        &mut self,
        job: Job,
        began: Instant,
        look_up: LookUpOutcome,
        tasks: &mut JoinSet<TaskEnd>,
    ) {
        if job.stage == Stage::Url || self.client.is_none() {
            self.record_response(&look_up);
        }
        let goes_on = job.stage == Stage::Directory && self.client.is_some();
        if !goes_on || matches!(look_up, LookUpOutcome::Confirmed(_)) {
            self.metrics.confirm.record_duration(began.elapsed());
        }
        match look_up {
            LookUpOutcome::Confirmed(found) => self.confirm(&job, found),
            LookUpOutcome::DirectoryFailed(error) => {
                if let Some(left_out) = self.logs.directory.pass(Instant::now()) {
                    warn!(target: TARGET, %error, left_out, "directory of proofs cannot be read");
                }
                let error = error.to_string();
                self.leave_directory(&job, goes_on, ConfirmationResult::Unreachable, &error, None);
            }
            LookUpOutcome::Failed(error) => self.fail(&job, &error),
            LookUpOutcome::Unknown if goes_on => self.finish(&job, Finished::NotInDirectory),
            LookUpOutcome::Unknown if job.directory_failed => {
                self.untrusted(&job, "the directory of proofs may have an unreadable proof", false);
            }
            LookUpOutcome::Unknown if clears(&self.config) => self.clear_if_trusted(job, tasks),
            LookUpOutcome::Unknown => {
                self.untrusted(&job, "a key that it does not know is not cleared", true);
            }
            LookUpOutcome::Unusable(unusable) => {
                self.log_unusable(&unusable);
                let (error, pause) = ("the proof does not verify", Some(BAD_PROOF_PAUSE));
                self.leave_directory(&job, goes_on, ConfirmationResult::BadProof, error, pause);
            }
        }
    }

    /// Records a response of the URL, or of the directory if there is no URL.
    fn record_response(&mut self, look_up: &LookUpOutcome) {
        let responded = match look_up {
            LookUpOutcome::Confirmed(_) | LookUpOutcome::Unknown | LookUpOutcome::Unusable(_) => {
                true
            }
            LookUpOutcome::DirectoryFailed(_) | LookUpOutcome::Failed(_) => false,
        };
        if !responded {
            return;
        }
        let now = unix_time::now();
        self.metrics.confirm.set_last_answer(now);
        self.status.update(|report| {
            report.last_answer = Some(rfc3339(now));
            report.failure = None;
        });
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
        self.news.learned.push((fingerprint, None));
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
        self.news.is_unpublished = true;
        self.metrics.confirm.record_result(ConfirmationResult::Confirmed);
        self.news.answered.push(job.number);
    }

    /// Ends a question whose proof has no room among the answers. The key is probable.
    fn leave_unconfirmed(&mut self, job: &Job, fingerprint: Fingerprint) {
        if let Some(mut schedule) = self.questions.schedule() {
            schedule.forget_cleared(&fingerprint);
        }
        self.news.is_unpublished = true;
        self.metrics.confirm.record_result(ConfirmationResult::Confirmed);
        let next = self.finish_and_get_retry(job, Finished::Unanswered(Some(NO_ROOM_PAUSE)));
        let Some(left_out) = self.logs.unanswered.pass(Instant::now()) else { return };
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

    fn fail(&mut self, job: &Job, error: &SourceError) {
        let result = error.result();
        self.metrics.confirm.record_result(result);
        self.record_error(&error.to_string());
        let finished = match error {
            SourceError::RateLimited(pause) => {
                self.record_blocked(*pause);
                Finished::Blocked(*pause)
            }
            SourceError::Encoded | SourceError::TooLarge => Finished::Unanswered(None),
            SourceError::Refused(_)
            | SourceError::Server(_)
            | SourceError::Timeout(_)
            | SourceError::Tls(_)
            | SourceError::Unreachable(_)
            | SourceError::Unresolved(_) => Finished::Failed,
        };
        if matches!(finished, Finished::Failed) {
            self.status.update(|report| report.failure = Some(error.to_string()));
        }
        let next = self.finish_and_get_retry(job, finished);
        self.log_unanswered(job, result, &error.to_string(), next);
    }

    /// The end of the pause that the URL has asked for.
    pub(super) fn paused_until(&self) -> Option<Instant> {
        self.client.as_ref().and_then(|client| client.paused_until(Instant::now()))
    }

    fn record_error(&self, error: &str) {
        let (time, source) = (rfc3339(unix_time::now()), source_of(&self.config));
        let error = format!("{time} {source}: {error}");
        self.status.update(|report| report.last_error = Some(error));
    }

    pub(super) fn record_blocked(&mut self, pause: Duration) {
        let until = unix_time::now().saturating_add(pause.as_secs());
        self.metrics.confirm.set_blocked_until(until);
        self.status.update(|report| report.blocked_until = Some(rfc3339(until)));
    }

    /// Ends a question whose "not known" is not trusted.
    pub(super) fn untrusted(&mut self, job: &Job, error: &str, is_permanent: bool) {
        let result = ConfirmationResult::Untrusted;
        self.metrics.confirm.record_result(result);
        // A "not known" that is never trusted is asked about as seldom as a cleared key.
        let pause = is_permanent.then_some(self.config.cleared_ttl);
        let next = self.finish_and_get_retry(job, Finished::Unanswered(pause));
        if !is_permanent {
            return self.log_unanswered(job, result, error, next);
        }
        self.log_uncleared(job, error, next);
    }

    pub(super) fn clear(&mut self, job: &Job) {
        let now = unix_time::now();
        let mut until = None;
        for (fingerprint, _) in &job.question.encodings {
            let (clearance, forgotten) = self.book.clear(*fingerprint, now);
            until = Some(until_text(clearance));
            self.news.learned.push((*fingerprint, Some(clearance.due)));
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
        self.news.is_unpublished = true;
        self.metrics.confirm.record_result(ConfirmationResult::Cleared);
        self.news.answered.push(job.number);
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

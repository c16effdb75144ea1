//! The log lines about questions without an answer, limited in number.

use std::time::{Duration, Instant};

use keygate_core::unix_time::{self, rfc3339};
use tracing::{error, info, warn};

use super::super::TARGET;
use super::super::lookup::UnusableProof;
use super::super::schedule::Job;
use super::super::source::source_of;
use super::AskingTask;
use crate::metrics::{ConfirmationResult, Label};

/// Minimum interval between two log lines of one kind about questions, 10 s.
const LOG_INTERVAL: Duration = Duration::from_secs(10);

/// The limits of each kind of line.
#[derive(Debug, Default)]
pub(super) struct QuestionLogs {
    pub(super) directory: QuestionLogLimit,
    pub(super) unanswered: QuestionLogLimit,
    unusable: QuestionLogLimit,
}

/// Limits the log lines of one kind about questions.
#[derive(Debug, Default)]
pub(super) struct QuestionLogLimit {
    logged_at: Option<Instant>,
    left_out: u64,
}

impl QuestionLogLimit {
    /// The number of lines that were left out since the last one; `None` if this one is left out.
    pub(super) fn pass(&mut self, now: Instant) -> Option<u64> {
        if self.logged_at.is_some_and(|at| now.saturating_duration_since(at) < LOG_INTERVAL) {
            self.left_out += 1;
            return None;
        }
        self.logged_at = Some(now);
        Some(std::mem::take(&mut self.left_out))
    }
}

impl AskingTask {
    pub(super) fn log_unusable(&mut self, unusable: &UnusableProof) {
        let Some(left_out) = self.logs.unusable.pass(Instant::now()) else { return };
        let UnusableProof { fingerprint, file, reason } = unusable;
        let source = match file {
            Some(path) => path.display().to_string(),
            None => source_of(&self.config),
        };
        let reason = reason.as_str();
        error!(target: TARGET, %fingerprint, source, reason, left_out, "proof does not verify");
    }

    pub(super) fn log_unanswered(
        &mut self,
        job: &Job,
        result: ConfirmationResult,
        error: &str,
        next: Option<Duration>,
    ) {
        let Some(left_out) = self.logs.unanswered.pass(Instant::now()) else { return };
        let (fingerprint, next) = (first_fingerprint(job), next.map(time_after));
        let (result, source) = (result.as_str(), source_of(&self.config));
        warn!(target: TARGET, fingerprint, source, result, error, next, left_out, "no answer about a client key");
    }

    /// Logs a 404 that clears no key by the configuration. It is the normal case of such a source.
    pub(super) fn log_uncleared(&mut self, job: &Job, error: &str, next: Option<Duration>) {
        let Some(left_out) = self.logs.unanswered.pass(Instant::now()) else { return };
        let (fingerprint, next) = (first_fingerprint(job), next.map(time_after));
        let (result, source) = (ConfirmationResult::Untrusted.as_str(), source_of(&self.config));
        info!(target: TARGET, fingerprint, source, result, error, next, left_out, "no answer about a client key");
    }
}

fn first_fingerprint(job: &Job) -> Option<String> {
    job.question.encodings.first().map(|(fingerprint, _)| fingerprint.to_string())
}

/// The time after `pause`, RFC 3339.
fn time_after(pause: Duration) -> String {
    rfc3339(unix_time::now().saturating_add(pause.as_secs()))
}

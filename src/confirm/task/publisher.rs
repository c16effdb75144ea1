//! Publication: judgements get the answers, operators get log lines, metrics and the status.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use keygate_core::guard::CurrentAnswers;
use keygate_core::spki::Fingerprint;
use keygate_core::unix_time::{self, rfc3339};
use tokio::sync::watch;
use tracing::{Level, error, info, warn};

use super::super::TARGET;
use super::super::answer_book::{AnswerBook, Clearance, MAX_CONFIRMED, ProofEffect};
use super::super::inquiry::Inquiry;
use super::super::lookup::{CanaryProblem, FoundProof, LookUpOutcome};
use super::super::report::{AnswerReport, CanaryState, ConfirmReport, ConfirmStatus, lock};
use super::super::schedule::{Job, JobEnd};
use super::super::source::Source;
use super::outcome::Unanswered;
use crate::metrics::{ConfirmMetrics, ConfirmationResult, Label};

/// Time after a proof that has no room until the key is queried again, 1 h.
const NO_ROOM_PAUSE: Duration = Duration::from_secs(60 * 60);
/// Minimum interval between two log lines of one kind, 10 s. Clients cause the lines.
const LOG_INTERVAL: Duration = Duration::from_secs(10);
/// Minimum time between two judgements of all open connections because of answers, 1 s.
const JUDGE_INTERVAL: Duration = Duration::from_secs(1);

/// Puts answers in use, and reports what the task has learned.
#[derive(Debug)]
pub(super) struct Publisher {
    answers: CurrentAnswers,
    /// The revision of the answer book in use.
    revision: u64,
    /// Jobs that were answered since the answers were published.
    answered: Vec<u64>,
    /// Whether open connections must be judged again.
    judge_again: bool,
    judged_at: Option<Instant>,
    /// The source in logs and the status.
    source: String,
    pub(super) metrics: ConfirmMetrics,
    report: Arc<Mutex<ConfirmReport>>,
    log_directory: LogLimit,
    log_unanswered: LogLimit,
    log_unusable: LogLimit,
    /// Whether the source answered the last check of the canary that failed and was logged.
    canary_is_answer: Option<bool>,
    queries: Inquiry,
}

impl Publisher {
    /// Puts the answers of `book` in use.
    pub(super) fn new(
        source: &Source,
        book: &AnswerBook,
        queries: Inquiry,
        answers: CurrentAnswers,
        metrics: ConfirmMetrics,
    ) -> Self {
        let canary = if source.clears() { CanaryState::Unchecked } else { CanaryState::Off };
        let filters = source.config.filters.clone();
        let report =
            ConfirmReport { source: source.name(), filters, canary, ..ConfirmReport::default() };
        answers.replace(Arc::new(book.answers.clone()));
        Self {
            answers,
            revision: book.revision,
            answered: Vec::new(),
            judge_again: false,
            judged_at: None,
            source: source.name(),
            metrics,
            report: Arc::new(Mutex::new(report)),
            log_directory: LogLimit::default(),
            log_unanswered: LogLimit::default(),
            log_unusable: LogLimit::default(),
            canary_is_answer: None,
            queries,
        }
    }

    pub(super) fn status(&self) -> ConfirmStatus {
        ConfirmStatus(Some(Arc::clone(&self.report)))
    }

    fn report(&self) -> MutexGuard<'_, ConfirmReport> {
        lock(&self.report)
    }

    /// Has open connections judged again with the next publication.
    pub(super) fn judge_again(&mut self) {
        self.judge_again = true;
    }

    /// Puts new answers in use, then ends their queries, and has open connections judged again.
    pub(super) fn publish(
        &mut self,
        book: &AnswerBook,
        judgements: &watch::Sender<u64>,
        now: Instant,
    ) {
        if std::mem::replace(&mut self.revision, book.revision) != book.revision {
            self.answers.replace(Arc::new(book.answers.clone()));
            self.judge_again = true;
        }
        // The answers come first: a connection that is woken is judged by them.
        for number in self.answered.drain(..) {
            self.queries.with_schedule(|it| it.finish(number, JobEnd::Answered, now));
        }
        if self.judge_again && self.next_judgement().is_none_or(|at| at <= now) {
            self.judge_again = false;
            self.judged_at = Some(now);
            judgements.send_modify(|count| *count += 1);
        }
    }

    /// When open connections may be judged again; `None` if there is no reason, or at once.
    pub(super) fn next_judgement(&self) -> Option<Instant> {
        self.judged_at.filter(|_| self.judge_again).map(|at| at + JUDGE_INTERVAL)
    }

    /// Shows the number of answers and of queries that wait.
    pub(super) fn show(&self, book: &AnswerBook, pending: usize, cleared_ttl: Duration) {
        let (confirmed, cleared) = (book.confirmed.len(), book.cleared.len());
        self.metrics.set_answers(confirmed, cleared);
        self.metrics.set_pending(pending);
        let mut report = self.report();
        (report.confirmed, report.cleared, report.pending) = (confirmed, cleared, pending);
        report.questions_per_day = cleared as f64 / (cleared_ttl.as_secs_f64() / 86_400.0);
        report.count(&self.metrics);
    }

    /// Records a response of the URL, or of the directory if there is no URL.
    pub(super) fn record_response(&self, outcome: &LookUpOutcome, source: &Source) {
        match outcome {
            LookUpOutcome::Confirmed(_) | LookUpOutcome::Unknown | LookUpOutcome::Unusable(_) => {}
            LookUpOutcome::DirectoryFailed(_) | LookUpOutcome::Failed(_) => return,
        }
        let now = unix_time::now();
        self.metrics.last_answer.set(now as f64);
        self.report().last_answer = Some(rfc3339(now));
        self.report().failure = None;
        // The response may be to a request that was sent before a 429.
        if source.paused_until(Instant::now()).is_none() {
            self.metrics.blocked_until.set(0.0);
            self.report().blocked_until = None;
        }
        if self.queries.with_schedule(|it| it.pace.record_response()) {
            info!(target: TARGET, source = self.source, "source of proofs answers again");
        }
    }

    fn record_pause(&self, pause: Duration) {
        let until = unix_time::now().saturating_add(pause.as_secs());
        self.metrics.blocked_until.set(until as f64);
        self.report().blocked_until = Some(rfc3339(until));
    }

    /// Records the outcome of a check of the canary.
    pub(super) fn record_canary(&mut self, outcome: &Result<(), CanaryProblem>) {
        self.metrics.record_canary(outcome.is_ok());
        let logged = self.canary_is_answer.take();
        let source = &self.source;
        let Err(CanaryProblem { error, pause, is_answer, .. }) = outcome else {
            if logged.is_some() {
                info!(target: TARGET, source, "source of proofs knows its canary again");
            }
            self.report().canary = CanaryState::Ok;
            self.report().failure = None;
            return;
        };
        if logged != Some(*is_answer) {
            if *is_answer {
                warn!(target: TARGET, source, error, "source does not know its canary, no key is cleared");
            } else {
                warn!(target: TARGET, source, error, "source cannot be asked about its canary, no key is cleared");
            }
        }
        self.canary_is_answer = Some(*is_answer);
        let failure = (!is_answer).then(|| error.clone());
        self.report().canary = CanaryState::Failed;
        self.report().failure = failure;
        pause.iter().for_each(|pause| self.record_pause(*pause));
    }

    /// Records a verified proof, which `proof_file` will have. Ends the query once it is in use.
    pub(super) fn record_confirmed(
        &mut self,
        job: &Job,
        found: &FoundProof,
        effect: ProofEffect,
        proof_file: Option<PathBuf>,
    ) {
        if effect == ProofEffect::New {
            let proof_file = text(proof_file.as_ref());
            let (fingerprint, file) = (found.fingerprint, text(found.file.as_ref()));
            let source = file.as_ref().unwrap_or(&self.source);
            warn!(target: TARGET, %fingerprint, source, proof_file, "compromise of a client key proved");
            self.add_answer(ConfirmationResult::Confirmed, fingerprint, proof_file, None);
        }
        self.record_answer(job, ConfirmationResult::Confirmed);
    }

    /// Records that a key is cleared. Ends the query once the clearance is in use.
    pub(super) fn record_cleared(&mut self, job: &Job, until: Option<Clearance>) {
        let until = until.map(|clearance| rfc3339(clearance.due));
        if let Some((fingerprint, _)) = job.query.encodings.first() {
            info!(target: TARGET, %fingerprint, until, "client key cleared");
            self.add_answer(ConfirmationResult::Cleared, *fingerprint, None, until);
        }
        self.record_answer(job, ConfirmationResult::Cleared);
    }

    fn add_answer(
        &self,
        verdict: ConfirmationResult,
        fingerprint: Fingerprint,
        proof_file: Option<String>,
        until: Option<String>,
    ) {
        let (time, fingerprint) = (rfc3339(unix_time::now()), fingerprint.to_string());
        let verdict = verdict.as_str();
        let answer = AnswerReport { time, fingerprint, verdict, proof_file, until };
        self.report().add(answer);
    }

    fn record_answer(&mut self, job: &Job, result: ConfirmationResult) {
        self.metrics.results.of(result).inc();
        self.answered.push(job.number);
    }

    /// Ends a query whose proof has no room among the answers. The key stays probable.
    pub(super) fn end_without_room(&mut self, job: &Job, fingerprint: Fingerprint) {
        self.metrics.results.of(ConfirmationResult::Confirmed).inc();
        let next = self.finish(job, JobEnd::Unanswered(Some(NO_ROOM_PAUSE)));
        let Some(left_out) = self.log_unanswered.pass(Instant::now()) else { return };
        let maximum = MAX_CONFIRMED;
        error!(target: TARGET, %fingerprint, maximum, next, left_out, "too many confirmed keys, a proved compromise stays probable");
    }

    /// Ends a query without an answer.
    pub(super) fn end_unanswered(&mut self, job: &Job, unanswered: &Unanswered) {
        let Unanswered { result, error, level, end } = unanswered;
        self.metrics.results.of(*result).inc();
        if *result != ConfirmationResult::Untrusted {
            let last_error = format!("{} {}: {error}", rfc3339(unix_time::now()), self.source);
            self.report().last_error = Some(last_error);
        }
        if let JobEnd::Blocked(pause) = end {
            self.record_pause(*pause);
        } else if *end == JobEnd::Failed {
            self.report().failure = Some(error.clone());
        }
        let next = self.finish(job, *end);
        let Some(left_out) = self.log_unanswered.pass(Instant::now()) else { return };
        let fingerprint = job.query.encodings.first().map(|(it, _)| it.to_string());
        let (result, source) = (result.as_str(), &self.source);
        if *level == Level::INFO {
            info!(target: TARGET, fingerprint, source, result, error, next, left_out, "no answer about a client key");
        } else {
            warn!(target: TARGET, fingerprint, source, result, error, next, left_out, "no answer about a client key");
        }
    }

    /// Ends a job. Returns the time of the next attempt, RFC 3339.
    fn finish(&self, job: &Job, end: JobEnd) -> Option<String> {
        let next = self.queries.with_schedule(|it| it.finish(job.number, end, Instant::now()));
        next.map(|pause| rfc3339(unix_time::now().saturating_add(pause.as_secs())))
    }

    /// Logs a directory that cannot be read, or a body that proves nothing.
    pub(super) fn log_unusable(&mut self, outcome: &LookUpOutcome) {
        match outcome {
            LookUpOutcome::Confirmed(_) | LookUpOutcome::Failed(_) | LookUpOutcome::Unknown => {}
            LookUpOutcome::DirectoryFailed(error) => {
                let Some(left_out) = self.log_directory.pass(Instant::now()) else { return };
                warn!(target: TARGET, %error, left_out, "directory of proofs cannot be read");
            }
            LookUpOutcome::Unusable(unusable) => {
                let Some(left_out) = self.log_unusable.pass(Instant::now()) else { return };
                let (fingerprint, reason) = (unusable.fingerprint, unusable.reason.as_str());
                let file = text(unusable.file.as_ref());
                let source = file.as_ref().unwrap_or(&self.source);
                error!(target: TARGET, %fingerprint, source, reason, left_out, "proof does not verify");
            }
        }
    }
}

fn text(path: Option<&PathBuf>) -> Option<String> {
    path.map(|path| path.display().to_string())
}

/// Limits the log lines of one kind.
#[derive(Debug, Default)]
struct LogLimit {
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

#[cfg(test)]
mod tests;

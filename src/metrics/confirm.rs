//! The series of the questions to a source of proofs.

use std::time::Duration;

use keygate_core::guard::VerdictKind;
use prometheus::{Gauge, Histogram, HistogramOpts, IntCounter, IntGauge, IntGaugeVec, Registry};

use super::labels::{ConfirmationResult, Family};
use super::{NAMESPACE, counter, counters, opts, register};

/// Upper bounds of the durations of questions, in seconds.
const DURATIONS: [f64; 9] = [0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0];

/// The series of the questions to a source of proofs.
#[derive(Debug, Clone)]
pub struct ConfirmMetrics {
    results: Family<ConfirmationResult, IntCounter>,
    duration: Histogram,
    pending: IntGauge,
    confirmed: IntGauge,
    cleared: IntGauge,
    canary_successful: IntGauge,
    canary_failures: IntCounter,
    last_answer: Gauge,
    blocked_until: Gauge,
}

impl ConfirmMetrics {
    #[rustfmt::skip] // a table
    pub(super) fn register(registry: &Registry) -> Result<Self, prometheus::Error> {
        let results = counters(registry, "confirmations_total", "Questions about keys by result.", &["result"])?;
        let duration = HistogramOpts::new("confirmation_duration_seconds", "Duration of one question about a key to the source of proofs.");
        let duration = Histogram::with_opts(duration.namespace(NAMESPACE).buckets(DURATIONS.to_vec()));
        let answers = register(registry, IntGaugeVec::new(opts("confirmation_answers", "Encodings of keys with an answer in use, by verdict. A key can have several."), &["verdict"]))?;
        let gauge = |name, help| register(registry, Gauge::with_opts(opts(name, help)));
        let integer = |name, help| register(registry, IntGauge::with_opts(opts(name, help)));
        Ok(Self {
            results: Family::from_vec(&results, &[]),
            duration: register(registry, duration)?,
            pending: integer("confirmations_pending", "Questions that wait for an answer, one for each set of encodings of a key.")?,
            confirmed: answers.with_label_values(&[VerdictKind::Confirmed.as_str()]),
            cleared: answers.with_label_values(&[VerdictKind::Cleared.as_str()]),
            canary_successful: integer("confirmation_canary_successful", "1 if the source of proofs knew its canary at the last check; 0 if not, or if it was not checked yet.")?,
            canary_failures: counter(registry, "confirmation_canary_failures_total", "Checks at which the source of proofs did not know its canary, or could not be asked.")?,
            last_answer: gauge("confirmation_last_answer_timestamp_seconds", "When the source of proofs last answered; 0 if it has not answered yet.")?,
            blocked_until: gauge("confirmation_blocked_until_timestamp_seconds", "End of the pause that the source of proofs has requested (429); 0 without one.")?,
        })
    }

    /// Counts a question by its result.
    pub fn record_result(&self, result: ConfirmationResult) {
        self.results.of(result).inc();
    }

    /// The number of questions with `result`.
    #[must_use]
    pub fn count(&self, result: ConfirmationResult) -> u64 {
        self.results.of(result).get()
    }

    /// Counts questions that were dropped.
    pub fn record_dropped(&self, questions: u64) {
        self.results.of(ConfirmationResult::Dropped).inc_by(questions);
    }

    /// Records the duration of a question.
    pub fn record_duration(&self, duration: Duration) {
        self.duration.observe(duration.as_secs_f64());
    }

    /// Sets the number of questions that wait.
    pub fn set_pending(&self, questions: usize) {
        self.pending.set(i64::try_from(questions).unwrap_or(i64::MAX));
    }

    /// Sets the number of answers in use.
    pub fn set_answers(&self, confirmed: usize, cleared: usize) {
        self.confirmed.set(i64::try_from(confirmed).unwrap_or(i64::MAX));
        self.cleared.set(i64::try_from(cleared).unwrap_or(i64::MAX));
    }

    /// Records a check of the canary.
    pub fn record_canary(&self, is_successful: bool) {
        self.canary_successful.set(is_successful.into());
        self.canary_failures.inc_by((!is_successful).into());
    }

    /// Sets when the source answered last, in seconds since the Unix epoch.
    pub fn set_last_answer(&self, seconds: u64) {
        self.last_answer.set(seconds as f64);
    }

    /// Sets the end of the pause that the source has demanded, in seconds since the Unix epoch.
    pub fn set_blocked_until(&self, seconds: u64) {
        self.blocked_until.set(seconds as f64);
    }
}

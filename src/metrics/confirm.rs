//! The series of the questions to a source of proofs.

use keygate_core::guard::VerdictKind;
use prometheus::{Gauge, Histogram, IntCounter, IntGauge, IntGaugeVec};

use super::labels::{ConfirmationResult, Family};
use super::series::{series, set_count};

/// Upper bounds of the durations of questions, in seconds.
const DURATIONS: &[f64] = &[0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0];

series! {
    /// The series of the questions to a source of proofs.
    pub struct ConfirmMetrics, ConfirmSeries {
        pub results: Family<ConfirmationResult, IntCounter> = "confirmations_total"["result"]
            "Questions about keys by result.",
        pub duration: Histogram = "confirmation_duration_seconds"[] in DURATIONS
            "Duration of one question about a key to the source of proofs.",
        pending: IntGauge = "confirmations_pending"[]
            "Questions that wait for an answer, one for each set of encodings of a key.",
        answers: IntGaugeVec = "confirmation_answers"["verdict"]
            "Encodings of keys with an answer in use, by verdict. A key can have several.",
        canary_successful: IntGauge = "confirmation_canary_successful"[]
            "1 if the source of proofs knew its canary at the last check; 0 if not, or if it was not checked yet.",
        canary_failures: IntCounter = "confirmation_canary_failures_total"[]
            "Checks at which the source of proofs did not know its canary, or could not be asked.",
        pub last_answer: Gauge = "confirmation_last_answer_timestamp_seconds"[]
            "When the source of proofs last answered; 0 if it has not answered yet.",
        pub blocked_until: Gauge = "confirmation_blocked_until_timestamp_seconds"[]
            "End of the pause that the source of proofs has requested (429); 0 without one.",
    }
}

impl ConfirmMetrics {
    /// Sets the number of questions that wait.
    pub fn set_pending(&self, questions: usize) {
        set_count(&self.pending, questions);
    }

    /// Sets the number of answers in use.
    pub fn set_answers(&self, confirmed: usize, cleared: usize) {
        for (verdict, keys) in
            [(VerdictKind::Confirmed, confirmed), (VerdictKind::Cleared, cleared)]
        {
            set_count(&self.answers.with_label_values(&[verdict.as_str()]), keys);
        }
    }

    /// Records a check of the canary.
    pub fn record_canary(&self, is_successful: bool) {
        self.canary_successful.set(is_successful.into());
        self.canary_failures.inc_by((!is_successful).into());
    }
}

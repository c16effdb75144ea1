//! The source of proofs and its answers, as `/status` shows them.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde::Serialize;

use crate::metrics::{ConfirmMetrics, ConfirmationResult, Label};

/// Maximum number of recent answers in the status.
const MAX_ANSWERS: usize = 100;

/// The report of the confirmation task, which is copied when it is read. Clones share it.
#[derive(Debug, Clone, Default)]
pub struct ConfirmStatus(pub(super) Option<Arc<Mutex<ConfirmReport>>>);

impl ConfirmStatus {
    /// The report; `None` without a source.
    #[must_use]
    pub fn load(&self) -> Option<ConfirmReport> {
        self.0.as_ref().map(|report| lock(report).clone())
    }
}

pub(super) fn lock(report: &Mutex<ConfirmReport>) -> MutexGuard<'_, ConfirmReport> {
    report.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The source of proofs and its answers.
#[derive(Debug, Clone, Default, Serialize)]
pub struct ConfirmReport {
    /// The URL, or the directory if there is no URL.
    pub source: String,
    /// Names of the filters whose hits the source can clear.
    pub filters: Vec<String>,
    /// Whether the source knew its canary at the last check.
    pub canary: CanaryState,
    /// Queries that wait for an answer.
    pub pending: usize,
    /// End of the pause that the source has requested, RFC 3339.
    pub blocked_until: Option<String>,
    /// When the source answered last, RFC 3339.
    pub last_answer: Option<String>,
    /// Time, source and reason of the last query without an answer.
    pub last_error: Option<String>,
    /// Why the source did not respond the last time; `null` if it did.
    pub failure: Option<String>,
    /// Number of confirmed keys.
    pub confirmed: usize,
    /// Number of cleared keys.
    pub cleared: usize,
    /// Expected number of queries a day about keys that are cleared now, if all of their clients
    /// come back.
    pub questions_per_day: f64,
    /// Number of queries by result.
    pub results: BTreeMap<&'static str, u64>,
    /// The last 100 answers, the latest first.
    pub answers: VecDeque<AnswerReport>,
}

/// Whether a source knows its canary.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum CanaryState {
    /// The source does not know its canary.
    Failed,
    /// `canary = "off"`, or a source whose 404 counts for nothing anyway.
    Off,
    /// The source knows its canary.
    Ok,
    /// There was no check yet.
    #[default]
    Unchecked,
}

/// An answer about a key.
#[derive(Debug, Clone, Serialize)]
pub struct AnswerReport {
    /// When it came, RFC 3339.
    pub time: String,
    /// SHA-256 of the encoding of the key.
    pub fingerprint: String,
    /// `confirmed` or `cleared`.
    pub verdict: &'static str,
    /// Path of the proof.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub proof_file: Option<String>,
    /// When the key is queried again, RFC 3339.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub until: Option<String>,
}

impl ConfirmReport {
    pub(super) fn add(&mut self, answer: AnswerReport) {
        self.answers.push_front(answer);
        self.answers.truncate(MAX_ANSWERS);
    }

    pub(super) fn count(&mut self, metrics: &ConfirmMetrics) {
        for result in ConfirmationResult::ALL {
            self.results.insert(result.as_str(), metrics.results.of(*result).get());
        }
    }
}

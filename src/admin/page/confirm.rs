//! The card of the source of proofs.

use super::Badge;
use crate::confirm::{AnswerReport, CanaryState, ConfirmReport};

/// Maximum number of answers on the page, most recent first.
const MAX_ANSWERS: usize = 10;

/// The source of proofs and its last answers.
pub(super) struct ConfirmCard<'a> {
    pub(super) report: &'a ConfirmReport,
    pub(super) filters: String,
    pub(super) state: Badge,
    pub(super) questions_per_day: String,
    pub(super) last_answer: &'a str,
    pub(super) last_error: &'a str,
    pub(super) answers: Vec<AnswerRow<'a>>,
}

pub(super) struct AnswerRow<'a> {
    pub(super) report: &'a AnswerReport,
    /// The path of the proof, or the time at which the key is asked about again.
    pub(super) detail: String,
}

impl<'a> ConfirmCard<'a> {
    pub(super) fn new(report: &'a ConfirmReport) -> Self {
        let state = match (&report.blocked_until, report.canary) {
            _ if report.failure.is_some() => Badge::new("bad", "does not answer"),
            (_, CanaryState::Failed) => Badge::new("bad", "canary not known: no key is cleared"),
            (Some(until), CanaryState::Off | CanaryState::Ok | CanaryState::Unchecked) => {
                Badge::new("warn", format!("no questions until {until}"))
            }
            (None, CanaryState::Off) => Badge::new("warn", "no canary: no key is cleared"),
            (None, CanaryState::Ok) => Badge::new("good", "canary known"),
            (None, CanaryState::Unchecked) => Badge::new("warn", "canary not checked yet"),
        };
        let answers = report.answers.iter().take(MAX_ANSWERS).map(|report| {
            let until = report.until.as_ref().map(|until| format!("asked again {until}"));
            AnswerRow { report, detail: report.proof_file.clone().or(until).unwrap_or_default() }
        });
        Self {
            report,
            filters: report.filters.join(", "),
            state,
            questions_per_day: format!("{:.1}", report.questions_per_day),
            last_answer: report.last_answer.as_deref().unwrap_or("none"),
            last_error: report.last_error.as_deref().unwrap_or("none"),
            answers: answers.collect(),
        }
    }
}

//! The card of the source of proofs.

use super::Badge;
use crate::confirm::{CanaryState, ConfirmReport};

/// Maximum number of answers on the page, most recent first.
pub(super) const MAX_ANSWERS: usize = 10;

/// The source of proofs and its last answers.
pub(super) struct ConfirmCard<'a> {
    pub(super) report: &'a ConfirmReport,
    pub(super) state: Badge,
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
        Self { report, state }
    }
}

//! The answers that make questions needless.

use std::collections::HashMap;
use std::time::SystemTime;

use keygate_core::spki::Fingerprint;

use super::super::question::Question;

/// The answer about an encoding, as far as questions depend on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum KnownAnswer {
    /// Cleared, and asked about again from this time on.
    Cleared(SystemTime),
    Confirmed,
}

/// The answers in use, by encoding.
#[derive(Debug, Default)]
pub(super) struct KnownAnswers(HashMap<Fingerprint, KnownAnswer>);

impl KnownAnswers {
    /// Whether the key is confirmed, or cleared and not due to be asked about again.
    pub(super) fn are_enough_for(&self, question: &Question, wall: SystemTime) -> bool {
        let mut known = question.encodings.iter().map(|(it, _)| self.0.get(it));
        self.is_confirmed(question)
            || known.all(|it| matches!(it, Some(KnownAnswer::Cleared(due)) if wall < *due))
    }

    /// Whether the compromise of the key of a question is proved.
    pub(super) fn is_confirmed(&self, question: &Question) -> bool {
        let mut known = question.encodings.iter().map(|(it, _)| self.0.get(it));
        known.any(|known| known == Some(&KnownAnswer::Confirmed))
    }

    pub(super) fn set_cleared(&mut self, fingerprint: Fingerprint, due: SystemTime) {
        self.0.insert(fingerprint, KnownAnswer::Cleared(due));
    }

    pub(super) fn set_confirmed(&mut self, fingerprint: Fingerprint) {
        self.0.insert(fingerprint, KnownAnswer::Confirmed);
    }

    /// Forgets that a key was cleared.
    pub(super) fn forget_cleared(&mut self, fingerprint: &Fingerprint) {
        if let Some(KnownAnswer::Cleared(_)) = self.0.get(fingerprint) {
            self.0.remove(fingerprint);
        }
    }
}

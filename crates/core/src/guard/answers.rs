//! The answers of a source of proofs about keys: confirmed and cleared.
//!
//! [`Answers`] never change. The confirmation task builds the next ones and replaces them in
//! [`CurrentAnswers`]. A judgement reads them without a lock and without an allocation.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::SystemTime;

use arc_swap::ArcSwap;

use super::recorded_key::EncodingFingerprints;
use super::{Confirmation, Guard, KeyEncodings, Verdict};
use crate::pkbf::KeyHash;
use crate::spki::Fingerprint;

/// The known answers about keys, and the filters that they are about.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Answers {
    /// Names of the filters whose hits the source answers for.
    filters: Vec<Arc<str>>,
    /// Whether the source can clear a key at present. If not, only proofs count.
    can_clear: bool,
    confirmed: HashSet<Fingerprint>,
    /// The hashes of the keys in `confirmed`. Two keys may share one hash. A lookup here comes
    /// first, because a judgement has these hashes already and no SHA-256.
    confirmed_hashes: HashSet<KeyHash>,
    /// The end of each clearance.
    cleared: HashMap<Fingerprint, SystemTime>,
}

impl Answers {
    /// No answers, of a source that answers for hits in the filters with these names.
    #[must_use]
    pub fn new(filters: impl IntoIterator<Item = Arc<str>>) -> Self {
        Self { filters: filters.into_iter().collect(), can_clear: true, ..Self::default() }
    }

    /// Records whether the source can clear a key at present: by the configuration, and by its
    /// response about the canary. Known clearances stay. Returns whether this is new.
    pub fn set_can_clear(&mut self, can_clear: bool) -> bool {
        std::mem::replace(&mut self.can_clear, can_clear) != can_clear
    }

    /// Whether the source can clear a key at present.
    #[must_use]
    pub fn can_clear(&self) -> bool {
        self.can_clear
    }

    /// Records that the compromise of the key with this SubjectPublicKeyInfo (DER) is proved. A
    /// proof counts for every related encoding of the key and never expires. Returns whether the
    /// answer is new.
    pub fn confirm(&mut self, spki: &[u8]) -> bool {
        let fingerprint = Fingerprint::of(spki);
        self.cleared.remove(&fingerprint);
        self.confirmed_hashes.insert(KeyHash::from_spki(spki));
        self.confirmed.insert(fingerprint)
    }

    /// Records that the encoding of a key with this fingerprint is unknown to the source. The
    /// clearance expires at `until`. It has no effect on a confirmed key.
    pub fn clear(&mut self, fingerprint: Fingerprint, until: SystemTime) {
        if !self.confirmed.contains(&fingerprint) {
            self.cleared.insert(fingerprint, until);
        }
    }

    /// Removes the clearance of a key. Returns whether there was one.
    pub fn withdraw_clearance(&mut self, fingerprint: &Fingerprint) -> bool {
        self.cleared.remove(fingerprint).is_some()
    }

    /// Names of the filters whose hits the source answers for.
    #[must_use]
    pub fn filters(&self) -> &[Arc<str>] {
        &self.filters
    }

    /// Whether the source answers for hits in the filter with this name.
    #[must_use]
    pub fn covers_filter(&self, name: &str) -> bool {
        self.filters.iter().any(|filter| **filter == *name)
    }

    /// Whether the compromise of the encoding with this fingerprint is proved.
    #[must_use]
    pub fn is_confirmed(&self, fingerprint: &Fingerprint) -> bool {
        self.confirmed.contains(fingerprint)
    }

    /// Whether one of `hashes` may be of a confirmed key. There are no false negatives.
    #[must_use]
    pub fn may_confirm(&self, hashes: &[KeyHash]) -> bool {
        hashes.iter().any(|hash| self.confirmed_hashes.contains(hash))
    }

    /// Whether the encoding with this fingerprint is cleared at `now`.
    #[must_use]
    pub fn is_cleared(&self, fingerprint: &Fingerprint, now: SystemTime) -> bool {
        self.cleared_until(fingerprint).is_some_and(|until| now < until)
    }

    /// The end of the clearance of the encoding with this fingerprint, which may have passed.
    #[must_use]
    pub fn cleared_until(&self, fingerprint: &Fingerprint) -> Option<SystemTime> {
        self.cleared.get(fingerprint).copied()
    }

    /// All confirmed encodings, in no order.
    pub fn confirmed(&self) -> impl ExactSizeIterator<Item = &Fingerprint> {
        self.confirmed.iter()
    }

    /// All clearances with their ends, in no order.
    pub fn cleared(&self) -> impl ExactSizeIterator<Item = (&Fingerprint, SystemTime)> {
        self.cleared.iter().map(|(fingerprint, until)| (fingerprint, *until))
    }
}

/// A handle to the answers in use. Snapshots share it, and the confirmation task alone
/// replaces them.
#[derive(Debug, Clone, Default)]
pub struct CurrentAnswers(Arc<ArcSwap<Answers>>);

impl CurrentAnswers {
    /// The answers in use. Never waits.
    #[must_use]
    pub fn load(&self) -> arc_swap::Guard<Arc<Answers>> {
        self.0.load()
    }

    /// Replaces the answers in use. Open connections keep their verdicts until they are judged
    /// again.
    pub fn replace(&self, answers: Arc<Answers>) {
        self.0.store(answers);
    }
}

impl From<Answers> for CurrentAnswers {
    fn from(answers: Answers) -> Self {
        Self(Arc::new(ArcSwap::from_pointee(answers)))
    }
}

impl Guard {
    /// The verdict of the answers, and of the filters in `by_filters`. `fingerprints` is called for
    /// a hit only and returns the fingerprints of all encodings of `key`, in the same order.
    pub(super) fn judge_by_answers(
        &self,
        key: &KeyEncodings,
        by_filters: Verdict,
        now: SystemTime,
        fingerprints: impl FnOnce() -> EncodingFingerprints,
    ) -> Verdict {
        let Some(answers) = self.answers.as_ref().map(CurrentAnswers::load) else {
            return by_filters;
        };
        if by_filters.hit().is_none() && !answers.may_confirm(&key.hashes) {
            return by_filters;
        }
        let fingerprints = fingerprints();
        let mut looked_up = fingerprints.iter().filter(|(form, _)| self.exponents.include(*form));
        let proved = looked_up.find(|(_, it)| answers.is_confirmed(it)).copied();
        match (by_filters, proved) {
            (by_filters, Some((encoding, proof))) => {
                let hit = by_filters.hit().cloned();
                Verdict::Confirmed(Box::new(Confirmation { proof, encoding, position: 0, hit }))
            }
            (Verdict::Probable(hit), None)
                if self.is_cleared(key, &fingerprints, &answers, now) =>
            {
                Verdict::Cleared(hit)
            }
            (by_filters, None) => by_filters,
        }
    }

    /// Whether `answers` clear the key at `now`: each of its encodings that is in a filter is
    /// cleared, and the source answers for every one of these filters.
    fn is_cleared(
        &self,
        key: &KeyEncodings,
        fingerprints: &EncodingFingerprints,
        answers: &Answers,
        now: SystemTime,
    ) -> bool {
        self.filters_with_exponents().all(|(named, exponents)| {
            key.hashes.iter().zip(fingerprints).all(|(hash, (encoding, fingerprint))| {
                !exponents.include(*encoding)
                    || !named.filter.contains_hash(*hash)
                    || answers.covers_filter(&named.name) && answers.is_cleared(fingerprint, now)
            })
        })
    }
}

#[cfg(test)]
mod tests;

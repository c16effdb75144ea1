//! The answers of a source of proofs about keys: confirmed and cleared.
//!
//! [`Answers`] never change. The asking task builds the next ones and replaces them in
//! [`CurrentAnswers`]. A judgement reads them without a lock and without an allocation.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::SystemTime;

use arc_swap::ArcSwap;

use crate::pkbf::KeyHash;
use crate::spki::Fingerprint;

/// The known answers about keys, and the filters that they are about.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Answers {
    /// Names of the filters whose hits the source answers for.
    filters: Vec<Arc<str>>,
    confirmed: HashSet<Fingerprint>,
    /// The hashes of the keys in `confirmed`, sorted. Two keys may share one hash. A lookup here
    /// comes first, because a judgement has these hashes already and no SHA-256.
    confirmed_hashes: Vec<KeyHash>,
    /// The end of each clearance.
    cleared: HashMap<Fingerprint, SystemTime>,
}

impl Answers {
    /// No answers, of a source that answers for hits in the filters with these names.
    #[must_use]
    pub fn new(filters: impl IntoIterator<Item = Arc<str>>) -> Self {
        Self { filters: filters.into_iter().collect(), ..Self::default() }
    }

    /// Records that the compromise of the key with this SubjectPublicKeyInfo (DER) is proved. A
    /// proof counts for every related encoding of the key and never expires. Returns whether the
    /// answer is new.
    pub fn confirm(&mut self, spki: &[u8]) -> bool {
        let fingerprint = Fingerprint::of(spki);
        self.cleared.remove(&fingerprint);
        let is_new = self.confirmed.insert(fingerprint);
        if is_new {
            let hash = KeyHash::of(spki);
            let position = self.confirmed_hashes.partition_point(|other| *other < hash);
            self.confirmed_hashes.insert(position, hash);
        }
        is_new
    }

    /// Records that the source does not know the encoding of a key with this fingerprint. The
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

    /// Removes every clearance for which `keep` returns false. Returns whether one was removed.
    pub fn retain_cleared(
        &mut self,
        mut keep: impl FnMut(&Fingerprint, SystemTime) -> bool,
    ) -> bool {
        let before = self.cleared.len();
        self.cleared.retain(|fingerprint, until| keep(fingerprint, *until));
        self.cleared.len() < before
    }

    /// Replaces the names of the filters whose hits the source answers for.
    pub fn set_filters(&mut self, filters: impl IntoIterator<Item = Arc<str>>) {
        self.filters = filters.into_iter().collect();
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
        !self.confirmed_hashes.is_empty()
            && hashes.iter().any(|hash| self.confirmed_hashes.binary_search(hash).is_ok())
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

/// A handle to the answers in use. Snapshots share it, and the asking task alone replaces them.
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

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_confirmed_key_is_found_by_hash_and_by_fingerprint() {
        let mut answers = Answers::new(["lost".into()]);
        assert!(!answers.may_confirm(&[KeyHash::of(b"0")]));
        for key in 0_u32..100 {
            assert!(answers.confirm(&key.to_be_bytes()));
            assert!(!answers.confirm(&key.to_be_bytes()), "a second time");
        }
        for key in 0_u32..100 {
            let spki = key.to_be_bytes();
            assert!(answers.may_confirm(&[KeyHash::of(b"another"), KeyHash::of(&spki)]));
            assert!(answers.is_confirmed(&Fingerprint::of(&spki)));
        }
        assert!(!answers.may_confirm(&[KeyHash::of(b"another")]));
        assert_eq!(answers.confirmed().len(), 100);
    }

    #[test]
    fn a_clearance_ends_at_its_time_and_never_covers_a_confirmed_key() {
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(1_790_000_000);
        let mut answers = Answers::new(["lost".into()]);
        let fingerprint = Fingerprint::of(b"key");
        answers.clear(fingerprint, now);
        assert!(answers.is_cleared(&fingerprint, now - Duration::from_nanos(1)));
        assert!(!answers.is_cleared(&fingerprint, now));
        assert!(!answers.retain_cleared(|_, until| until >= now));
        assert!(answers.confirm(b"key"));
        assert_eq!(answers.cleared().len(), 0);
        answers.clear(fingerprint, now);
        assert_eq!(answers.cleared_until(&fingerprint), None);
    }

    #[test]
    fn answers_are_about_named_filters_and_a_clearance_can_be_withdrawn() {
        let mut answers = Answers::new(["lost".into()]);
        assert!(answers.covers_filter("lost") && !answers.covers_filter("los"));
        answers.set_filters(["found".into()]);
        assert!(!answers.covers_filter("lost") && answers.covers_filter("found"));
        answers.clear(Fingerprint::of(b"key"), SystemTime::now());
        assert!(answers.withdraw_clearance(&Fingerprint::of(b"key")));
        assert!(!answers.withdraw_clearance(&Fingerprint::of(b"key")));
    }
}

//! One bit for each confirmed key, which a judgement reads before any answer.
//!
//! A clean key needs no look at the answers then: a bit that is clear means that no encoding with
//! this hash is confirmed. The reads overlap with the reads of the filters.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::pkbf::KeyHash;

/// Number of words, a power of two: 64 KiB. With 10,000 confirmed keys, 2 % of the bits are set.
const WORDS: usize = 8192;

/// A set of hashes that may have false positives. Hashes are never removed, because no proof is
/// ever withdrawn.
#[derive(Debug)]
pub(super) struct ConfirmedMarks(Box<[AtomicU64]>);

impl Default for ConfirmedMarks {
    fn default() -> Self {
        Self((0..WORDS).map(|_| AtomicU64::new(0)).collect())
    }
}

impl ConfirmedMarks {
    pub(super) fn add(&self, hash: &KeyHash) {
        let (word, bit) = place(hash);
        if let Some(word) = self.0.get(word) {
            word.fetch_or(bit, Ordering::Release);
        }
    }

    /// Whether `hash` may have been added. There are no false negatives.
    pub(super) fn may_contain(&self, hash: &KeyHash) -> bool {
        let (word, bit) = place(hash);
        self.0.get(word).is_none_or(|word| word.load(Ordering::Acquire) & bit != 0)
    }
}

/// Index of the word of `hash`, and its bit there.
fn place(hash: &KeyHash) -> (usize, u64) {
    let [low, first, second, ..] = hash.first().to_le_bytes();
    let word = usize::from(first) | usize::from(second) << 8;
    (word & (WORDS - 1), 1 << (low & 63))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_added_hash_is_found_and_few_others_are() {
        let marks = ConfirmedMarks::default();
        let hash = |key: u32| KeyHash::from_spki(&key.to_be_bytes());
        assert!((0..1000).all(|key| !marks.may_contain(&hash(key))));
        (0..10_000).for_each(|key| marks.add(&hash(key)));
        assert!((0..10_000).all(|key| marks.may_contain(&hash(key))));
        let others = (10_000..20_000).filter(|key| marks.may_contain(&hash(*key))).count();
        assert!((100..300).contains(&others), "{others} of 10,000 at 2 % set bits");
    }
}

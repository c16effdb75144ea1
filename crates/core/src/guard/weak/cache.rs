//! The results of the checks of the keys that this thread has seen, in bounded memory.
//!
//! A result is a pure function of the key, and of the products of primes if they were checked, so
//! it stays right for every snapshot with these products. Keys are found by their fingerprint. It
//! is a SHA-256, so no key can be made that takes the result of another key. The set of a
//! fingerprint depends on a secret of the process. A client therefore cannot direct keys at one
//! set. A lookup that finds the key allocates nothing.

use std::cell::{Cell, RefCell};
use std::hash::{BuildHasher, RandomState};

use super::WeakChecks;
use crate::spki::Fingerprint;

/// Number of sets. A set has the keys with one hash.
const SETS: usize = 4096;
/// Number of keys in a set; the one that was used longest ago is replaced. In all sets 32,768 keys,
/// 1.4 MiB.
const WAYS: usize = 8;

thread_local! {
    /// The results of this thread, so that workers share nothing.
    static RESULTS: RefCell<Results> = RefCell::default();
    /// Number of keys that this thread has checked.
    static CHECKED: Cell<u64> = const { Cell::new(0) };
}

/// Number of keys that this thread has checked, because it had no result for them. A thread that
/// serves others does so after each check, because a check takes some hundred microseconds.
pub fn keys_checked() -> u64 {
    CHECKED.get()
}

/// The subset of `checks` that the key with this fingerprint fails. `compute` is called with the
/// checks that have no result yet. `products` is the [`SharedPrimes::id`](super::SharedPrimes::id)
/// of the products, of which only the last result is kept.
pub(super) fn failed(
    fingerprint: &Fingerprint,
    checks: WeakChecks,
    products: [u8; 8],
    compute: impl FnOnce(WeakChecks) -> WeakChecks,
) -> WeakChecks {
    let found = RESULTS.with_borrow_mut(|results| results.find(fingerprint));
    let mut known = found.unwrap_or_default();
    let shared = checks.intersection(WeakChecks::SHARED_PRIMES);
    if known.products != products && !shared.is_empty() {
        let (done, failed) = (known.done.without(shared), known.failed.without(shared));
        known = CheckResult { done, failed, products };
    }
    let unknown = checks.without(known.done);
    if unknown.is_empty() {
        return known.failed.intersection(checks);
    }
    CHECKED.set(CHECKED.get().wrapping_add(1));
    let failed = known.failed.union(compute(unknown));
    let result = CheckResult { done: known.done.union(unknown), failed, ..known };
    RESULTS.with_borrow_mut(|results| results.insert(*fingerprint, result));
    failed.intersection(checks)
}

#[derive(Debug, Clone, Copy, Default)]
struct CheckResult {
    done: WeakChecks,
    failed: WeakChecks,
    /// The products that were checked last.
    products: [u8; 8],
}

#[derive(Default)]
struct Results {
    /// The keys of each set, the latest used first. Empty until the first key, as each set is.
    sets: Vec<Vec<(Fingerprint, CheckResult)>>,
    hasher: RandomState,
}

impl Results {
    /// The set of a fingerprint; `None` before the first key.
    fn set(&mut self, fingerprint: &Fingerprint) -> Option<&mut Vec<(Fingerprint, CheckResult)>> {
        let [low, high, ..] = self.hasher.hash_one(fingerprint).to_le_bytes();
        self.sets.get_mut(usize::from(u16::from_le_bytes([low, high])) % SETS)
    }

    /// The result of a key, which becomes the latest used one of its set.
    fn find(&mut self, fingerprint: &Fingerprint) -> Option<CheckResult> {
        let set = self.set(fingerprint)?;
        let position = set.iter().position(|(other, _)| other == fingerprint)?;
        set.get_mut(..=position)?.rotate_right(1);
        set.first().map(|(_, result)| *result)
    }

    /// Adds the result of a key, or replaces it.
    fn insert(&mut self, fingerprint: Fingerprint, result: CheckResult) {
        self.sets.resize_with(SETS, Vec::new);
        let Some(set) = self.set(&fingerprint) else { return };
        set.reserve_exact(WAYS - set.len());
        set.retain(|(other, _)| *other != fingerprint);
        set.truncate(WAYS - 1);
        set.insert(0, (fingerprint, result));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::guard::weak::WeakCheck;

    fn fingerprint(key: u32) -> Fingerprint {
        Fingerprint::of(&key.to_be_bytes())
    }

    #[test]
    fn a_check_is_computed_once_for_each_key() {
        let roca = WeakChecks::from_iter([WeakCheck::Roca]);
        let both = WeakChecks::from_iter([WeakCheck::Roca, WeakCheck::Fermat]);
        let before = keys_checked();
        let mut computed = Vec::new();
        let mut check = |key, checks| {
            failed(&fingerprint(key), checks, [0; 8], |unknown| {
                computed.push((key, unknown));
                unknown.intersection(roca)
            })
        };
        assert_eq!(check(1, roca), roca);
        assert_eq!(check(1, roca), roca);
        assert_eq!(check(1, both), roca);
        assert_eq!(check(1, both.without(roca)), WeakChecks::NONE);
        assert_eq!(check(2, both), roca);
        assert_eq!(check(1, both), roca);
        assert_eq!(computed, [(1, roca), (1, both.without(roca)), (2, both)]);
        assert_eq!(keys_checked() - before, 3);
    }

    #[test]
    fn other_products_are_checked_alone_and_a_look_up_without_them_keeps_their_result() {
        let (all, shared) = (WeakChecks::ALL, WeakChecks::SHARED_PRIMES);
        let mut computed = Vec::new();
        let mut check = |checks, products, found: WeakChecks| {
            failed(&fingerprint(u32::MAX - 1), checks, products, |unknown| {
                computed.push(unknown);
                found
            })
        };
        assert_eq!(check(all, [1; 8], shared), shared);
        assert_eq!(check(all.without(shared), [0; 8], all), WeakChecks::NONE);
        assert_eq!(check(all, [1; 8], all), shared);
        assert_eq!(check(all, [2; 8], WeakChecks::NONE), WeakChecks::NONE);
        assert_eq!(check(all, [1; 8], shared), shared);
        assert_eq!(computed, [all, shared, shared]);
    }

    #[test]
    fn the_memory_is_bounded_and_keys_in_use_stay() {
        let capacity = u32::try_from(SETS * WAYS).unwrap();
        let mut results = Results::default();
        let result = CheckResult { done: WeakChecks::ALL, ..CheckResult::default() };
        let regular = fingerprint(u32::MAX);
        for key in 0..4 * capacity {
            results.insert(fingerprint(key), result);
            if results.find(&regular).is_none() {
                assert_eq!(key, 0, "dropped although it is in use");
                results.insert(regular, result);
            }
        }
        let kept = (0..4 * capacity).filter(|key| results.find(&fingerprint(*key)).is_some());
        let kept = kept.count();
        assert!((SETS * WAYS / 2..SETS * WAYS).contains(&kept), "{kept}");
        assert_eq!(results.sets.len(), SETS);
    }
}

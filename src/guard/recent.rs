//! Recent client keys, against which an updated filter is tested before it is activated.
//!
//! Each worker records the keys that it admits in its own shard. Other threads access a shard only
//! while an update is tested. A shard is bounded: it holds the last 16,384 to 32,768 distinct keys,
//! each as the hashes of its encodings.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex};

use super::KeyEncodings;
use crate::pkbf::KeyHash;

/// The recent client keys of all workers.
#[derive(Debug, Clone, Default)]
pub struct RecentKeys {
    shards: Vec<RecentShard>,
}

/// The recent client keys of one worker.
#[derive(Debug, Clone, Default)]
pub struct RecentShard(Arc<Mutex<Generations>>);

/// Number of keys in a generation, some 3 MiB. A shard has two generations and drops the older one
/// when the newer one is full.
const GENERATION: usize = 1 << 14;

#[derive(Debug, Default)]
struct Generations {
    current: Generation,
    previous: Generation,
}

/// Keys by the index of the service that admitted them and the hash of the presented encoding.
type Generation = HashMap<(usize, KeyHash), KeyEncodings>;

impl RecentKeys {
    /// Shards for the keys that `workers` admit. With 0, no key is recorded.
    #[must_use]
    pub fn new(workers: usize) -> Self {
        Self { shards: (0..workers).map(|_| RecentShard::default()).collect() }
    }

    /// The shard of the worker with this index.
    #[must_use]
    pub fn shard(&self, worker: usize) -> Option<RecentShard> {
        self.shards.get(worker).cloned()
    }

    /// The number of distinct keys for which `is_counted` returns true. The first argument of
    /// `is_counted` is the index of the service that admitted the key. While a shard is being read,
    /// its worker records nothing and does not wait.
    #[must_use]
    pub fn count(&self, is_counted: impl Fn(usize, &KeyEncodings) -> bool) -> usize {
        let mut distinct = HashSet::new();
        for shard in &self.shards {
            let Ok(generations) = shard.0.lock() else { continue };
            let keys = generations.current.iter().chain(&generations.previous);
            let counted = keys.filter(|((service, _), encodings)| is_counted(*service, encodings));
            distinct.extend(counted.map(|((_, key), _)| *key));
        }
        distinct.len()
    }
}

impl RecentShard {
    /// Records that the service with this index admitted the key with this SubjectPublicKeyInfo
    /// (DER). A known key costs a hash and a lookup.
    pub fn record(&self, service: usize, spki: &[u8]) {
        let Ok(mut generations) = self.0.try_lock() else { return }; // an update is being tested
        let key = (service, KeyHash::of(spki));
        if generations.current.contains_key(&key) {
            return;
        }
        let encodings =
            generations.previous.remove(&key).unwrap_or_else(|| KeyEncodings::from_spki(spki));
        if generations.current.len() >= GENERATION {
            generations.previous = std::mem::take(&mut generations.current);
        }
        generations.current.insert(key, encodings);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_counts_once_over_all_workers_and_services() {
        let recent = RecentKeys::new(2);
        for worker in [0, 0, 1] {
            let shard = recent.shard(worker).unwrap();
            shard.record(0, b"one");
            shard.record(1, b"one");
            shard.record(1, b"two");
        }
        assert_eq!(recent.count(|_, _| true), 2);
        assert_eq!(recent.count(|service, _| service == 0), 1);
        assert_eq!(recent.count(|_, _| false), 0);
    }

    #[test]
    fn the_oldest_keys_are_dropped_and_those_recorded_again_are_kept() {
        let recent = RecentKeys::new(1);
        let shard = recent.shard(0).unwrap();
        for key in 0..10 * GENERATION {
            shard.record(0, &key.to_be_bytes());
            shard.record(0, b"a regular client");
        }
        let kept = recent.count(|_, _| true);
        assert!((GENERATION..=2 * GENERATION).contains(&kept), "{kept}");
        let regular = KeyHash::of(b"a regular client");
        assert_eq!(recent.count(|_, key| key.hashes.contains(&regular)), 1);
        let first = KeyHash::of(&0_usize.to_be_bytes());
        assert_eq!(recent.count(|_, key| key.hashes.contains(&first)), 0);
    }

    #[test]
    fn without_workers_nothing_is_recorded() {
        assert!(RecentKeys::new(0).shard(0).is_none());
        assert_eq!(RecentKeys::new(0).count(|_, _| true), 0);
    }
}

//! The client keys seen lately: what an updated filter is tried on before it is put to use.
//!
//! Each worker notes the keys that it admits in a shard of its own, which nobody else touches but
//! for the moment in which an update is tried. Bounded: the keys of the last sixteen to thirty-two
//! thousand distinct clients of a worker, each as the hashes of its encodings.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex};

use super::KeyEncodings;
use crate::pkbf::KeyHash;

/// The client keys seen lately by all workers.
#[derive(Debug, Clone, Default)]
pub struct RecentKeys {
    shards: Vec<RecentShard>,
}

/// The client keys seen lately by one worker.
#[derive(Debug, Clone, Default)]
pub struct RecentShard(Arc<Mutex<Generations>>);

/// How many keys are noted before the oldest are forgotten, half of them at a time: some 3 MiB.
const GENERATION: usize = 1 << 14;

#[derive(Debug, Default)]
struct Generations {
    present: Noted,
    past: Noted,
}

/// By the service that admitted the key, and the key as it was presented.
type Noted = HashMap<(usize, KeyHash), KeyEncodings>;

impl RecentKeys {
    /// Room for the keys that `workers` admit; 0: nobody asks for them, none are noted.
    #[must_use]
    pub fn new(workers: usize) -> Self {
        Self { shards: (0..workers).map(|_| RecentShard::default()).collect() }
    }

    /// Where the worker with this number notes the keys that it admits.
    #[must_use]
    pub fn shard(&self, worker: usize) -> Option<RecentShard> {
        self.shards.get(worker).cloned()
    }

    /// How many distinct keys answer to `wanted`, which is asked with the number of the service that
    /// admitted the key. Workers note nothing while their keys are gone through, and do not wait.
    #[must_use]
    pub fn count(&self, wanted: impl Fn(usize, &KeyEncodings) -> bool) -> usize {
        let mut distinct = HashSet::new();
        for shard in &self.shards {
            let Ok(noted) = shard.0.lock() else { continue };
            let keys = noted.present.iter().chain(&noted.past);
            let wanted = keys.filter(|((service, _), forms)| wanted(*service, forms));
            distinct.extend(wanted.map(|((_, key), _)| *key));
        }
        distinct.len()
    }
}

impl RecentShard {
    /// Notes that the service with this number admitted the key with this SubjectPublicKeyInfo
    /// (DER). For a key that is known it costs a hash and a look-up.
    pub fn note(&self, service: usize, spki: &[u8]) {
        let Ok(mut noted) = self.0.try_lock() else { return }; // an update is being tried
        let key = (service, KeyHash::of(spki));
        if noted.present.contains_key(&key) {
            return;
        }
        let forms = noted.past.remove(&key).unwrap_or_else(|| KeyEncodings::from_spki(spki));
        if noted.present.len() >= GENERATION {
            noted.past = std::mem::take(&mut noted.present);
        }
        noted.present.insert(key, forms);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_counts_once_however_often_and_wherever_it_was_seen() {
        let recent = RecentKeys::new(2);
        for worker in [0, 0, 1] {
            let shard = recent.shard(worker).unwrap();
            shard.note(0, b"one");
            shard.note(1, b"one");
            shard.note(1, b"two");
        }
        assert_eq!(recent.count(|_, _| true), 2);
        assert_eq!(recent.count(|service, _| service == 0), 1);
        assert_eq!(recent.count(|_, _| false), 0);
    }

    #[test]
    fn the_oldest_keys_are_forgotten_and_those_seen_again_are_kept() {
        let recent = RecentKeys::new(1);
        let shard = recent.shard(0).unwrap();
        for key in 0..10 * GENERATION {
            shard.note(0, &key.to_be_bytes());
            shard.note(0, b"a regular client");
        }
        let kept = recent.count(|_, _| true);
        assert!((GENERATION..=2 * GENERATION).contains(&kept), "{kept}");
        let regular = KeyHash::of(b"a regular client");
        assert_eq!(recent.count(|_, forms| forms.hashes.contains(&regular)), 1);
        let first = KeyHash::of(&0_usize.to_be_bytes());
        assert_eq!(recent.count(|_, forms| forms.hashes.contains(&first)), 0);
    }

    #[test]
    fn without_workers_nothing_is_noted() {
        assert!(RecentKeys::new(0).shard(0).is_none());
        assert_eq!(RecentKeys::new(0).count(|_, _| true), 0);
    }
}

//! Recent clients with their key exchange and the algorithm of their key: how far the migration to
//! post-quantum algorithms is.
//!
//! Each worker records the clients that it admits in bounded memory of its own. While that memory
//! is read, its worker records nothing and does not wait.

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use data_encoding::BASE64;
use keygate_core::pkbf::KeyHash;
use keygate_core::spki::Fingerprint;
use keygate_core::tls::KeyExchange;
use keygate_core::unix_time;
use serde::{Deserialize, Serialize};

use crate::metrics::{KeyAlgorithm, Label};

/// Number of clients in a generation: some 2 MiB with P-256 keys and short names, 16 MiB with
/// ML-DSA-87 keys. A worker has two generations and drops the older one when the newer one is full.
const GENERATION: usize = 4096;

/// The recent clients of all workers.
#[derive(Debug, Clone, Default)]
pub struct KeyUses(Arc<Mutex<Vec<KeyUseShard>>>);

/// The recent clients of one worker.
#[derive(Debug, Clone, Default)]
pub(crate) struct KeyUseShard(Arc<Mutex<Generations>>);

/// The newer generation and the older one.
type Generations = [HashMap<ClientOfService, KeyUse>; 2];

/// Id of the service, and the key of the client.
type ClientOfService = (usize, KeyHash);

/// A client of a service.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct KeyUse {
    /// Name of the service.
    pub service: String,
    /// Subject of the certificate, or another name of it.
    pub subject: String,
    /// Fingerprint of the client's key.
    pub fingerprint: String,
    /// Algorithm of the client's key.
    pub key_algorithm: Cow<'static, str>,
    /// Group of the last key exchange; `null` if the last connection resumed a session of TLS 1.2,
    /// which has no hybrid group.
    pub key_exchange: Option<Cow<'static, str>>,
    /// The last address of the client.
    pub address: IpAddr,
    /// When the client connected last, in seconds since the Unix epoch.
    pub last_seen: u64,
    /// SubjectPublicKeyInfo of the client's key (DER), in base64.
    pub spki: String,
}

impl KeyUses {
    /// The memory of a further worker.
    pub(crate) fn shard(&self) -> KeyUseShard {
        let shard = KeyUseShard::default();
        self.shards().push(shard.clone());
        shard
    }

    fn shards(&self) -> MutexGuard<'_, Vec<KeyUseShard>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The clients of each service of the worker with this index, as a JSON array of at most 40
    /// MiB; `null` if there is no such worker.
    pub(crate) fn json(&self, worker: usize) -> serde_json::Result<String> {
        let shard = self.shards().get(worker).cloned();
        let generations = shard.as_ref().map(KeyUseShard::generations);
        let clients = generations.as_deref().map(|it| it.iter().flat_map(HashMap::values));
        serde_json::to_string(&clients.map(Vec::from_iter))
    }

    /// Calls `visit` once with each client of each service that connected since `from`, in seconds
    /// since the Unix epoch.
    pub(crate) fn for_each_since(&self, from: u64, mut visit: impl FnMut(&KeyUse)) {
        let mut visited = HashSet::new();
        for shard in &*self.shards() {
            let generations = shard.generations();
            let since = generations.iter().flatten().filter(|(_, seen)| seen.last_seen >= from);
            since.filter(|(client, _)| visited.insert(**client)).for_each(|(_, seen)| visit(seen));
        }
    }
}

impl KeyUseShard {
    fn generations(&self) -> MutexGuard<'_, Generations> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records a client of the service with this id and name. A known client costs a hash of its
    /// key and a look-up. `subject` is called for a new one.
    pub(crate) fn record(
        &self,
        (id, service): (usize, &str),
        spki: &[u8],
        algorithm: KeyAlgorithm,
        key_exchange: Option<KeyExchange>,
        address: IpAddr,
        subject: impl FnOnce() -> String,
    ) {
        let Ok(mut generations) = self.0.try_lock() else { return }; // being read
        let [current, previous] = &mut *generations;
        let client = (id, KeyHash::from_spki(spki));
        if current.len() >= GENERATION && !current.contains_key(&client) {
            *previous = std::mem::take(current);
        }
        let seen = current.entry(client).or_insert_with(|| {
            previous.remove(&client).unwrap_or_else(|| KeyUse {
                service: service.to_owned(),
                subject: subject(),
                fingerprint: Fingerprint::of(spki).to_string(),
                key_algorithm: algorithm.as_str().into(),
                key_exchange: None,
                address,
                last_seen: 0,
                spki: BASE64.encode(spki),
            })
        });
        seen.key_exchange = key_exchange.map(|group| group.as_str().into());
        (seen.address, seen.last_seen) = (address, unix_time::now());
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    fn record(shard: &KeyUseShard, service: usize, spki: &[u8]) {
        let (address, subject) = (Ipv4Addr::LOCALHOST.into(), || "CN=é".repeat(64));
        shard.record((service, "test"), spki, KeyAlgorithm::Rsa, None, address, subject);
    }

    #[test]
    fn a_client_counts_once_for_each_service_over_all_workers() {
        let uses = KeyUses::default();
        for shard in [uses.shard(), uses.shard()] {
            record(&shard, 0, b"one");
            record(&shard, 1, b"one");
            record(&shard, 1, b"two");
        }
        let count = |from| {
            let mut count = 0;
            uses.for_each_since(from, |_| count += 1);
            count
        };
        assert_eq!((count(0), count(u64::MAX)), (3, 0));
        let clients = |worker| {
            let json = uses.json(worker).unwrap();
            serde_json::from_str::<Option<Vec<KeyUse>>>(&json).unwrap()
        };
        let first = clients(0).unwrap();
        assert_eq!(first.len(), 3);
        let decoded = |it: &KeyUse| BASE64.decode(it.spki.as_bytes()).unwrap();
        let is_of_key = |it: &KeyUse| it.fingerprint == Fingerprint::of(&decoded(it)).to_string();
        assert!(first.iter().all(is_of_key), "{first:?}");
        assert!(clients(2).is_none());
    }

    /// `keygate report` accepts responses of 128 MiB.
    #[test]
    fn the_clients_of_a_worker_are_bounded_with_the_largest_keys() {
        let uses = KeyUses::default();
        let shard = uses.shard();
        for key in 0..3 * GENERATION {
            let spki = [&key.to_be_bytes()[..], &[0; 2614]].concat(); // ML-DSA-87
            record(&shard, 0, &spki);
        }
        let length = uses.json(0).unwrap().len();
        assert!((8 << 20..40 << 20).contains(&length), "{length}");
    }
}

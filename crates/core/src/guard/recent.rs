//! Recent clients, against which an updated filter is tested before it is activated.
//!
//! Each worker records the clients that it admits in its own shard. Other threads access a shard
//! only while an update is tested. A shard is bounded: it holds the last 16,384 to 32,768 distinct
//! clients, each with its certificates and with the hashes and fingerprints of the keys of its
//! path. Long chains make it fewer.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex};
use std::time::SystemTime;

use rustls::pki_types::CertificateDer;
use smallvec::SmallVec;

use super::{Decision, Depth, Guard, Policy, RecordedKey, WeakCheck, WeakChecks};
use crate::pkbf::KeyHash;
use crate::spki::{self, Fingerprint};

/// The recent clients of all workers.
#[derive(Debug, Clone, Default)]
pub struct RecentClients {
    shards: Vec<RecentShard>,
}

/// The recent clients of one worker.
#[derive(Debug, Clone, Default)]
pub struct RecentShard(Arc<Mutex<Generations>>);

/// A client that was admitted recently.
#[derive(Debug, Clone)]
pub struct RecentClient {
    /// Fingerprint of the client's own key.
    pub fingerprint: Fingerprint,
    /// Subject of the client's certificate, or another name of it; at most 100 characters.
    pub subject: Box<str>,
    /// The keys of the whole path, the client's own first, because a later policy may judge all of
    /// them. Clients share the keys of their CAs.
    keys: SmallVec<[Arc<RecordedKey>; 3]>,
    /// The certificates that the client presented last, leaf first.
    presented: Arc<[CertificateDer<'static>]>,
}

/// The recent clients that a condition holds for.
#[derive(Debug, Clone, Default)]
pub struct MatchingClients {
    /// Number of distinct client keys.
    pub count: usize,
    /// Some of the clients, each with the index of the service that admitted it, by subject.
    pub clients: Vec<(usize, RecentClient)>,
}

/// Number of clients in a generation, some 12 MiB, with RSA-4096 keys 20 MiB, with Ed25519 keys 28
/// MiB. A shard has two generations and drops the older one when the newer one is full.
const GENERATION: usize = 1 << 14;

/// Maximum size of the certificates of a generation, 16 MiB: 16,384 chains of 1 KiB. A generation
/// with more is full.
const MAX_CERTIFICATE_BYTES: usize = 16 << 20;

/// Maximum length of a subject in memory, in characters; the rest is cut.
const MAX_SUBJECT_LENGTH: usize = 100;

#[derive(Debug, Default)]
struct Generations {
    current: ClientGeneration,
    previous: ClientGeneration,
}

#[derive(Debug, Default)]
struct ClientGeneration {
    clients: HashMap<ClientPath, RecentClient>,
    /// The keys of CAs, by the hash of the presented encoding.
    issuers: HashMap<KeyHash, Arc<RecordedKey>>,
    /// Size of the certificates of all clients.
    bytes: usize,
}

/// Identifies a client of a service.
#[derive(Debug, PartialEq, Eq, Hash)]
struct ClientPath {
    service: usize,
    /// The presented encodings of the keys of the path, the client's own first.
    path: SmallVec<[KeyHash; 4]>,
}

impl RecentClient {
    /// Whether `policy` rejects the client, if `guard` judges its keys at `now`.
    #[must_use]
    pub fn is_rejected(&self, guard: &Guard, policy: &Policy, now: SystemTime) -> bool {
        let judged = match policy.judge {
            Depth::Chain => self.keys.len(),
            Depth::Leaf => 1,
        };
        let rejects = |primes| {
            let mut verdicts =
                self.keys.iter().take(judged).map(|key| guard.judge_recorded(key, primes, now));
            verdicts.any(|verdict| policy.decide(&verdict) == Decision::Reject)
        };
        let counts_products = [policy.on_weak, policy.on_unchecked].contains(&Decision::Reject)
            && guard.weak_checks.contains(WeakCheck::SharedPrimes);
        let is_named =
            policy.allow.as_ref().is_none_or(|rules| rules.admit(self.presented.first()));
        let primes = guard.shared_primes.as_ref().filter(|_| counts_products);
        !is_named || rejects(None) || primes.is_some_and(|it| rejects(Some(it)))
    }

    /// The certificates that the client presented last, leaf first.
    #[must_use]
    pub fn presented(&self) -> &Arc<[CertificateDer<'static>]> {
        &self.presented
    }
}

impl RecentClients {
    /// Shards for the clients that `workers` admit. With 0, no client is recorded.
    #[must_use]
    pub fn new(workers: usize) -> Self {
        Self { shards: (0..workers).map(|_| RecentShard::default()).collect() }
    }

    /// The shard of the worker with this index.
    #[must_use]
    pub fn shard(&self, worker: usize) -> Option<RecentShard> {
        self.shards.get(worker).cloned()
    }

    /// The indexes of the services with a recorded client.
    #[must_use]
    pub fn services(&self) -> HashSet<usize> {
        let services = self.shards.iter().filter_map(|shard| {
            let generations = shard.0.lock().ok()?;
            let all = generations.current.clients.keys().chain(generations.previous.clients.keys());
            Some(all.map(|key| key.service).collect::<HashSet<_>>())
        });
        services.flatten().collect()
    }

    /// The clients for which `matches` returns true, of which at most `limit` are returned. The
    /// first argument of `matches` is the index of the service that admitted the client. While a
    /// shard is being read, its worker records nothing and does not wait.
    #[must_use]
    pub fn matching(
        &self,
        limit: usize,
        matches: impl Fn(usize, &RecentClient) -> bool,
    ) -> MatchingClients {
        let (mut distinct, mut clients) = (HashSet::new(), Vec::new());
        for shard in &self.shards {
            let Ok(generations) = shard.0.lock() else { continue };
            let all = generations.current.clients.iter().chain(&generations.previous.clients);
            for (key, client) in all.filter(|(key, client)| matches(key.service, client)) {
                if distinct.insert(key.path.first().copied()) && clients.len() < limit {
                    clients.push((key.service, client.clone()));
                }
            }
        }
        clients.sort_by(|(_, one), (_, other)| one.subject.cmp(&other.subject));
        MatchingClients { count: distinct.len(), clients }
    }
}

impl RecentShard {
    /// Records that the service with this index admitted a client that `presented` certificates
    /// with this verified `path`, both leaf first, after a judgement with these weak-key checks.
    /// `subject` is called for a new client. A leaf whose key cannot be read is not recorded.
    pub fn record_path(
        &self,
        service: usize,
        checks: WeakChecks,
        path: &[&CertificateDer<'_>],
        presented: &[CertificateDer<'_>],
        subject: impl FnOnce() -> String,
    ) {
        if path.first().is_some_and(|leaf| spki::of_certificate(leaf).is_ok()) {
            let keys = path.iter().filter_map(|certificate| spki::of_certificate(certificate).ok());
            self.record(service, checks, keys, presented, subject);
        }
    }

    /// Records a client by the SubjectPublicKeyInfo (DER) of each key of its path. A known client
    /// costs a hash of each key and a lookup.
    fn record<'a>(
        &self,
        service: usize,
        checks: WeakChecks,
        path: impl Iterator<Item = &'a [u8]> + Clone,
        presented: &[CertificateDer<'_>],
        subject: impl FnOnce() -> String,
    ) {
        let Ok(mut generations) = self.0.try_lock() else { return }; // an update is being tested
        let key = ClientPath { service, path: path.clone().map(KeyHash::from_spki).collect() };
        let known = generations.current.clients.get(&key);
        // A client may have renewed the certificate of its key.
        if known.is_some_and(|known| *known.presented == *presented) {
            return;
        }
        let known = generations.current.clients.remove(&key);
        if let Some(known) = &known {
            let replaced: usize = known.presented.iter().map(|it| it.len()).sum();
            let bytes = &mut generations.current.bytes;
            *bytes = bytes.saturating_sub(replaced);
        }
        let known = known.or_else(|| generations.previous.clients.remove(&key));
        let current = &mut generations.current;
        if current.clients.len() >= GENERATION || current.bytes >= MAX_CERTIFICATE_BYTES {
            generations.previous = std::mem::take(current);
        }
        let current = &mut generations.current;
        let client = known.or_else(|| current.client(path, checks, subject));
        if let Some(client) = client {
            let presented: Arc<[_]> = presented.iter().map(|it| it.clone().into_owned()).collect();
            current.bytes += presented.iter().map(|certificate| certificate.len()).sum::<usize>();
            current.clients.insert(key, RecentClient { presented, ..client });
        }
    }
}

impl ClientGeneration {
    /// A new client, or `None` if `path` is empty.
    fn client<'a>(
        &mut self,
        mut path: impl Iterator<Item = &'a [u8]>,
        checks: WeakChecks,
        subject: impl FnOnce() -> String,
    ) -> Option<RecentClient> {
        let leaf = path.next()?;
        let mut keys = SmallVec::new();
        keys.push(Arc::new(RecordedKey::new(leaf, checks)));
        keys.extend(path.map(|issuer| {
            let known = self.issuers.entry(KeyHash::from_spki(issuer));
            Arc::clone(known.or_insert_with(|| Arc::new(RecordedKey::new(issuer, checks))))
        }));
        let subject = subject().chars().take(MAX_SUBJECT_LENGTH).collect::<String>().into();
        let presented = Arc::default();
        Some(RecentClient { fingerprint: Fingerprint::of(leaf), subject, keys, presented })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(shard: &RecentShard, service: usize, path: &[&[u8]]) {
        let path = path.iter().copied();
        shard.record(service, WeakChecks::NONE, path, &[], || "CN=client".to_owned());
    }

    fn count(recent: &RecentClients, matches: impl Fn(usize, &RecentClient) -> bool) -> usize {
        recent.matching(0, matches).count
    }

    #[test]
    fn a_client_counts_once_over_all_workers_services_and_paths() {
        let recent = RecentClients::new(2);
        for worker in [0, 0, 1] {
            let shard = recent.shard(worker).unwrap();
            record(&shard, 0, &[b"one"]);
            record(&shard, 1, &[b"one", b"a CA"]);
            record(&shard, 1, &[b"one", b"another CA"]);
            record(&shard, 1, &[b"two", b"a CA"]);
        }
        assert_eq!(count(&recent, |_, _| true), 2);
        assert_eq!(count(&recent, |service, _| service == 0), 1);
        assert_eq!(count(&recent, |_, _| false), 0);
        let ca = KeyHash::from_spki(b"another CA");
        let has_ca = |_, client: &RecentClient| {
            client.keys[1..].iter().any(|it| it.encodings.hashes[0] == ca)
        };
        let found = recent.matching(20, has_ca);
        assert_eq!((found.count, found.clients.len()), (1, 1));
        let (service, client) = &found.clients[0];
        assert_eq!((*service, client.fingerprint), (1, Fingerprint::of(b"one")));
        assert_eq!(&*client.subject, "CN=client");
        assert_eq!(recent.matching(1, |_, _| true).clients.len(), 1);
    }

    #[test]
    fn the_oldest_clients_are_dropped_and_those_recorded_again_are_kept() {
        let recent = RecentClients::new(1);
        let shard = recent.shard(0).unwrap();
        for key in 0..10 * GENERATION {
            record(&shard, 0, &[&key.to_be_bytes()]);
            record(&shard, 0, &[b"a regular client"]);
        }
        let kept = count(&recent, |_, _| true);
        assert!((GENERATION..=2 * GENERATION).contains(&kept), "{kept}");
        let has = |spki: &[u8]| {
            let fingerprint = Fingerprint::of(spki);
            count(&recent, |_, client| client.fingerprint == fingerprint)
        };
        assert_eq!(has(b"a regular client"), 1);
        assert_eq!(has(&0_usize.to_be_bytes()), 0);
    }

    #[test]
    fn a_long_subject_is_cut() {
        let recent = RecentClients::new(1);
        let path = [&b"one"[..]].into_iter();
        recent.shard(0).unwrap().record(0, WeakChecks::NONE, path, &[], || "é".repeat(1000));
        let found = recent.matching(1, |_, _| true);
        assert_eq!(found.clients[0].1.subject.chars().count(), MAX_SUBJECT_LENGTH);
    }

    #[test]
    fn without_workers_nothing_is_recorded() {
        assert!(RecentClients::new(0).shard(0).is_none());
        assert_eq!(count(&RecentClients::new(0), |_, _| true), 0);
    }
}

//! Recently rejected or flagged clients: identity, number of connections, and action.
//!
//! The clients are kept in bounded memory and lost at a restart. If there are more than
//! [`MAX_CLIENTS`], those not seen for the longest time are evicted and counted. Workers share this
//! memory behind a lock, because clean clients never reach it.

mod hit;

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use keygate_core::tls::HandshakeResult;
use keygate_wire::permit::network_of;

pub use self::hit::{HitSource, RecentHit, SERVER_AUTH};

/// Maximum number of clients in memory: about 3 MiB, and ten times that if all names in their
/// certificates have their maximum length; 16 KiB more for each client whose key was found.
/// Further clients evict the oldest.
pub const MAX_CLIENTS: usize = 2000;
/// The place of the clients that are not in memory, for a search that finds none.
pub const CLIENTS_IN_THE_LOG: &str = "Clients with an expired, revoked, unknown or copied \
    certificate are in the log only: see \"handshake failed\"";
/// Number of clients evicted at once. With 10 %, a flood of clients does not scan the map on every
/// insert.
const EVICTED_AT_ONCE: usize = MAX_CLIENTS / 10;

/// The recently rejected or flagged clients.
#[derive(Debug, Clone, Default)]
pub struct RecentHits(Arc<Mutex<Inner>>);

/// All recent hits, and how many are missing.
#[derive(Debug, Clone, Default)]
pub struct AllHits {
    /// The hits, last seen first.
    pub hits: Vec<Arc<RecentHit>>,
    /// Number of hits that were evicted since the start of the process.
    pub evicted: u64,
}

/// The issuer of the last client that failed because of its issuer, and the result, by service.
pub(crate) type FailedIssuers = HashMap<String, (HandshakeResult, String)>;

#[derive(Debug, Default)]
struct Inner {
    hits: HashMap<HitKey, Arc<RecentHit>>,
    evicted: u64,
    failed_issuers: FailedIssuers,
}

/// One client of a service with one verdict and action.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct HitKey {
    service: Arc<str>,
    client: HitClient,
    verdict: &'static str,
    action: &'static str,
    result: Option<&'static str>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum HitClient {
    /// The address of a client without a certificate, if it is known; of IPv6 the /64, because one
    /// host may use all of its addresses.
    Anonymous(Option<IpAddr>),
    /// The fingerprint of the client's key.
    Key(String),
}

impl HitKey {
    fn new(hit: &RecentHit) -> Self {
        let client = match hit.fingerprint() {
            "" => HitClient::Anonymous(hit.address.map(network_of)),
            fingerprint => HitClient::Key(fingerprint.to_owned()),
        };
        let service = hit.service.as_str().into();
        Self { service, client, verdict: hit.verdict, action: hit.action, result: hit.result }
    }

    /// Whether the client may be one of many without a hit: it has no certificate, or no rule names
    /// it.
    fn is_minor(&self) -> bool {
        matches!(self.client, HitClient::Anonymous(_)) || self.result.is_some()
    }
}

impl RecentHits {
    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records a hit, or counts it if the client is in memory.
    pub fn record(&self, hit: RecentHit) {
        let key = HitKey::new(&hit);
        let mut inner = self.inner();
        if let Some(known) = inner.hits.get_mut(&key) {
            let (first_seen, count) = (known.first_seen, known.count.saturating_add(1));
            let evicted = hit.evicted.or(known.evicted);
            // A request for a certificate has no chain.
            let chain = if hit.chain.is_empty() { known.chain.clone() } else { hit.chain };
            *known = Arc::new(RecentHit { first_seen, evicted, count, chain, ..hit });
            return;
        }
        if inner.hits.len() >= MAX_CLIENTS {
            inner.evict_oldest();
        }
        inner.hits.insert(key, Arc::new(hit));
    }

    /// Records the issuer of a client of a service that failed because of it.
    pub(crate) fn record_failed_issuer(
        &self,
        service: &str,
        result: HandshakeResult,
        issuer: String,
    ) {
        self.inner().failed_issuers.insert(service.to_owned(), (result, issuer));
    }

    /// The issuers of the last clients that failed because of them.
    pub(crate) fn failed_issuers(&self) -> FailedIssuers {
        self.inner().failed_issuers.clone()
    }

    /// All hits in memory, last seen first.
    #[must_use]
    pub fn all(&self) -> AllHits {
        let inner = self.inner();
        let mut hits: Vec<_> = inner.hits.values().cloned().collect();
        let evicted = inner.evicted;
        drop(inner); // workers do not wait for the sort
        hits.sort_by(|one, other| {
            let newest = other.last_seen.cmp(&one.last_seen);
            newest.then_with(|| one.fingerprint().cmp(other.fingerprint()))
        });
        AllHits { hits, evicted }
    }
}

impl Inner {
    /// Evicts [`EVICTED_AT_ONCE`] clients. If enough clients have no certificate, or are not named
    /// by a rule, only those are evicted: one attacker can cause many of the first with many
    /// addresses, and one wrong rule all of the second.
    fn evict_oldest(&mut self) {
        let minor = self.hits.keys().filter(|key| key.is_minor()).count();
        let only_minor = minor >= EVICTED_AT_ONCE;
        let may_go = |key: &HitKey| !only_minor || key.is_minor();
        let candidates = self.hits.iter().filter(|(key, _)| may_go(key));
        let mut times: Vec<u64> = candidates.map(|(_, hit)| hit.last_seen).collect();
        times.sort_unstable();
        let Some(newest) = times.get(EVICTED_AT_ONCE - 1).copied() else { return };
        let before = self.hits.len();
        let mut left = EVICTED_AT_ONCE;
        self.hits.retain(|key, hit| {
            let goes = may_go(key) && hit.last_seen <= newest && left > 0;
            left = left.saturating_sub(goes.into());
            !goes
        });
        let evicted = before.saturating_sub(self.hits.len());
        self.evicted = self.evicted.saturating_add(evicted as u64);
    }
}

#[cfg(test)]
mod tests;

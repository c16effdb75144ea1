//! The chains that a verifier has verified, so that a client that connects again costs no signature
//! checks of its certificates.
//!
//! A chain is found by the exact bytes of all certificates that the client presents, within times
//! in which a search finds the same path. Only clients that have proved possession of their key, to
//! keygate or to a host that asks an authorizer, add chains or keep them in use. A client replaces
//! only its own. The proof of possession is never stored. A chain is found by the verifier that
//! verified it only, so that no chain outlives the CAs and revocation lists that it was verified
//! with. `docs/decisions/chain-cache.md` has the reasons.

use std::borrow::Borrow;
use std::cell::RefCell;
use std::collections::HashMap;
use std::hash::{Hash, Hasher};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use rustls::pki_types::CertificateDer;

use super::path::PathRoute;

/// Maximum size of the chains of one thread, which all verifiers share, in bytes: some 800 chains
/// of one certificate. Older chains are discarded.
const MAX_BYTES: usize = 1 << 20;
/// Maximum size of one chain, in bytes. Longer chains are verified in each handshake.
const MAX_CHAIN: usize = 16 << 10;
/// Memory that a chain takes without its certificates, in bytes, rounded up.
const OVERHEAD: usize = 512;

thread_local! {
    /// The chains of this thread, so that workers share nothing.
    static CHAINS: RefCell<Chains> = RefCell::default();
}

/// The part of the cache with the chains of one verifier.
#[derive(Debug)]
pub(super) struct ChainCache {
    /// Number of the verifier, unique in the process.
    id: u64,
}

/// A chain that a verifier has verified.
#[derive(Debug, Clone)]
pub(super) struct VerifiedChain {
    /// The certificates that the client presented, leaf first.
    pub(super) presented: Arc<[CertificateDer<'static>]>,
    pub(super) route: PathRoute,
    /// End of the earliest validity on the path, since the Unix epoch.
    pub(super) not_after: Duration,
    /// The times, in seconds since the Unix epoch, in which a search finds this path.
    pub(super) times: Range<u64>,
}

/// A chain that was found in the cache.
#[derive(Debug)]
pub(super) struct FoundChain {
    pub(super) chain: VerifiedChain,
    /// Whether the chain is among the next to be discarded, unless it is inserted again.
    pub(super) is_old: bool,
}

impl Default for ChainCache {
    fn default() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        Self { id: NEXT.fetch_add(1, Ordering::Relaxed) }
    }
}

impl ChainCache {
    /// The number of the verifier, unique in the process.
    pub(super) fn id(&self) -> u64 {
        self.id
    }

    /// The verified chain of these certificates, completed with `further` ones; `None` if a search
    /// may find another path at `now`, in seconds since the Unix epoch. Changes nothing, because the
    /// certificates may be copies.
    pub(super) fn find(
        &self,
        leaf: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        further: &[CertificateDer<'_>],
        now: u64,
    ) -> Option<FoundChain> {
        CHAINS.with_borrow(|chains| chains.find(self.id, leaf, [intermediates, further], now))
    }

    /// The cache's copy of these certificates, so that the connections of one client share it. Not
    /// a result of a verification.
    pub(super) fn copy_of(
        &self,
        presented: &[CertificateDer<'_>],
    ) -> Option<Arc<[CertificateDer<'static>]>> {
        CHAINS.with_borrow(|Chains { young, old }| {
            let leaf = presented.first()?;
            let known = young.get(self.id, leaf).or_else(|| old.get(self.id, leaf))?;
            (*known.presented == *presented).then(|| Arc::clone(&known.presented))
        })
    }

    /// Adds a chain, in place of the one with the same leaf, after the proof of possession.
    pub(super) fn insert(&self, chain: VerifiedChain) {
        CHAINS.with_borrow_mut(|chains| chains.insert(self.id, chain));
    }

    /// Number of chains of this verifier and this thread.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        CHAINS.with_borrow(|Chains { young, old }| {
            let of_this =
                [young, old].map(|it| it.by_verifier.get(&self.id).map_or(0, HashMap::len));
            of_this.into_iter().sum()
        })
    }
}

/// Chains in two generations. A chain in use is inserted into the young one again. If that is full,
/// it becomes the old one, and the old one is discarded.
#[derive(Debug, Default)]
struct Chains {
    young: Generation,
    old: Generation,
}

#[derive(Debug, Default)]
struct Generation {
    by_verifier: HashMap<u64, HashMap<ByLeaf, VerifiedChain>>,
    bytes: usize,
}

impl Chains {
    fn find(
        &self,
        verifier: u64,
        leaf: &CertificateDer<'_>,
        intermediates: [&[CertificateDer<'_>]; 2],
        now: u64,
    ) -> Option<FoundChain> {
        let young = self.young.get(verifier, leaf);
        let is_old = young.is_none();
        let chain = young.or_else(|| self.old.get(verifier, leaf))?;
        let issuers = chain.presented.get(1..)?;
        let is_same =
            issuers.iter().eq(intermediates.into_iter().flatten()) && chain.times.contains(&now);
        is_same.then(|| FoundChain { chain: chain.clone(), is_old })
    }

    fn insert(&mut self, verifier: u64, chain: VerifiedChain) {
        let size = chain.size();
        if size > MAX_CHAIN {
            return;
        }
        let Some(leaf) = chain.presented.first().map(AsRef::as_ref) else { return };
        self.young.remove(verifier, leaf);
        self.old.remove(verifier, leaf);
        if self.young.bytes.saturating_add(size) > MAX_BYTES / 2 {
            self.old = std::mem::take(&mut self.young);
        }
        self.young.bytes = self.young.bytes.saturating_add(size);
        let by_leaf = self.young.by_verifier.entry(verifier).or_default();
        by_leaf.insert(ByLeaf(Arc::clone(&chain.presented)), chain);
    }
}

impl Generation {
    fn get(&self, verifier: u64, leaf: &[u8]) -> Option<&VerifiedChain> {
        self.by_verifier.get(&verifier)?.get(leaf)
    }

    fn remove(&mut self, verifier: u64, leaf: &[u8]) {
        let by_leaf = self.by_verifier.get_mut(&verifier);
        if let Some(chain) = by_leaf.and_then(|by_leaf| by_leaf.remove(leaf)) {
            self.bytes = self.bytes.saturating_sub(chain.size());
        }
    }
}

impl VerifiedChain {
    fn size(&self) -> usize {
        let certificates = self.presented.iter().map(|certificate| certificate.len());
        certificates.fold(OVERHEAD, usize::saturating_add)
    }
}

/// A chain by its leaf. One leaf has one chain, so that a client replaces only its own.
#[derive(Debug)]
struct ByLeaf(Arc<[CertificateDer<'static>]>);

impl Borrow<[u8]> for ByLeaf {
    fn borrow(&self) -> &[u8] {
        self.0.first().map_or(&[], AsRef::as_ref)
    }
}

impl Hash for ByLeaf {
    fn hash<H: Hasher>(&self, hasher: &mut H) {
        Borrow::<[u8]>::borrow(self).hash(hasher);
    }
}

impl PartialEq for ByLeaf {
    fn eq(&self, other: &Self) -> bool {
        Borrow::<[u8]>::borrow(self) == Borrow::<[u8]>::borrow(other)
    }
}

impl Eq for ByLeaf {}

#[cfg(test)]
mod tests;

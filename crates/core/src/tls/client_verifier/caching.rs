//! Verified chains in the memory of a thread, from which a client that returns is verified without
//! signature checks of its chain.

use std::ops::Range;
use std::sync::Arc;

use rustls::pki_types::{CertificateDer, UnixTime};
use smallvec::SmallVec;

use super::ClientVerifier;
use crate::spki::{self, ValidityPeriod};
use crate::tls::VerifiedPath;
use crate::tls::chain_cache::{FoundChain, VerifiedChain};
use crate::tls::handshake::{self, VerifiedClient};

impl ClientVerifier {
    /// The certificates of a resumed session: the copy that connections of this client share, or a
    /// new one.
    pub(in crate::tls) fn copy_of(
        &self,
        presented: &[CertificateDer<'_>],
    ) -> Arc<[CertificateDer<'static>]> {
        let known = self.chains.as_ref().and_then(|chains| chains.copy_of(presented));
        known.unwrap_or_else(|| presented.iter().map(|it| it.clone().into_owned()).collect())
    }

    /// The verified client out of the cache.
    pub(super) fn cached(
        &self,
        leaf: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Option<VerifiedClient> {
        let chains = self.chains.as_ref()?;
        let FoundChain { chain, is_old } = chains.find(leaf, intermediates, &[], now.as_secs())?;
        let VerifiedChain { presented, route, not_after, times } = chain;
        let path = VerifiedPath::new(route, Arc::clone(&self.anchors), not_after);
        let uncached = is_old.then(|| (chains.id(), times));
        Some(VerifiedClient { path, presented, uncached })
    }

    /// Adds the chain of a client that has just proved that it holds the key of `leaf`, also if an
    /// old generation has it.
    pub(super) fn cache(&self, leaf: &CertificateDer<'_>) {
        let Some(chains) = &self.chains else { return };
        handshake::with_current(|handshake| {
            let Some(client) = handshake.and_then(|it| it.verified.as_mut()) else { return };
            let is_of_leaf = client.presented.first() == Some(leaf);
            match client.uncached.take() {
                Some((id, times)) if is_of_leaf && id == chains.id() => {
                    chains.insert(VerifiedChain {
                        presented: Arc::clone(&client.presented),
                        route: client.path.route().clone(),
                        not_after: client.path.not_after(),
                        times,
                    });
                }
                Some(_) | None => {}
            }
        });
    }

    /// The times around `now`, in seconds since the Unix epoch, in which the result of a search
    /// stays the same: no certificate that could be on a path begins or ends to be valid, and no
    /// revocation list expires. `None` if the dates of a certificate cannot be read.
    pub(super) fn unchanged_times(
        &self,
        presented: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Option<Range<u64>> {
        let presented = presented.iter().map(|certificate| spki::validity(certificate).ok());
        let presented = presented.collect::<Option<SmallVec<[ValidityPeriod; 4]>>>()?;
        let anchors = self.anchors.with_validity().map(|(_, validity)| validity);
        let validities = presented.into_iter().chain(anchors);
        let starts_and_ends = validities.flat_map(|validity| {
            [validity.not_before.as_secs(), validity.not_after.as_secs().saturating_add(1)]
        });
        let crls = self.revocation.iter().flat_map(|revocation| revocation.crls.next_updates());
        let purposes = self.server_auth_until.map(|last| last.as_secs().saturating_add(1));
        let now = now.as_secs();
        let times =
            starts_and_ends.chain(crls).chain(purposes).fold(0..u64::MAX, |times, change| {
                if change <= now {
                    times.start.max(change)..times.end
                } else {
                    times.start..times.end.min(change)
                }
            });
        Some(times)
    }
}

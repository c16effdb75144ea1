//! Chains that another proxy has sent, whose clients have proved possession of their keys to it.

use std::sync::Arc;

use rustls::pki_types::{CertificateDer, UnixTime};

use super::{ClientVerifier, check_count};
use crate::tls::VerifiedPath;
use crate::tls::chain_cache::{ChainCache, FoundChain, VerifiedChain};

impl ClientVerifier {
    /// Completes the chains of [`ClientVerifier::verify_presented`] with `intermediates`, because
    /// most hosts send the leaf alone.
    #[must_use]
    pub fn with_intermediates(self, intermediates: Vec<CertificateDer<'static>>) -> Self {
        // Chains that were completed with others must not be found.
        let chains = self.chains.map(|_| ChainCache::default());
        Self { intermediates, chains, ..self }
    }

    /// The path of a `chain`, leaf first, whose client has proved possession of the key to another
    /// proxy. The same chain is found again without a signature check, within times in which the
    /// result stays the same.
    ///
    /// # Errors
    /// Returns the errors of [`ClientVerifier::verify`].
    pub fn verify_presented(
        &self,
        chain: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<PresentedPath, rustls::Error> {
        let Some((leaf, intermediates)) = chain.split_first() else {
            return Err(rustls::Error::NoCertificatesPresented);
        };
        check_count(intermediates)?;
        let known = self.chains.as_ref().and_then(|chains| {
            chains.find(leaf, intermediates, &self.intermediates, now.as_secs())
        });
        if let Some(FoundChain { chain, is_old }) = known {
            if is_old && let Some(chains) = &self.chains {
                chains.insert(chain.clone());
            }
            let VerifiedChain { presented, route, not_after, times: _ } = chain;
            let path = VerifiedPath::new(route, Arc::clone(&self.anchors), not_after);
            return Ok(PresentedPath { path, presented });
        }
        let presented = chain.iter().map(|certificate| certificate.clone().into_owned());
        let presented: Arc<[_]> = presented.chain(self.intermediates.iter().cloned()).collect();
        let issuers = presented.get(1..).unwrap_or_default();
        let path = self.find_path(leaf, issuers, now)?;
        if let (Some(chains), Some(times)) = (&self.chains, self.unchanged_times(&presented, now)) {
            chains.insert(VerifiedChain {
                presented: Arc::clone(&presented),
                route: path.route().clone(),
                not_after: path.not_after(),
                times,
            });
        }
        Ok(PresentedPath { path, presented })
    }
}

/// The verified path of a chain that another proxy has sent.
#[derive(Debug)]
pub struct PresentedPath {
    path: VerifiedPath,
    /// The certificates that the path has positions in, leaf first.
    presented: Arc<[CertificateDer<'static>]>,
}

impl PresentedPath {
    /// The certificates of the path, leaf first, trust anchor last.
    pub fn certificates(&self) -> impl Iterator<Item = &CertificateDer<'static>> {
        self.path.certificates(&self.presented)
    }
}

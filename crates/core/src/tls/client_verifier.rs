//! The usual checks of client certificates, before their keys are judged.
//!
//! rustls' own verifier reports only whether a chain is acceptable. This one uses the same
//! implementation, rustls-webpki, and keeps the path: it is judged and forwarded, and its dates
//! count. `docs/decisions/client-verification.md` has the reasons.

mod caching;
mod presented;
mod revocation;
mod search;
mod signature_budget;

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustls::client::danger::HandshakeSignatureValid;
use rustls::crypto::aws_lc_rs::default_provider;
use rustls::crypto::{WebPkiSupportedAlgorithms, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{CertificateError, DigitallySignedStruct, DistinguishedName, SignatureScheme};

pub use self::presented::PresentedPath;
use self::revocation::Revocation;
use super::handshake::{self, VerifiedClient};
use super::verification_error::ClientProblem;
use super::{BoundCas, Crls, chain_cache::ChainCache, path::StoredPath};
use super::{TrustAnchors, VerifiedPath};
use crate::tls::{ExpiredCrl, RevocationDepth};

/// Maximum number of certificates that a client may present. rustls-webpki uses at most six
/// intermediates; the rest leaves room for cross-signed ones.
pub const MAX_CERTIFICATES: usize = 10;

/// Verifies chain, validity, revocation and proof of possession of client certificates.
#[derive(Debug)]
pub struct ClientVerifier {
    anchors: Arc<TrustAnchors>,
    hints: Vec<DistinguishedName>,
    /// The largest number of CAs of the file with the same name.
    same_name: usize,
    algorithms: WebPkiSupportedAlgorithms,
    is_mandatory: bool,
    /// Complete the chains of [`ClientVerifier::verify_presented`].
    intermediates: Vec<CertificateDer<'static>>,
    revocation: Option<Revocation>,
    /// The CAs that may vouch for some names only; `None` if each may vouch for all.
    bound_cas: Option<BoundCas>,
    /// The last second in which certificates for servers are accepted, since the Unix epoch.
    server_auth_until: Option<Duration>,
    pub(super) chains: Option<ChainCache>,
}

impl ClientVerifier {
    /// A verifier of clients that `anchors` certified. A client must present a certificate.
    #[must_use]
    pub fn new(anchors: Arc<TrustAnchors>) -> Self {
        Self {
            hints: anchors.hints(),
            same_name: anchors.same_name(),
            anchors,
            algorithms: default_provider().signature_verification_algorithms,
            is_mandatory: true,
            intermediates: Vec::new(),
            revocation: None,
            bound_cas: None,
            server_auth_until: None,
            chains: None,
        }
    }

    /// Accepts clients without a certificate.
    #[must_use]
    pub fn allow_unauthenticated(self) -> Self {
        Self { is_mandatory: false, ..self }
    }

    /// Rejects the certificates on `crls`. Without any list nothing is checked.
    #[must_use]
    pub fn with_crls(self, crls: Arc<Crls>, expired: ExpiredCrl, depth: RevocationDepth) -> Self {
        let revocation = Some(Revocation { crls, expired, depth });
        // Chains that were verified without these lists must not be found.
        let chains = self.chains.map(|_| ChainCache::default());
        Self { revocation, chains, ..self }
    }

    /// Rejects a client with a name that a CA on its path may not vouch for.
    #[must_use]
    pub fn with_bound_cas(self, bound_cas: BoundCas) -> Self {
        let chains = self.chains.map(|_| ChainCache::default());
        Self { bound_cas: Some(bound_cas), chains, ..self }
    }

    /// Accepts certificates whose only purpose is serverAuth, until this time. The path of such a
    /// client expires then.
    #[must_use]
    pub fn accept_server_auth_until(self, end: SystemTime) -> Self {
        let end = end.duration_since(UNIX_EPOCH).unwrap_or_default();
        let server_auth_until = end.checked_sub(Duration::from_secs(1));
        let chains = self.chains.map(|_| ChainCache::default());
        Self { server_auth_until, chains, ..self }
    }

    fn accepts_server_auth(&self, now: UnixTime) -> bool {
        self.server_auth_until.is_some_and(|last| now.as_secs() <= last.as_secs())
    }

    /// Keeps verified chains in bounded memory of each thread. A client that presents the same
    /// certificates again then costs no signature checks of its chain.
    #[must_use]
    pub fn with_chain_cache(self) -> Self {
        Self { chains: Some(ChainCache::default()), ..self }
    }

    /// The CAs whose clients are accepted.
    #[must_use]
    pub fn trust_anchors(&self) -> &Arc<TrustAnchors> {
        &self.anchors
    }

    /// The path from `leaf` to a trust anchor at `now`. The client's possession of the key is
    /// another check.
    ///
    /// # Errors
    /// Returns an error if the client presented more than [`MAX_CERTIFICATES`], or if no path is
    /// valid, unrevoked and for client authentication.
    pub fn verify(
        &self,
        leaf: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<VerifiedPath, rustls::Error> {
        check_count(intermediates)?;
        self.find_path(leaf, intermediates, now)
    }

    /// The path that was stored in a session of this verifier; `None` if there is no such anchor.
    pub(super) fn restore_path(&self, stored: StoredPath) -> Option<VerifiedPath> {
        let StoredPath { route, expiry } = stored;
        let path = VerifiedPath::new(route, Arc::clone(&self.anchors), Duration::from_secs(expiry));
        path.is_complete().then_some(path)
    }
}

/// Checks the number of certificates before any is parsed.
fn check_count(intermediates: &[CertificateDer<'_>]) -> Result<(), rustls::Error> {
    let presented = intermediates.len().saturating_add(1);
    if presented > MAX_CERTIFICATES {
        let allowed = MAX_CERTIFICATES;
        let problem = ClientProblem::TooManyCertificates { presented, allowed };
        return Err(CertificateError::from(problem).into());
    }
    Ok(())
}

impl ClientCertVerifier for ClientVerifier {
    fn client_auth_mandatory(&self) -> bool {
        self.is_mandatory
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &self.hints
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, rustls::Error> {
        if let Some(client) = self.cached(end_entity, intermediates, now) {
            handshake::record_verified(|| client);
            return Ok(ClientCertVerified::assertion());
        }
        let path = self.verify(end_entity, intermediates, now)?;
        handshake::record_verified(|| {
            let client = VerifiedClient::new(path, end_entity, intermediates);
            if let Some(chains) = &self.chains {
                let times = self.unchanged_times(&client.presented, now);
                let uncached = times.map(|times| (chains.id(), times));
                return VerifiedClient { uncached, ..client };
            }
            client
        });
        Ok(ClientCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let valid = verify_tls12_signature(message, cert, dss, &self.algorithms)?;
        self.cache(cert);
        Ok(valid)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let valid = verify_tls13_signature(message, cert, dss, &self.algorithms)?;
        self.cache(cert);
        Ok(valid)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }
}

#[cfg(test)]
mod tests;

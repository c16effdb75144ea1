//! The usual checks of client certificates, before their keys are judged.
//!
//! rustls' own verifier reports only whether a chain is acceptable. This one uses the same
//! implementation, rustls-webpki, and keeps the path: it is judged and forwarded, and its dates
//! count. `docs/decisions/client-verification.md` has the reasons.

#[cfg(feature = "proxy")]
mod caching;
#[cfg(feature = "proxy")]
mod presented;
#[cfg(feature = "proxy")]
mod revocation;

use std::cell::Cell;
use std::sync::Arc;
use std::time::Duration;

use rustls::client::danger::HandshakeSignatureValid;
use rustls::crypto::aws_lc_rs::default_provider;
use rustls::crypto::{WebPkiSupportedAlgorithms, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, TrustAnchor, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{DigitallySignedStruct, DistinguishedName, SignatureScheme};
use smallvec::{SmallVec, smallvec};
use webpki::{EndEntityCert, KeyPurposeIdIter, KeyUsage};

#[cfg(feature = "proxy")]
pub use self::presented::PresentedPath;
#[cfg(feature = "proxy")]
use self::revocation::Revocation;
use super::handshake::{self, VerifiedClient};
use super::path::PathRoute;
use super::verification_error::{TooManyCertificates, certificate_error, other};
#[cfg(feature = "proxy")]
use super::{Crls, chain_cache::ChainCache, path::StoredPath};
use super::{TrustAnchors, VerifiedPath};
#[cfg(feature = "proxy")]
use crate::config::ExpiredCrl;
#[cfg(feature = "proxy")]
use crate::guard::Depth;
use crate::spki;

/// Maximum number of certificates that a client may present. rustls-webpki uses at most six
/// intermediates; the rest leaves room for cross-signed ones.
pub const MAX_CERTIFICATES: usize = 10;

/// Maximum number of certificates that the search for a path visits. A path has eight certificates
/// at most. Without this limit, nine intermediates whose names refer to each other in a circle cost
/// 79,000 visits, before any proof of possession.
const MAX_VISITS: u32 = 24;

/// Verifies chain, validity, revocation and proof of possession of client certificates.
#[derive(Debug)]
pub struct ClientVerifier {
    anchors: Arc<TrustAnchors>,
    subjects: Vec<DistinguishedName>,
    algorithms: WebPkiSupportedAlgorithms,
    is_mandatory: bool,
    /// Complete the chains of [`ClientVerifier::verify_presented`].
    #[cfg(feature = "proxy")]
    intermediates: Vec<CertificateDer<'static>>,
    #[cfg(feature = "proxy")]
    revocation: Option<Revocation>,
    #[cfg(feature = "proxy")]
    pub(super) chains: Option<ChainCache>,
}

impl ClientVerifier {
    /// A verifier of clients that `anchors` certified. A client must present a certificate.
    #[must_use]
    pub fn new(anchors: Arc<TrustAnchors>) -> Self {
        Self {
            subjects: anchors.store.subjects(),
            anchors,
            algorithms: default_provider().signature_verification_algorithms,
            is_mandatory: true,
            #[cfg(feature = "proxy")]
            intermediates: Vec::new(),
            #[cfg(feature = "proxy")]
            revocation: None,
            #[cfg(feature = "proxy")]
            chains: None,
        }
    }

    /// Accepts clients without a certificate.
    #[must_use]
    pub fn allow_unauthenticated(self) -> Self {
        Self { is_mandatory: false, ..self }
    }

    /// Rejects the certificates on `crls`. Without any list nothing is checked.
    #[cfg(feature = "proxy")]
    #[must_use]
    pub fn with_crls(self, crls: Arc<Crls>, expired: ExpiredCrl, depth: Depth) -> Self {
        let revocation = Some(Revocation { crls, expired, depth });
        // Chains that were verified without these lists must not be found.
        let chains = self.chains.map(|_| ChainCache::default());
        Self { revocation, chains, ..self }
    }

    /// Keeps verified chains in bounded memory of each thread. A client that presents the same
    /// certificates again then costs no signature checks of its chain.
    #[cfg(feature = "proxy")]
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

    /// [`ClientVerifier::verify`] without the maximum of certificates.
    fn find_path(
        &self,
        leaf: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<VerifiedPath, rustls::Error> {
        let parsed = EndEntityCert::try_from(leaf).map_err(certificate_error)?;
        let path = parsed
            .verify_for_usage(
                self.algorithms.all,
                &self.anchors.store.roots,
                intermediates,
                now,
                ClientPurpose::default(),
                None,
                Some(&|path| self.check(path, now)),
            )
            .map_err(certificate_error)?;
        let path = self.verified_path(&path, leaf, intermediates);
        path.ok_or_else(|| certificate_error(webpki::Error::UnknownIssuer).into())
    }

    /// The path that was stored in a session of this verifier; `None` if there is no such anchor.
    #[cfg(feature = "proxy")]
    pub(super) fn restore_path(&self, stored: StoredPath) -> Option<VerifiedPath> {
        let StoredPath { route, expiry } = stored;
        let path = VerifiedPath::new(route, Arc::clone(&self.anchors), Duration::from_secs(expiry));
        path.anchor().is_some().then_some(path)
    }

    /// Checks the parts of a candidate path that rustls-webpki does not check: the dates of its
    /// anchor, and revocation. After an error the search goes on.
    fn check(&self, path: &webpki::VerifiedPath<'_>, now: UnixTime) -> Result<(), webpki::Error> {
        let anchor = self.index_of(path.anchor()).ok_or(webpki::Error::UnknownIssuer)?;
        let validity = self.anchors.validity(anchor).ok_or(webpki::Error::UnknownIssuer)?;
        let time = Duration::from_secs(now.as_secs());
        if time < validity.not_before {
            let not_before = UnixTime::since_unix_epoch(validity.not_before);
            return Err(webpki::Error::CertNotValidYet { time: now, not_before });
        }
        if !validity.contains(time) {
            let not_after = UnixTime::since_unix_epoch(validity.not_after);
            return Err(webpki::Error::CertExpired { time: now, not_after });
        }
        #[cfg(feature = "proxy")]
        if let Some(revocation) = &self.revocation {
            let anchor_certificate =
                self.anchors.certificates.get(anchor).ok_or(webpki::Error::UnknownIssuer)?;
            revocation.check(path, anchor_certificate, now)?;
        }
        Ok(())
    }

    fn verified_path(
        &self,
        path: &webpki::VerifiedPath<'_>,
        leaf: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
    ) -> Option<VerifiedPath> {
        let anchor = self.index_of(path.anchor())?;
        let mut not_after = self.anchors.validity(anchor)?.not_after;
        not_after = not_after.min(spki::not_after(leaf).ok()?);
        let mut presented: SmallVec<[u8; 8]> = smallvec![0];
        for certificate in path.intermediate_certificates() {
            let certificate = certificate.der();
            let index = intermediates.iter().position(|presented| *presented == certificate)?;
            presented.push(u8::try_from(index.checked_add(1)?).ok()?);
            not_after = not_after.min(spki::not_after(&certificate).ok()?);
        }
        let route = PathRoute { presented, anchor: u32::try_from(anchor).ok()? };
        Some(VerifiedPath::new(route, Arc::clone(&self.anchors), not_after))
    }

    /// The index of a trust anchor that rustls-webpki borrowed from the store.
    fn index_of(&self, anchor: &TrustAnchor<'_>) -> Option<usize> {
        let address = std::ptr::from_ref(anchor).addr();
        let roots = &self.anchors.store.roots;
        roots.iter().position(|root| std::ptr::from_ref(root).addr() == address)
    }
}

/// Checks the number of certificates before any is parsed.
fn check_count(intermediates: &[CertificateDer<'_>]) -> Result<(), rustls::Error> {
    let presented = intermediates.len().saturating_add(1);
    if presented > MAX_CERTIFICATES {
        let allowed = MAX_CERTIFICATES;
        return Err(other(TooManyCertificates { presented, allowed }).into());
    }
    Ok(())
}

/// Requires the purpose "client authentication" of every certificate that the search for a path
/// visits, and counts them. rustls-webpki has limits of its own, which are far higher.
#[derive(Debug, Default)]
struct ClientPurpose {
    visits: Cell<u32>,
}

impl webpki::ExtendedKeyUsageValidator for ClientPurpose {
    fn validate(&self, purposes: KeyPurposeIdIter<'_, '_>) -> Result<(), webpki::Error> {
        self.visits.set(self.visits.get().saturating_add(1));
        if self.visits.get() > MAX_VISITS {
            return Err(webpki::Error::MaximumPathBuildCallsExceeded); // ends the search
        }
        KeyUsage::client_auth().validate(purposes)
    }
}

impl ClientCertVerifier for ClientVerifier {
    fn client_auth_mandatory(&self) -> bool {
        self.is_mandatory
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &self.subjects
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, rustls::Error> {
        #[cfg(feature = "proxy")]
        if let Some(client) = self.cached(end_entity, intermediates, now) {
            handshake::record_verified(|| client);
            return Ok(ClientCertVerified::assertion());
        }
        let path = self.verify(end_entity, intermediates, now)?;
        handshake::record_verified(|| {
            let client = VerifiedClient::new(path, end_entity, intermediates);
            #[cfg(feature = "proxy")]
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
        #[cfg(feature = "proxy")]
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
        #[cfg(feature = "proxy")]
        self.cache(cert);
        Ok(valid)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }
}

#[cfg(test)]
mod tests;

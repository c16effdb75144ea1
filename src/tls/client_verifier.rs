//! The usual checks of client certificates, before their keys are judged.
//!
//! rustls' own verifier reports only whether a chain is acceptable. This one uses the same
//! implementation, rustls-webpki, and keeps the path: it is judged and forwarded, and its dates
//! count. `docs/decisions/client-verification.md` has the reasons.

#[cfg(feature = "proxy")]
mod revocation;

use std::cell::Cell;
#[cfg(feature = "proxy")]
use std::ops::Range;
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
use self::revocation::Revocation;
use super::handshake::{self, VerifiedClient};
use super::path::PathRoute;
use super::verification_error::{TooManyCertificates, certificate_error, other};
#[cfg(feature = "proxy")]
use super::{
    Crls, Handshake,
    chain_cache::{ChainCache, FoundChain, VerifiedChain},
    path::StoredPath,
};
use super::{TrustAnchors, VerifiedPath};
#[cfg(feature = "proxy")]
use crate::config::ExpiredCrl;
#[cfg(feature = "proxy")]
use crate::guard::Depth;
use crate::spki;
#[cfg(feature = "proxy")]
use crate::spki::ValidityPeriod;

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

    /// Completes the chains of [`ClientVerifier::verify_presented`] with `intermediates`, because
    /// most hosts send the leaf alone.
    #[cfg(feature = "proxy")]
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
    #[cfg(feature = "proxy")]
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
            chains.find_completed(leaf, intermediates, &self.intermediates, now.as_secs())
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

    /// The CAs whose clients are accepted.
    #[must_use]
    pub fn trust_anchors(&self) -> &Arc<TrustAnchors> {
        &self.anchors
    }

    /// The path from `leaf` to a trust anchor at `now`. The client's possession of the key is another
    /// check.
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

    /// The certificates of a resumed session: the copy that connections of this client share, or a
    /// new one.
    #[cfg(feature = "proxy")]
    pub(super) fn copy_of(
        &self,
        presented: &[CertificateDer<'_>],
    ) -> Arc<[CertificateDer<'static>]> {
        let known = self.chains.as_ref().and_then(|chains| chains.copy_of(presented));
        known.unwrap_or_else(|| presented.iter().map(|it| it.clone().into_owned()).collect())
    }

    /// The verified client out of the cache.
    #[cfg(feature = "proxy")]
    fn cached(
        &self,
        leaf: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Option<VerifiedClient> {
        let chains = self.chains.as_ref()?;
        let FoundChain { chain, is_old } = chains.find(leaf, intermediates, now.as_secs())?;
        let VerifiedChain { presented, route, not_after, times } = chain;
        let path = VerifiedPath::new(route, Arc::clone(&self.anchors), not_after);
        let uncached = is_old.then(|| (chains.id(), times));
        Some(VerifiedClient { path, presented, uncached })
    }

    /// Adds the chain of a client that has just proved that it holds the key of `leaf`, also if an
    /// old generation has it.
    #[cfg(feature = "proxy")]
    fn cache(&self, leaf: &CertificateDer<'_>) {
        let Some(chains) = &self.chains else { return };
        handshake::with_current(|handshake| {
            let Some(client) = handshake.and_then(Handshake::verified_mut) else { return };
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
    #[cfg(feature = "proxy")]
    fn unchanged_times(
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
        let now = now.as_secs();
        let times = starts_and_ends.chain(crls).fold(0..u64::MAX, |times, change| {
            if change <= now {
                times.start.max(change)..times.end
            } else {
                times.start..times.end.min(change)
            }
        });
        Some(times)
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

/// The verified path of a chain that another proxy has sent.
#[cfg(feature = "proxy")]
#[derive(Debug)]
pub struct PresentedPath {
    path: VerifiedPath,
    /// The certificates that the path has positions in, leaf first.
    presented: Arc<[CertificateDer<'static>]>,
}

#[cfg(feature = "proxy")]
impl PresentedPath {
    /// The certificates of the path, leaf first, trust anchor last.
    pub fn certificates(&self) -> impl Iterator<Item = &CertificateDer<'static>> {
        self.path.without_anchor(&self.presented).chain(self.path.anchor())
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

//! The client verifier: the usual checks first, then the judgement of the key.
//!
//! rustls asks for the chain (`verify_client_cert`) before the client has shown that it holds the
//! key, and for the signature afterwards. The key is judged in the latter, so that nobody can raise
//! an alarm, or ask whether a key is in a filter, with a copied certificate. Intermediates, of whose
//! keys no client shows anything, are judged in the former, for a policy that asks for them.

use std::cell::RefCell;
use std::sync::Arc;
use std::time::SystemTime;

use rustls::client::danger::HandshakeSignatureValid;
use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{CertificateError, DigitallySignedStruct, DistinguishedName, SignatureScheme};

use super::sessions;
use crate::guard::{CurrentGuard, Decision, Depth, Policy, RejectWith, Verdict};

/// Accepts whom another verifier accepts, unless the policy rejects the verdict on the key.
///
/// A refused client gets the alert `access_denied`. Resumed sessions do not come here: judge them
/// after the handshake, as keygate does.
///
/// ```
/// use std::sync::Arc;
/// use keygate::guard::{CurrentGuard, Guard, NamedFilter, Policy};
/// use keygate::pkbf::{Filter, Parameters};
/// use keygate::tls::KeyVerifier;
/// use rustls::server::WebPkiClientVerifier;
/// use rustls::{RootCertStore, ServerConfig, crypto::aws_lc_rs::default_provider};
///
/// # let key = rcgen::KeyPair::generate()?;
/// # let certificate = rcgen::CertificateParams::default().self_signed(&key)?;
/// # let (chain, private_key) = (vec![certificate.der().clone()], key.serialize_der().try_into()?);
/// # let mut trust_anchors = RootCertStore::empty();
/// # trust_anchors.add(certificate.der().clone())?;
/// # let filter = Filter::new(Parameters::for_entries(1000, 1e-6)?)?;
/// let provider = Arc::new(default_provider());
/// let inner = WebPkiClientVerifier::builder_with_provider(trust_anchors.into(), provider.clone())
///     .build()?;
/// let lost = NamedFilter { name: "lost".into(), filter, sha256: [0; 32] };
/// let guard = CurrentGuard::from(Guard::new(vec![Arc::new(lost)]));
/// let verifier = KeyVerifier::new(inner, guard.clone(), Policy::default());
/// let config = ServerConfig::builder_with_provider(provider)
///     .with_safe_default_protocol_versions()?
///     .with_client_cert_verifier(Arc::new(verifier))
///     .with_single_cert(chain, private_key)?;
/// // Later, with another filter; handshakes that are under way meet it too:
/// # let filter = Filter::new(Parameters::for_entries(1000, 1e-6)?)?;
/// let lost = NamedFilter { name: "lost".into(), filter, sha256: [0; 32] };
/// guard.replace(Arc::new(Guard::new(vec![Arc::new(lost)])));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct KeyVerifier {
    inner: Arc<dyn ClientCertVerifier>,
    guard: CurrentGuard,
    policy: Policy,
}

/// A client that was refused in the handshake.
#[derive(Debug, Clone)]
pub struct RejectedClient {
    /// The certificates that the client presented, leaf first: the leaf alone if its key was
    /// refused, which the client has then proved to hold.
    pub chain: Vec<CertificateDer<'static>>,
    /// What is known of its key; `None` if the usual checks failed, and of a certificate that
    /// anybody may have presented.
    pub verdict: Option<Verdict>,
}

impl RejectedClient {
    /// Tells whoever drives the handshake; outside [`drive_handshake`] nobody asked.
    fn tell(self) {
        let _ = REJECTED.try_with(|observed| observed.replace(Some(self)));
    }

    fn unverified(leaf: &CertificateDer<'_>) -> Self {
        Self { chain: vec![leaf.clone().into_owned()], verdict: None }
    }
}

tokio::task_local! {
    /// rustls hands nothing back from a verifier that refuses; this does, for one handshake.
    static REJECTED: RefCell<Option<RejectedClient>>;
}

/// Drives a handshake and returns its outcome, with the client that a [`KeyVerifier`] refused in
/// it.
/// Sessions that it makes end with the client's chain.
pub async fn drive_handshake<T>(handshake: impl Future<Output = T>) -> (T, Option<RejectedClient>) {
    let observed = async { (handshake.await, REJECTED.with(RefCell::take)) };
    sessions::ending_with_the_chain(REJECTED.scope(RefCell::default(), observed)).await
}

impl KeyVerifier {
    /// Asks `inner` first; `guard` and `policy` have the last word.
    #[must_use]
    pub fn new(inner: Arc<dyn ClientCertVerifier>, guard: CurrentGuard, policy: Policy) -> Self {
        Self { inner, guard, policy }
    }

    /// Judges the certificate at `place` of what the client presented.
    fn judge(
        &self,
        leaf: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        place: usize,
    ) -> Result<(), rustls::Error> {
        let mut chain = std::iter::once(leaf).chain(intermediates);
        let certificate = chain.clone().nth(place).map_or(&[][..], std::slice::from_ref);
        let verdict = self.guard.load().judge(certificate, Depth::Leaf, SystemTime::now());
        let verdict = verdict.at(place);
        match (self.policy.decide(&verdict), self.policy.reject_with) {
            (Decision::Admit | Decision::Annotate | Decision::Flag, _) => Ok(()),
            // It is told once there is somebody to tell it to.
            (Decision::Reject, RejectWith::Http403) => Ok(()),
            (Decision::Reject, RejectWith::Alert) => {
                let alert = match verdict {
                    Verdict::Confirmed(_) => CertificateError::Revoked,
                    Verdict::Allowed
                    | Verdict::Clean
                    | Verdict::Listed(_)
                    | Verdict::Probable(_)
                    | Verdict::Unchecked => CertificateError::ApplicationVerificationFailure,
                };
                let chain = chain.by_ref().map(|cert| cert.clone().into_owned()).collect();
                RejectedClient { chain, verdict: Some(verdict) }.tell();
                Err(alert.into())
            }
        }
    }
}

impl ClientCertVerifier for KeyVerifier {
    fn offer_client_auth(&self) -> bool {
        self.inner.offer_client_auth()
    }

    fn client_auth_mandatory(&self) -> bool {
        self.inner.client_auth_mandatory()
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.inner.root_hint_subjects()
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, rustls::Error> {
        let verified = self.inner.verify_client_cert(end_entity, intermediates, now);
        let verified = verified.inspect_err(|_| RejectedClient::unverified(end_entity).tell())?;
        sessions::note_chain(end_entity, intermediates);
        if self.policy.judge == Depth::Chain {
            (1..=intermediates.len())
                .try_for_each(|place| self.judge(end_entity, intermediates, place))?;
        }
        Ok(verified)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let valid = self.inner.verify_tls12_signature(message, cert, dss);
        let valid = valid.inspect_err(|_| RejectedClient::unverified(cert).tell())?;
        self.judge(cert, &[], 0)?;
        Ok(valid)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let valid = self.inner.verify_tls13_signature(message, cert, dss);
        let valid = valid.inspect_err(|_| RejectedClient::unverified(cert).tell())?;
        self.judge(cert, &[], 0)?;
        Ok(valid)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.inner.supported_verify_schemes()
    }
}

//! The client verifier: the usual checks first, then the judgement of the key.
//!
//! rustls verifies the chain (`verify_client_cert`) before the client has proved that it holds the
//! key, and the signature afterwards. The leaf's key is judged with the signature. A copied
//! certificate can therefore neither raise an alarm nor reveal whether its key is in a filter.
//! Clients prove nothing about the keys of intermediates. A policy that judges the chain judges
//! those in `verify_client_cert`.

use std::sync::Arc;
use std::time::SystemTime;

use rustls::client::danger::HandshakeSignatureValid;
use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{CertificateError, DigitallySignedStruct, DistinguishedName, SignatureScheme};

use super::handshake;
use crate::guard::{CurrentGuard, Decision, Depth, Policy, RejectWith, VerdictKind};

/// Accepts the clients that another verifier accepts, unless the policy rejects the verdict on
/// their key.
///
/// A rejected client gets the alert `access_denied`. rustls calls no verifier when a client resumes
/// a session. Turn off session storage and tickets, or judge the client after the handshake.
///
/// ```
/// use std::sync::Arc;
/// use keygate::guard::{CurrentGuard, Guard, NamedFilter, Policy};
/// use keygate::pkbf::{Filter, Parameters};
/// use keygate::tls::KeyVerifier;
/// use rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};
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
/// let mut config = ServerConfig::builder_with_provider(provider)
///     .with_safe_default_protocol_versions()?
///     .with_client_cert_verifier(Arc::new(verifier))
///     .with_single_cert(chain, private_key)?;
/// config.session_storage = Arc::new(NoServerSessionStorage {});
/// config.send_tls13_tickets = 0;
/// // Later, with another filter; it applies to handshakes in progress as well:
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

impl KeyVerifier {
    /// A verifier that accepts what `inner` accepts, unless `policy` rejects the verdict of
    /// `guard`.
    #[must_use]
    pub fn new(inner: Arc<dyn ClientCertVerifier>, guard: CurrentGuard, policy: Policy) -> Self {
        Self { inner, guard, policy }
    }

    /// Judges the certificate at `position` of the client's chain.
    fn judge(
        &self,
        leaf: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        position: usize,
    ) -> Result<(), rustls::Error> {
        let certificate = std::iter::once(leaf).chain(intermediates).nth(position);
        let certificate = certificate.map_or(&[][..], std::slice::from_ref);
        let verdict = self.guard.load().judge(certificate, Depth::Leaf, SystemTime::now());
        let verdict = verdict.at(position);
        match (self.policy.decide(&verdict), self.policy.reject_with) {
            (Decision::Admit | Decision::Annotate | Decision::Flag, _) => Ok(()),
            // The client gets the status 403 once it sends a request.
            (Decision::Reject, RejectWith::Http403) => Ok(()),
            (Decision::Reject, RejectWith::Alert) => {
                let error = match verdict.kind() {
                    VerdictKind::Confirmed => CertificateError::Revoked,
                    VerdictKind::Allowed
                    | VerdictKind::Clean
                    | VerdictKind::Listed
                    | VerdictKind::Probable
                    | VerdictKind::Unchecked => CertificateError::ApplicationVerificationFailure,
                };
                handshake::report_rejected(leaf, intermediates, Some(verdict));
                Err(error.into())
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
        let verified =
            verified.inspect_err(|_| handshake::report_rejected(end_entity, &[], None))?;
        handshake::report_verified(end_entity, intermediates);
        if self.policy.judge == Depth::Chain {
            (1..=intermediates.len())
                .try_for_each(|position| self.judge(end_entity, intermediates, position))?;
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
        let valid = valid.inspect_err(|_| handshake::report_rejected(cert, &[], None))?;
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
        let valid = valid.inspect_err(|_| handshake::report_rejected(cert, &[], None))?;
        self.judge(cert, &[], 0)?;
        Ok(valid)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.inner.supported_verify_schemes()
    }
}

//! The client verifier: the usual checks first, then the judgement of the keys.
//!
//! rustls verifies the chain (`verify_client_cert`) before the client has proved that it holds the
//! key, and the signature afterwards. All keys on the path are judged with the signature. A copied
//! certificate can therefore neither raise an alarm nor reveal whether any key is in a filter.

use std::fmt;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use rustls::client::danger::HandshakeSignatureValid;
use rustls::crypto::aws_lc_rs::default_provider;
use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::server::{NoServerSessionStorage, ResolvesServerCert};
use rustls::{
    CertificateError, DigitallySignedStruct, DistinguishedName, ServerConfig, ServerConnection,
    SignatureScheme,
};
use smallvec::SmallVec;

use super::handshake::{self, Handshake, VerifiedClient};
use super::verification_error::ClientProblem;
use crate::guard::{
    CurrentGuard, Decision, Depth, Guard, Judgement, NameCheck, Policy, RejectWith, VerdictKind,
};
use crate::spki::{self, Algorithm, PublicKey};

/// Minimum length of an RSA modulus whose signatures are verified, in bits.
const MIN_RSA_BITS: usize = 2048;

/// Accepts the clients that another verifier accepts, unless the policy rejects the verdict on
/// their keys.
///
/// A rejected client gets the alert `access_denied`.
///
/// # Resumption
///
/// rustls calls no verifier when a client resumes a session, and a [`ServerConfig`] of rustls keeps
/// 256 sessions by default. [`KeyVerifier::server_config`] makes a configuration without
/// resumption:
///
/// ```
/// use std::sync::Arc;
/// use keygate_core::guard::{CurrentGuard, Guard, NamedFilter, Policy};
/// use keygate_core::pkbf::{Filter, Parameters};
/// use keygate_core::tls::{ClientVerifier, KeyVerifier, TrustAnchors};
/// use rustls::crypto::aws_lc_rs::default_provider;
/// use rustls::sign::{CertifiedKey, SingleCertAndKey};
///
/// # let key = rcgen::KeyPair::generate()?;
/// # let certificate = rcgen::CertificateParams::default().self_signed(&key)?;
/// # let (chain, private_key) = (vec![certificate.der().clone()], key.serialize_der().try_into()?);
/// # let cas = vec![certificate.der().clone()];
/// # let filter = Filter::new(Parameters::for_entries(1000, 1e-6)?)?;
/// let clients = Arc::new(ClientVerifier::new(Arc::new(TrustAnchors::new(cas)?)));
/// let lost = NamedFilter { name: "lost".into(), filter, sha256: [0; 32] };
/// let guard = CurrentGuard::from(Guard::new(vec![Arc::new(lost)]));
/// let verifier = KeyVerifier::new(clients, guard.clone(), Policy::default());
/// let certificate = CertifiedKey::from_der(chain, private_key, &default_provider())?;
/// let config = verifier.server_config(Arc::new(SingleCertAndKey::from(certificate)))?;
/// // Later, with another filter; it applies to handshakes in progress as well:
/// # let filter = Filter::new(Parameters::for_entries(1000, 1e-6)?)?;
/// let lost = NamedFilter { name: "lost".into(), filter, sha256: [0; 32] };
/// guard.replace(Arc::new(Guard::new(vec![Arc::new(lost)])));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// A server that resumes sessions must call [`KeyVerifier::judge_connection`] after each handshake,
/// and close the connection on an error. The same call judges an open connection after the guard
/// was replaced.
///
/// # Clients that the handshake accepts
///
/// rustls calls no verifier for a client without a certificate, which the inner verifier may
/// accept. With [`RejectWith::Http403`] the handshake accepts rejected keys as well. In both cases
/// the server must call [`KeyVerifier::judge_connection`] after each handshake.
///
/// # Whole paths
///
/// With [`Depth::Chain`] the inner verifier must be a
/// [`ClientVerifier`](super::ClientVerifier), and each handshake must run in a [`Handshake`], which
/// carries the path from one call of rustls to the next. Otherwise every client is rejected.
///
/// ```no_run
/// # fn accept(config: std::sync::Arc<rustls::ServerConfig>, mut tcp: std::net::TcpStream)
/// # -> Result<(), Box<dyn std::error::Error>> {
/// let mut connection = rustls::ServerConnection::new(config)?;
/// let mut handshake = keygate_core::tls::Handshake::default();
/// while connection.is_handshaking() {
///     handshake.step(|| connection.complete_io(&mut tcp))?;
/// }
/// # Ok(()) }
/// ```
///
/// In an async server, [`Handshake::drive`] wraps the future of the handshake.
#[derive(Debug, Clone)]
pub struct KeyVerifier {
    inner: Arc<dyn ClientCertVerifier>,
    guard: CurrentGuard,
    policy: Policy,
    deferral: Option<Arc<dyn Deferral>>,
}

/// Selects the rejected clients that complete their handshakes, because an answer may come soon
/// that admits them. The server must judge each of them again before it serves the client.
pub trait Deferral: fmt::Debug + Send + Sync {
    /// Whether a client with this path, leaf first, which `policy` rejects with an alert, completes
    /// its handshake. The client has proved that it holds the key of the leaf. Never waits.
    fn defers(&self, guard: &Guard, policy: &Policy, path: &[&CertificateDer<'_>]) -> bool;
}

impl KeyVerifier {
    /// A verifier that accepts what `inner` accepts, unless `policy` rejects the verdict of
    /// `guard`.
    #[must_use]
    pub fn new(inner: Arc<dyn ClientCertVerifier>, guard: CurrentGuard, policy: Policy) -> Self {
        Self { inner, guard, policy, deferral: None }
    }

    /// Lets the clients complete their handshakes that `deferral` selects.
    #[must_use]
    pub fn with_deferral(self, deferral: Option<Arc<dyn Deferral>>) -> Self {
        Self { deferral, ..self }
    }

    /// A server configuration with this verifier and without session resumption, for TLS 1.2 and
    /// 1.3.
    ///
    /// # Errors
    /// Returns an error if rustls cannot use the provider's protocol versions.
    pub fn server_config(
        &self,
        certificate: Arc<dyn ResolvesServerCert>,
    ) -> Result<ServerConfig, rustls::Error> {
        let mut config = ServerConfig::builder_with_provider(Arc::new(default_provider()))
            .with_safe_default_protocol_versions()?
            .with_client_cert_verifier(Arc::new(self.clone()))
            .with_cert_resolver(certificate);
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.send_tls13_tickets = 0; // tickets need a ticketer too, and there is none by default
        Ok(config)
    }

    /// Verifies and judges the client of an established connection, at the current time and by the
    /// guard in use. A session may be older than both.
    ///
    /// A client without a certificate is judged as [`Verdict::Unchecked`](crate::guard::Verdict),
    /// unless the inner verifier requires one.
    ///
    /// # Errors
    /// Returns an error if the handshake is not complete, if the inner verifier no longer accepts
    /// the client's certificates, or if the policy rejects the client. Close the connection then.
    pub fn judge_connection(
        &self,
        connection: &ServerConnection,
    ) -> Result<Judgement, rustls::Error> {
        if connection.is_handshaking() {
            return Err(rustls::Error::HandshakeNotComplete);
        }
        let presented = connection.peer_certificates().unwrap_or_default();
        let judgement = match presented.split_first() {
            Some((leaf, intermediates)) => {
                let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
                let now = UnixTime::since_unix_epoch(now);
                let mut handshake = Handshake::default();
                handshake.step(|| self.inner.verify_client_cert(leaf, intermediates, now))?;
                self.judge(&self.path(leaf, handshake.verified.as_ref())?)
            }
            None if self.inner.client_auth_mandatory() => {
                return Err(rustls::Error::NoCertificatesPresented);
            }
            None => self.judge(&[]),
        };
        match judgement.decision {
            Decision::Admit | Decision::Annotate | Decision::Flag => Ok(judgement),
            Decision::Reject => Err(rejection(&judgement).into()),
        }
    }

    fn judge(&self, path: &[&CertificateDer<'_>]) -> Judgement {
        let path = path.iter().copied();
        Judgement::new(&self.guard.load(), &self.policy, path, SystemTime::now())
    }

    /// Whether the handshake of a client fails. With [`RejectWith::Http403`] it succeeds, and the
    /// client gets the status 403 once it sends a request.
    fn is_rejected_with_alert(&self, judgement: &Judgement) -> bool {
        match (judgement.decision, self.policy.reject_with) {
            (Decision::Reject, RejectWith::Alert) => true,
            (Decision::Reject, RejectWith::Http403)
            | (Decision::Admit | Decision::Annotate | Decision::Flag, _) => false,
        }
    }

    /// The certificates that the policy may judge, leaf first.
    ///
    /// # Errors
    /// Returns an error if the policy judges the whole path, and the path is not known.
    fn path<'a>(
        &self,
        leaf: &'a CertificateDer<'a>,
        verified: Option<&'a VerifiedClient>,
    ) -> Result<SmallVec<[&'a CertificateDer<'a>; 4]>, CertificateError> {
        match (self.policy.judge, verified.and_then(|verified| verified.path_of(leaf))) {
            (Depth::Leaf, _) => Ok(SmallVec::from_slice(&[leaf])),
            (Depth::Chain, Some(path)) => {
                let mut certificates = SmallVec::new();
                certificates
                    .extend(path.map(|certificate| -> &'a CertificateDer<'a> { certificate }));
                Ok(certificates)
            }
            (Depth::Chain, None) => Err(ClientProblem::UnknownPath.into()),
        }
    }

    /// Judges the client that has just proved that it holds the key of `leaf`.
    fn judge_handshake(&self, leaf: &CertificateDer<'_>) -> Result<(), rustls::Error> {
        let rejected = handshake::with_current(|handshake| {
            let verified = handshake.as_deref().and_then(|it| it.verified.as_ref());
            let path = self.path(leaf, verified)?;
            let mut judgement = self.judge(&path);
            if self.is_rejected_with_alert(&judgement)
                && let Some(deferral) = &self.deferral
            {
                if deferral.defers(&self.guard.load(), &self.policy, &path) {
                    return Ok(None);
                }
                // An answer that came after the judgement leaves no question, and is no deferral.
                judgement = self.judge(&path);
            }
            if !self.is_rejected_with_alert(&judgement) {
                return Ok(None);
            }
            let chain = path.iter().map(|certificate| (*certificate).clone().into_owned());
            Ok(Some((chain.collect::<Vec<_>>(), judgement)))
        });
        match rejected.map_err(|error: CertificateError| rustls::Error::from(error))? {
            None => Ok(()),
            Some((chain, judgement)) => {
                let error = rejection(&judgement);
                handshake::record_rejected(chain, Some(judgement));
                Err(error.into())
            }
        }
    }

    /// Records a client whose chain or signature failed verification. Its certificate may be a
    /// copy.
    fn record_unproven(leaf: &CertificateDer<'_>) {
        handshake::record_rejected(vec![leaf.clone().into_owned()], None);
    }

    /// Records a client that did not prove possession of the key of `leaf`. Signatures of short RSA
    /// keys are not verified, and prove nothing about it.
    fn unproven(leaf: &CertificateDer<'_>, error: rustls::Error) -> rustls::Error {
        Self::record_unproven(leaf);
        let spki = spki::of_certificate(leaf).unwrap_or_default();
        let algorithm = PublicKey::parse(spki).algorithm();
        let is_short = matches!(algorithm, Algorithm::Rsa(..MIN_RSA_BITS));
        let short = || CertificateError::from(ClientProblem::ShortKey);
        if is_short { short().into() } else { error }
    }
}

/// The error whose alert a rejected client gets.
fn rejection(judgement: &Judgement) -> CertificateError {
    match judgement.reason {
        _ if judgement.names == NameCheck::NotAllowed => {
            CertificateError::ApplicationVerificationFailure
        }
        VerdictKind::Confirmed => CertificateError::Revoked,
        VerdictKind::Allowed
        | VerdictKind::Clean
        | VerdictKind::Cleared
        | VerdictKind::Listed
        | VerdictKind::Probable
        | VerdictKind::Unchecked
        | VerdictKind::Weak => CertificateError::ApplicationVerificationFailure,
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
        handshake::forget_path();
        let verified = self.inner.verify_client_cert(end_entity, intermediates, now);
        verified.inspect_err(|_| Self::record_unproven(end_entity))
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let valid = self.inner.verify_tls12_signature(message, cert, dss);
        let valid = valid.map_err(|error| Self::unproven(cert, error))?;
        self.judge_handshake(cert)?;
        Ok(valid)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let valid = self.inner.verify_tls13_signature(message, cert, dss);
        let valid = valid.map_err(|error| Self::unproven(cert, error))?;
        self.judge_handshake(cert)?;
        Ok(valid)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.inner.supported_verify_schemes()
    }
}

//! The errors of rustls-webpki as the errors of rustls, which select the alert.
//!
//! rustls has the same table and does not export it.

use std::fmt;
use std::sync::Arc;

use rustls::{CertificateError, ExtendedKeyPurpose, OtherError};
use webpki::{Error, KeyUsage};

use super::PathProblem;

/// Why a client is rejected, in words of keygate.
#[derive(Clone, thiserror::Error)]
pub(super) enum ClientProblem {
    /// A name that a CA on the path may not vouch for.
    #[error("{ca} may not vouch for {name}")]
    NotVouched { ca: Box<str>, name: String },
    /// A certificate of the path, or a pin, breaks a rule.
    #[error(transparent)]
    Path(#[from] PathProblem),
    /// The key of a client whose signature is not verified.
    #[error("the RSA key of the client has less than 2,048 bits")]
    ShortKey,
    /// More certificates than a client may present.
    #[error("the client presented {presented} certificates; at most {allowed} are accepted")]
    TooManyCertificates { presented: usize, allowed: usize },
    /// A policy for the whole path, in a handshake whose path was not recorded.
    #[error(
        "the policy judges the whole path, which is not known: verify with `ClientVerifier`, and run the handshake in a `Handshake`"
    )]
    UnknownPath,
}

// rustls writes the debug form of an error of others into its message.
impl fmt::Debug for ClientProblem {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{self}")
    }
}

impl From<PathProblem> for CertificateError {
    fn from(problem: PathProblem) -> Self {
        ClientProblem::from(problem).into()
    }
}

impl From<ClientProblem> for CertificateError {
    fn from(problem: ClientProblem) -> Self {
        Self::Other(OtherError(Arc::new(problem)))
    }
}

/// The error of rustls for an error of rustls-webpki.
#[expect(
    clippy::wildcard_enum_match_arm,
    reason = "rustls-webpki may add variants; all others have no error of their own in rustls"
)]
pub(super) fn certificate_error(error: Error) -> CertificateError {
    match error {
        Error::BadDer | Error::BadDerTime | Error::TrailingData(_) => CertificateError::BadEncoding,
        Error::CertExpired { time, not_after } => {
            CertificateError::ExpiredContext { time, not_after }
        }
        Error::CertNotValidYet { time, not_before } => {
            CertificateError::NotValidYetContext { time, not_before }
        }
        Error::CertRevoked => CertificateError::Revoked,
        Error::CrlExpired { time, next_update } => {
            CertificateError::ExpiredRevocationListContext { time, next_update }
        }
        Error::InvalidCertValidity => CertificateError::Expired,
        Error::RequiredEkuNotFoundContext(context) => CertificateError::InvalidPurposeContext {
            required: purpose(context.required.oid_values().collect()),
            presented: context.present.into_iter().map(purpose).collect(),
        },
        // A CA has the name of the issuer and another key.
        Error::InvalidSignatureForPublicKey | Error::UnknownIssuer => {
            CertificateError::UnknownIssuer
        }
        Error::UnknownRevocationStatus => CertificateError::UnknownRevocationStatus,
        Error::UnsupportedSignatureAlgorithmContext(context) => {
            CertificateError::UnsupportedSignatureAlgorithmContext {
                signature_algorithm_id: context.signature_algorithm_id,
                supported_algorithms: context.supported_algorithms,
            }
        }
        Error::UnsupportedSignatureAlgorithmForPublicKeyContext(context) => {
            CertificateError::UnsupportedSignatureAlgorithmForPublicKeyContext {
                signature_algorithm_id: context.signature_algorithm_id,
                public_key_algorithm_id: context.public_key_algorithm_id,
            }
        }
        error => CertificateError::Other(OtherError(Arc::new(error))),
    }
}

fn purpose(oid: Vec<usize>) -> ExtendedKeyPurpose {
    match oid.as_slice() {
        KeyUsage::CLIENT_AUTH_REPR => ExtendedKeyPurpose::ClientAuth,
        KeyUsage::SERVER_AUTH_REPR => ExtendedKeyPurpose::ServerAuth,
        _ => ExtendedKeyPurpose::Other(oid),
    }
}

//! The errors of rustls-webpki as the errors of rustls, which select the alert.
//!
//! rustls has the same table and does not export it.

use std::fmt;
use std::sync::Arc;

use rustls::{CertificateError, ExtendedKeyPurpose, OtherError};
use webpki::{Error, KeyUsage};

/// More certificates than a client may present.
#[derive(thiserror::Error)]
#[error("the client presented {presented} certificates; at most {allowed} are accepted")]
pub(super) struct TooManyCertificates {
    pub(super) presented: usize,
    pub(super) allowed: usize,
}

/// A policy for the whole path, in a handshake whose path was not recorded.
#[derive(thiserror::Error)]
#[error(
    "the policy judges the whole path, which is not known: verify with `ClientVerifier`, and run the handshake in a `Handshake`"
)]
pub(super) struct UnknownPath;

// rustls writes the debug form of an error of others into its message.
impl fmt::Debug for TooManyCertificates {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{self}")
    }
}

impl fmt::Debug for UnknownPath {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{self}")
    }
}

/// The error of rustls for any other error.
pub(super) fn other(error: impl std::error::Error + Send + Sync + 'static) -> CertificateError {
    CertificateError::Other(OtherError(Arc::new(error)))
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
        error => other(error),
    }
}

fn purpose(oid: Vec<usize>) -> ExtendedKeyPurpose {
    match oid.as_slice() {
        KeyUsage::CLIENT_AUTH_REPR => ExtendedKeyPurpose::ClientAuth,
        KeyUsage::SERVER_AUTH_REPR => ExtendedKeyPurpose::ServerAuth,
        _ => ExtendedKeyPurpose::Other(oid),
    }
}

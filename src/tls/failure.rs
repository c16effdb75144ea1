//! What went wrong in a handshake, as a metric tells it.

use std::io;

use rustls::{CertificateError, Error};

use crate::metrics::HandshakeResult;

/// The class of an error that ended a handshake.
#[must_use]
pub fn classify(error: &io::Error) -> HandshakeResult {
    match error.get_ref().and_then(|inner| inner.downcast_ref::<Error>()) {
        Some(error) => classify_tls(error),
        // The client closed or reset the connection, or the network did.
        None => HandshakeResult::ClientGone,
    }
}

#[expect(clippy::wildcard_enum_match_arm, reason = "rustls' enums grow; the rest is one class")]
fn classify_tls(error: &Error) -> HandshakeResult {
    match error {
        Error::AlertReceived(_) => HandshakeResult::ClientGone,
        Error::DecryptError => HandshakeResult::BadSignature,
        Error::InvalidCertificate(error) => classify_certificate(error),
        Error::InvalidMessage(_) => HandshakeResult::NotTls,
        Error::NoCertificatesPresented => HandshakeResult::NoCertificate,
        _ => HandshakeResult::Unsupported,
    }
}

#[expect(clippy::wildcard_enum_match_arm, reason = "rustls' enums grow; the rest is one class")]
fn classify_certificate(error: &CertificateError) -> HandshakeResult {
    match error {
        CertificateError::ApplicationVerificationFailure => HandshakeResult::Compromised,
        CertificateError::BadSignature => HandshakeResult::BadSignature,
        CertificateError::Expired
        | CertificateError::ExpiredContext { .. }
        | CertificateError::NotValidYet
        | CertificateError::NotValidYetContext { .. } => HandshakeResult::Expired,
        // Or it cannot be known that it is not.
        CertificateError::ExpiredRevocationList
        | CertificateError::ExpiredRevocationListContext { .. }
        | CertificateError::Revoked
        | CertificateError::UnknownRevocationStatus => HandshakeResult::Revoked,
        CertificateError::UnknownIssuer => HandshakeResult::UnknownIssuer,
        _ => HandshakeResult::Unsupported,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_of_rustls_are_told_apart_inside_an_io_error() {
        let class = |error: Error| classify(&io::Error::new(io::ErrorKind::InvalidData, error));
        let refused = CertificateError::ApplicationVerificationFailure;
        assert_eq!(class(refused.into()), HandshakeResult::Compromised);
        assert_eq!(class(CertificateError::NotValidYet.into()), HandshakeResult::Expired);
        assert_eq!(class(CertificateError::BadEncoding.into()), HandshakeResult::Unsupported);
        assert_eq!(class(Error::NoCertificatesPresented), HandshakeResult::NoCertificate);
        assert_eq!(classify(&io::ErrorKind::UnexpectedEof.into()), HandshakeResult::ClientGone);
    }
}

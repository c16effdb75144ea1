//! The outcome of a TLS handshake, as metrics and logs name it.

use std::io;

use rustls::{AlertDescription, CertificateError, Error};

use super::bound_cas::NotVouched;
use crate::guard::NameCheck;

/// The outcome of a TLS handshake with a client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HandshakeResult {
    /// The client did not prove possession of the key of its certificate.
    BadSignature,
    /// The client sent an alert that is not about a certificate, or the connection broke.
    ClientGone,
    /// The policy rejected the client's key.
    Compromised,
    /// The client's certificate has expired or is not valid yet.
    Expired,
    /// The client sent no certificate.
    NoCertificate,
    /// No rule of the service names the client.
    NotAllowed,
    /// The client does not speak TLS.
    NotTls,
    /// A CA of the client may not vouch for a name of its certificate.
    NotVouched,
    /// The handshake succeeded.
    Ok,
    /// The client sent HTTP without TLS, and got 400.
    PlainHttp,
    /// The client's certificate is revoked, or its revocation status is unknown.
    Revoked,
    /// The client rejected the certificate of the service.
    ServiceRejected,
    /// The handshake exceeded its timeout.
    Timeout,
    /// The client's certificate does not lead to a trust anchor.
    UnknownIssuer,
    /// No service has the server name that the client sent.
    UnknownName,
    /// No common protocol or algorithm, or a certificate for another purpose.
    Unsupported,
}

impl HandshakeResult {
    /// Every outcome, in the order of declaration.
    pub const ALL: [Self; 16] = [
        Self::BadSignature,
        Self::ClientGone,
        Self::Compromised,
        Self::Expired,
        Self::NoCertificate,
        Self::NotAllowed,
        Self::NotTls,
        Self::NotVouched,
        Self::Ok,
        Self::PlainHttp,
        Self::Revoked,
        Self::ServiceRejected,
        Self::Timeout,
        Self::UnknownIssuer,
        Self::UnknownName,
        Self::Unsupported,
    ];

    /// The label value in metrics and the field value in logs.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::BadSignature => "bad_signature",
            Self::ClientGone => "client_gone",
            Self::Compromised => "compromised",
            Self::Expired => "expired",
            Self::NoCertificate => "no_certificate",
            Self::NotAllowed => NameCheck::NOT_ALLOWED,
            Self::NotTls => "not_tls",
            Self::NotVouched => "not_vouched",
            Self::Ok => "ok",
            Self::PlainHttp => "plain_http",
            Self::Revoked => "revoked",
            Self::ServiceRejected => "service_rejected",
            Self::Timeout => "timeout",
            Self::UnknownIssuer => "unknown_issuer",
            Self::UnknownName => "unknown_name",
            Self::Unsupported => "unsupported",
        }
    }

    /// The class of an error that ended a handshake.
    #[must_use]
    pub fn from_error(error: &io::Error) -> Self {
        match error.get_ref().and_then(|inner| inner.downcast_ref::<Error>()) {
            Some(error) => Self::of(error),
            // An I/O error without a rustls error inside: the connection was closed or reset.
            None => Self::ClientGone,
        }
    }

    /// The class of an error of rustls.
    #[must_use]
    #[expect(
        clippy::wildcard_enum_match_arm,
        reason = "rustls may add variants; all others are `Unsupported`"
    )]
    pub fn of(error: &Error) -> Self {
        match error {
            Error::AlertReceived(
                AlertDescription::BadCertificate
                | AlertDescription::CertificateExpired
                | AlertDescription::CertificateRevoked
                | AlertDescription::CertificateUnknown
                | AlertDescription::UnknownCA
                | AlertDescription::UnsupportedCertificate,
            ) => Self::ServiceRejected,
            Error::AlertReceived(_) => Self::ClientGone,
            Error::DecryptError => Self::BadSignature,
            Error::InvalidCertificate(error) => from_certificate_error(error),
            Error::InvalidMessage(_) => Self::NotTls,
            Error::NoCertificatesPresented => Self::NoCertificate,
            _ => Self::Unsupported,
        }
    }
}

#[expect(
    clippy::wildcard_enum_match_arm,
    reason = "rustls may add variants; all others are `Unsupported`"
)]
fn from_certificate_error(error: &CertificateError) -> HandshakeResult {
    match error {
        CertificateError::ApplicationVerificationFailure => HandshakeResult::Compromised,
        CertificateError::BadSignature => HandshakeResult::BadSignature,
        CertificateError::Expired
        | CertificateError::ExpiredContext { .. }
        | CertificateError::NotValidYet
        | CertificateError::NotValidYetContext { .. } => HandshakeResult::Expired,
        // An unknown revocation status counts as revoked.
        CertificateError::ExpiredRevocationList
        | CertificateError::ExpiredRevocationListContext { .. }
        | CertificateError::Revoked
        | CertificateError::UnknownRevocationStatus => HandshakeResult::Revoked,
        CertificateError::Other(error) if error.0.is::<NotVouched>() => HandshakeResult::NotVouched,
        CertificateError::UnknownIssuer => HandshakeResult::UnknownIssuer,
        _ => HandshakeResult::Unsupported,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rustls_errors_inside_io_errors_are_classified() {
        let class = |error: Error| {
            HandshakeResult::from_error(&io::Error::new(io::ErrorKind::InvalidData, error))
        };
        let rejected = CertificateError::ApplicationVerificationFailure;
        assert_eq!(class(rejected.into()), HandshakeResult::Compromised);
        assert_eq!(class(CertificateError::NotValidYet.into()), HandshakeResult::Expired);
        assert_eq!(class(CertificateError::BadEncoding.into()), HandshakeResult::Unsupported);
        let issuer = crate::tls::verification_error::certificate_error(
            webpki::Error::InvalidSignatureForPublicKey,
        );
        assert_eq!(class(issuer.into()), HandshakeResult::UnknownIssuer);
        assert_eq!(class(CertificateError::BadSignature.into()), HandshakeResult::BadSignature);
        assert_eq!(class(Error::NoCertificatesPresented), HandshakeResult::NoCertificate);
        assert_eq!(
            HandshakeResult::from_error(&io::ErrorKind::UnexpectedEof.into()),
            HandshakeResult::ClientGone
        );
    }
}

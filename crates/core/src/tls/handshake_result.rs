//! The outcome of a TLS handshake, as metrics and logs name it.

use std::io;

use rustls::{AlertDescription, CertificateError, Error, InvalidMessage};

use super::verification_error::ClientProblem;
use crate::guard::NameCheck;
use crate::named::named;

named! {
    /// The outcome of a TLS handshake with a client.
    pub enum HandshakeResult {
        /// The client did not prove possession of the key of its certificate.
        BadSignature = "bad_signature",
        /// The client sent an alert that is not about a certificate, or the connection broke.
        ClientGone = "client_gone",
        /// The policy rejected the client's key.
        Compromised = "compromised",
        /// The client's certificate has expired or is not valid yet.
        Expired = "expired",
        /// The client sent no certificate.
        NoCertificate = "no_certificate",
        /// No rule of the service names the client.
        NotAllowed = NameCheck::NOT_ALLOWED,
        /// The client does not speak TLS.
        NotTls = "not_tls",
        /// A CA of the client may not vouch for a name of its certificate.
        NotVouched = "not_vouched",
        /// The handshake succeeded.
        Ok = "ok",
        /// The client sent HTTP without TLS, and got 400.
        PlainHttp = "plain_http",
        /// The client's certificate is revoked, or its revocation status is unknown.
        Revoked = "revoked",
        /// The client rejected the certificate of the service.
        ServiceRejected = "service_rejected",
        /// The handshake exceeded its timeout.
        Timeout = "timeout",
        /// The client's certificate does not lead to a trust anchor.
        UnknownIssuer = "unknown_issuer",
        /// No service has the server name that the client sent.
        UnknownName = "unknown_name",
        /// The client's certificate has another fault, such as its purpose or a short key.
        Unsuitable = "unsuitable",
        /// No common protocol or algorithm.
        Unsupported = "unsupported",
    }
}

impl HandshakeResult {
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
            // Larger certificates than a message may have.
            Error::InvalidMessage(InvalidMessage::HandshakePayloadTooLarge) => Self::Unsupported,
            Error::InvalidMessage(_) => Self::NotTls,
            Error::NoCertificatesPresented => Self::NoCertificate,
            _ => Self::Unsupported,
        }
    }
}

#[expect(
    clippy::wildcard_enum_match_arm,
    reason = "rustls may add variants; all others are `Unsuitable`"
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
        CertificateError::Other(error) => match error.0.downcast_ref() {
            Some(ClientProblem::NotVouched { .. }) => HandshakeResult::NotVouched,
            Some(
                ClientProblem::Path(_)
                | ClientProblem::ShortKey
                | ClientProblem::TooManyCertificates { .. }
                | ClientProblem::UnknownPath,
            )
            | None => HandshakeResult::Unsuitable,
        },
        CertificateError::UnknownIssuer => HandshakeResult::UnknownIssuer,
        _ => HandshakeResult::Unsuitable,
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
        assert_eq!(class(CertificateError::BadEncoding.into()), HandshakeResult::Unsuitable);
        assert_eq!(class(CertificateError::InvalidPurpose.into()), HandshakeResult::Unsuitable);
        assert_eq!(class(Error::General(String::new())), HandshakeResult::Unsupported);
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

//! Errors of the TLS libraries in the words of the protocol.
//!
//! rustls and webpki print the names of their variants and times in seconds since the Unix epoch.

use std::io;

use rustls::pki_types::pem;
use rustls::{CertificateError, Error, ExtendedKeyPurpose};

use super::verification_error::ClientProblem;
use crate::regular_file::cause;
use crate::unix_time::utc;

/// Why the certificate of a server is no certificate of a client.
const SERVER_AUTH_ONLY: &str = "the extended key usage of the certificate has serverAuth only; issue it with clientAuth; client_auth.accept_server_auth_until accepts it until a date";

/// The cause of a failed handshake.
#[must_use]
pub fn explain(error: &io::Error) -> String {
    match error.get_ref().and_then(|inner| inner.downcast_ref::<Error>()) {
        Some(error) => tls_error(error),
        None => cause(error),
    }
}

/// The cause of an error of rustls.
#[expect(
    clippy::wildcard_enum_match_arm,
    reason = "rustls may add variants; all others have their own words"
)]
pub fn tls_error(error: &Error) -> String {
    match error {
        Error::InvalidCertificate(error) => certificate_error(error),
        other => plain(&other.to_string()),
    }
}

#[expect(
    clippy::wildcard_enum_match_arm,
    reason = "rustls may add variants; all others have their own words"
)]
fn certificate_error(error: &CertificateError) -> String {
    match error {
        CertificateError::BadEncoding => "the certificate is not valid DER".to_owned(),
        CertificateError::ExpiredContext { not_after, .. } => {
            format!("the certificate expired at {}", utc(not_after.as_secs()))
        }
        CertificateError::ExpiredRevocationListContext { next_update, .. } => {
            format!("certificate revocation list expired at {}", utc(next_update.as_secs()))
        }
        CertificateError::InvalidPurpose => {
            "the certificate does not allow extended key usage for this purpose".to_owned()
        }
        CertificateError::InvalidPurposeContext {
            required: ExtendedKeyPurpose::ClientAuth,
            presented,
        } if *presented == [ExtendedKeyPurpose::ServerAuth] => SERVER_AUTH_ONLY.to_owned(),
        CertificateError::NotValidYetContext { not_before, .. } => {
            format!("the certificate is not valid before {}", utc(not_before.as_secs()))
        }
        CertificateError::Other(other) => match other.0.downcast_ref::<webpki::Error>() {
            Some(error) => path_error(error),
            None if other.0.is::<ClientProblem>() => other.0.to_string(),
            None => plain(&other.0.to_string()),
        },
        CertificateError::Revoked => "the certificate is revoked".to_owned(),
        CertificateError::UnhandledCriticalExtension => {
            "the certificate has a critical extension that is not supported".to_owned()
        }
        CertificateError::UnknownIssuer => "no trust anchor issued the certificate".to_owned(),
        CertificateError::UnknownRevocationStatus => {
            "no revocation list covers the issuer of the certificate".to_owned()
        }
        CertificateError::UnsupportedSignatureAlgorithmContext { .. } => {
            "the signature algorithm of the certificate is not supported".to_owned()
        }
        CertificateError::UnsupportedSignatureAlgorithmForPublicKeyContext { .. } => {
            "the signature algorithm of the certificate does not fit the key of its issuer"
                .to_owned()
        }
        other => plain(&other.to_string()),
    }
}

#[expect(
    clippy::wildcard_enum_match_arm,
    reason = "webpki may add variants; all others have their own words"
)]
pub(super) fn path_error(error: &webpki::Error) -> String {
    match error {
        webpki::Error::CaUsedAsEndEntity => {
            "the certificate belongs to a CA, not to a client or server".to_owned()
        }
        webpki::Error::EndEntityUsedAsCa => {
            "a certificate in the chain issued another one, but is not a CA".to_owned()
        }
        webpki::Error::MaximumPathBuildCallsExceeded => {
            "the certificates allow too many paths to a trust anchor".to_owned()
        }
        webpki::Error::NameConstraintViolation => {
            "the certificate has a name that its CA must not certify (name constraints)".to_owned()
        }
        webpki::Error::PathLenConstraintViolated => {
            "the chain is longer than its CA allows (path length constraint)".to_owned()
        }
        webpki::Error::UnsupportedCertVersion => {
            "the certificate is not of X.509 version 3".to_owned()
        }
        other => plain(&other.to_string()),
    }
}

/// The fault of a PEM file.
#[expect(clippy::wildcard_enum_match_arm, reason = "the readers may add variants")]
pub(super) fn pem_error(error: &pem::Error) -> String {
    match error {
        pem::Error::Base64Decode(_) => "the base64 of a section is damaged".to_owned(),
        pem::Error::IllegalSectionStart { line } => {
            format!("\"{}\" is not the beginning of a section", line.escape_ascii())
        }
        pem::Error::MissingSectionEnd { end_marker } => {
            format!("the line \"-----END {}-----\" is missing", end_marker.escape_ascii())
        }
        pem::Error::NoItemsFound => "it has no such section".to_owned(),
        pem::Error::Io(error) => error.to_string(),
        _ => "a section is too large".to_owned(),
    }
}

/// `text` with each name of a variant as words: `InvalidContentType` becomes `invalid content
/// type`.
fn plain(text: &str) -> String {
    let mut words = String::with_capacity(text.len() + 16);
    for word in text.split_inclusive(|it: char| !it.is_ascii_alphanumeric()) {
        let letters = word.as_bytes();
        let is_name = letters
            .windows(2)
            .any(|pair| matches!(pair, [a, b] if a.is_ascii_lowercase() && b.is_ascii_uppercase()));
        let mut after_lower = false;
        for letter in word.chars() {
            if is_name && after_lower && letter.is_ascii_uppercase() {
                words.push(' ');
            }
            after_lower = letter.is_ascii_lowercase();
            words.push(if is_name { letter.to_ascii_lowercase() } else { letter });
        }
    }
    words
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use rustls::pki_types::UnixTime;
    use rustls::{AlertDescription, InvalidMessage, OtherError};

    use super::*;

    #[test]
    fn no_message_has_the_name_of_a_variant_or_a_time_in_seconds() {
        let time = UnixTime::since_unix_epoch(Duration::from_secs(1_795_258_430));
        let other = |error: webpki::Error| CertificateError::Other(OtherError(Arc::new(error)));
        for (error, expected) in [
            (
                CertificateError::ExpiredContext { time, not_after: time }.into(),
                "the certificate expired at 2026-11-21 10:53:50 UTC",
            ),
            (
                CertificateError::NotValidYetContext { time, not_before: time }.into(),
                "the certificate is not valid before 2026-11-21 10:53:50 UTC",
            ),
            (
                CertificateError::ExpiredRevocationListContext { time, next_update: time }.into(),
                "certificate revocation list expired at 2026-11-21 10:53:50 UTC",
            ),
            (CertificateError::UnknownIssuer.into(), "no trust anchor issued the certificate"),
            (
                other(webpki::Error::UnsupportedCertVersion).into(),
                "the certificate is not of X.509 version 3",
            ),
            (other(webpki::Error::InvalidSerialNumber).into(), "invalid serial number"),
            (Error::AlertReceived(AlertDescription::UnknownCA), "received fatal alert: unknown ca"),
            (
                Error::InvalidMessage(InvalidMessage::InvalidContentType),
                "received corrupt message of type invalid content type",
            ),
            (
                CertificateError::InvalidPurposeContext {
                    required: ExtendedKeyPurpose::ClientAuth,
                    presented: vec![ExtendedKeyPurpose::ServerAuth],
                }
                .into(),
                SERVER_AUTH_ONLY,
            ),
            (Error::NoCertificatesPresented, "peer sent no certificates"),
        ] {
            assert_eq!(tls_error(&error), expected);
            assert_eq!(explain(&io::Error::other(error)), expected);
        }
    }
}

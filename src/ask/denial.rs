//! Denials without a judgement, and the words that a host may show to its client.

use hyper::header::HeaderValue;
use keygate_core::guard::{Decision, VerdictKind};
use keygate_core::tls::{HandshakeResult, tls_error};
use rustls::{CertificateError, ExtendedKeyPurpose};

use super::question::{Answer, Unusable};

/// The body of a denial with status 403, or of another response, for the protocols that have one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct DenialBody {
    pub(crate) content_type: &'static str,
    pub(crate) text: String,
}

impl DenialBody {
    /// The body with this reason: JSON if the client accepts JSON, else text.
    pub(crate) fn new(reason: &str, accept: Option<&[u8]>) -> Self {
        let accept = accept.and_then(|accept| str::from_utf8(accept).ok()).unwrap_or_default();
        if accept.contains("application/json") {
            let text = format!("{{\"status\":403,\"error\":\"{reason}\"}}\n");
            Self::json(text)
        } else {
            let text = format!("403 Forbidden: {reason}\n");
            Self { content_type: "text/plain; charset=utf-8", text }
        }
    }

    /// A body of JSON.
    pub(crate) fn json(text: String) -> Self {
        Self { content_type: "application/json", text }
    }
}

/// A certificate in the question is no X.509 certificate.
pub(super) const UNREADABLE: Unusable =
    Unusable::Malformed("a certificate in the question cannot be read");

/// The answer to a question that is denied without a judgement.
pub(super) fn denial(reason: &'static str) -> Answer {
    Answer {
        decision: Decision::Reject,
        verdict: VerdictKind::Unchecked,
        status: HeaderValue::from_static("unchecked"),
        reason: Some(reason.into()),
        filter: None,
        assertion: None,
        is_temporary: false,
    }
}

/// A question that is denied without a judgement.
pub(super) struct Denied {
    pub(super) unusable: Unusable,
    /// The CA and the name that it may not vouch for. Only the log has them.
    pub(super) error: Option<String>,
}

impl From<Unusable> for Denied {
    fn from(unusable: Unusable) -> Self {
        Self { unusable, error: None }
    }
}

/// Why the authorizer does not accept a client's certificate.
pub(super) fn unverified(error: &rustls::Error) -> Denied {
    match HandshakeResult::of(error) == HandshakeResult::NotVouched {
        true => Denied { unusable: Unusable::NotVouched, error: Some(tls_error(error)) },
        false => Unusable::NotVerified(reason_of(error)).into(),
    }
}

/// Why a certificate is not verified, in words for log and body.
#[expect(clippy::wildcard_enum_match_arm, reason = "rustls may add variants")]
fn reason_of(error: &rustls::Error) -> &'static str {
    let rustls::Error::InvalidCertificate(error) = error else {
        return "the client certificate cannot be verified";
    };
    match error {
        CertificateError::Expired | CertificateError::ExpiredContext { .. } => {
            "a certificate of the client's chain has expired"
        }
        CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => {
            "a certificate of the client's chain is not valid yet"
        }
        CertificateError::Revoked => "a certificate of the client's chain is revoked",
        CertificateError::UnknownIssuer => "no accepted CA issued the client certificate",
        CertificateError::UnknownRevocationStatus
        | CertificateError::ExpiredRevocationList
        | CertificateError::ExpiredRevocationListContext { .. } => {
            "the revocation list of the client's issuer is missing or has expired"
        }
        CertificateError::InvalidPurposeContext { presented, .. }
            if *presented == [ExtendedKeyPurpose::ServerAuth] =>
        {
            "the client certificate is for servers only; client_auth.accept_server_auth_until accepts \
             it until a date"
        }
        CertificateError::InvalidPurpose | CertificateError::InvalidPurposeContext { .. } => {
            "the client certificate is not for client authentication"
        }
        CertificateError::UnhandledCriticalExtension => {
            "a certificate of the client's chain has an unknown critical extension"
        }
        CertificateError::UnsupportedSignatureAlgorithmContext { .. }
        | CertificateError::UnsupportedSignatureAlgorithmForPublicKeyContext { .. } => {
            "a certificate of the client's chain is signed with an algorithm that is not accepted"
        }
        _ => "the client certificate cannot be verified",
    }
}

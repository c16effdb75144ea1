//! The keys in the body of a webhook: of certificates, requests and keys that a CA or a cluster is
//! asked to accept. Each is in a certificate, because judgements take certificates.

use data_encoding::BASE64;
use keygate_core::spki;
use keygate_core::tls::{RequestError, certificate_of_key, requested_certificate};
use rustls::pki_types::CertificateDer;
use smallvec::SmallVec;

use crate::ask::denial::UNREADABLE;
use crate::ask::question::{MAX_CERTIFICATES, Presented, Unusable};

const BAD_BASE64: Unusable = Unusable::Malformed("a member of the question is not base64");
const BAD_KEY: Unusable = Unusable::Malformed("a public key in the question cannot be read");
const BAD_REQUEST: Unusable =
    Unusable::Malformed("the certificate request in the question cannot be read");
const NO_KEY: Unusable = Unusable::Malformed("the question has no key");
pub(super) const TOO_MANY: Unusable = Unusable::Malformed("the question has more than ten keys");
const NOT_SIGNED: Unusable =
    Unusable::NotVerified("the certificate request is not signed with its own key");
const UNKNOWN_SIGNATURE: Unusable = Unusable::NotVerified(
    "the certificate request is signed with an algorithm that is not accepted",
);

/// The bytes that Go writes as base64 in JSON; `None` if there are none.
pub(super) fn decode(base64: Option<&str>) -> Result<Option<Vec<u8>>, Unusable> {
    let Some(base64) = base64.filter(|it| !it.is_empty()) else { return Ok(None) };
    BASE64.decode(base64.as_bytes()).map(Some).map_err(|_| BAD_BASE64)
}

/// The key of a certificate (DER).
pub(super) fn of_certificate(certificate: &[u8]) -> Result<CertificateDer<'static>, Unusable> {
    Ok(certificate.to_vec().into())
}

/// The key of a certificate request (DER), which must be signed with the key.
pub(super) fn of_request(request: &[u8]) -> Result<CertificateDer<'static>, Unusable> {
    requested_certificate(request).map_err(|error| match error {
        RequestError::Malformed => BAD_REQUEST,
        RequestError::Signature => NOT_SIGNED,
        RequestError::Unsupported => UNKNOWN_SIGNATURE,
    })
}

/// The key with this SubjectPublicKeyInfo (DER).
pub(super) fn of_key(spki: &[u8]) -> Result<CertificateDer<'static>, Unusable> {
    certificate_of_key(spki).map_err(|_| BAD_KEY)
}

/// A binary SSH public key.
pub(super) fn of_ssh_key(key: &[u8]) -> Result<CertificateDer<'static>, Unusable> {
    of_key(&spki::ssh_key(key).map_err(|_| BAD_KEY)?)
}

/// The keys as a question has them, each once.
///
/// # Errors
/// Returns an error if there is none, if there are too many, or if one cannot be read.
pub(super) fn presented<'a>(keys: Vec<CertificateDer<'static>>) -> Result<Presented<'a>, Unusable> {
    let mut different = SmallVec::<[CertificateDer<'a>; 2]>::new();
    for certificate in keys {
        let key = spki::of_certificate(&certificate).map_err(|_| UNREADABLE)?;
        if different.iter().any(|known| spki::of_certificate(known) == Ok(key)) {
            continue;
        }
        if different.len() >= MAX_CERTIFICATES {
            return Err(TOO_MANY);
        }
        different.push(certificate);
    }
    if different.is_empty() { Err(NO_KEY) } else { Ok(Presented::Chain(different)) }
}

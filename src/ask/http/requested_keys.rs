//! The keys in the body of a webhook: of certificates, requests and keys that a CA or a cluster is
//! asked to accept.

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
const TOO_MANY: Unusable = Unusable::Malformed("the question has more than ten keys");
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

/// The keys of one question, each in a certificate, and each once.
#[derive(Debug, Default)]
pub(super) struct RequestedKeys<'a>(SmallVec<[CertificateDer<'a>; 2]>);

impl<'a> RequestedKeys<'a> {
    /// Adds the key of a certificate (DER).
    pub(super) fn add_certificate(&mut self, certificate: Vec<u8>) -> Result<(), Unusable> {
        self.add(certificate.into())
    }

    /// Adds the key of a certificate request (DER), which must be signed with the key.
    pub(super) fn add_request(&mut self, request: &[u8]) -> Result<(), Unusable> {
        let certificate = requested_certificate(request).map_err(|error| match error {
            RequestError::Malformed => BAD_REQUEST,
            RequestError::Signature => NOT_SIGNED,
            RequestError::Unsupported => UNKNOWN_SIGNATURE,
        });
        self.add(certificate?)
    }

    /// Adds a key, as its SubjectPublicKeyInfo (DER).
    pub(super) fn add_key(&mut self, spki: &[u8]) -> Result<(), Unusable> {
        self.add(certificate_of_key(spki).map_err(|_| BAD_KEY)?)
    }

    /// Adds a binary SSH public key.
    pub(super) fn add_ssh_key(&mut self, key: &[u8]) -> Result<(), Unusable> {
        self.add_key(&spki::ssh_key(key).map_err(|_| BAD_KEY)?)
    }

    fn add(&mut self, certificate: CertificateDer<'a>) -> Result<(), Unusable> {
        let key = spki::of_certificate(&certificate).map_err(|_| UNREADABLE)?;
        if self.0.iter().any(|known| spki::of_certificate(known) == Ok(key)) {
            return Ok(());
        }
        if self.0.len() >= MAX_CERTIFICATES {
            return Err(TOO_MANY);
        }
        self.0.push(certificate);
        Ok(())
    }

    /// The keys as the question has them.
    ///
    /// # Errors
    /// Returns an error if there is none.
    pub(super) fn presented(self) -> Result<Presented<'a>, Unusable> {
        if self.0.is_empty() { Err(NO_KEY) } else { Ok(Presented::Chain(self.0)) }
    }
}

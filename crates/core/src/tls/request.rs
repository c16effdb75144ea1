//! The certificate that a CA is asked for: subject, key and extensions of a request, without a
//! signature (RFC 9925).
//!
//! Judgements, logs and reports take certificates, so the same code serves keys that have none yet.
//! Sources: RFC 2986 (requests), RFC 5280, section 4.1 (certificates).

use rustls::pki_types::CertificateDer;
use x509_cert::der::asn1::AnyRef;
use x509_cert::der::oid::AssociatedOid;
use x509_cert::der::{self, Decode, Encode, Tag, TagNumber};
use x509_cert::request::{CertReq, ExtensionReq};
use x509_cert::spki::SubjectPublicKeyInfoRef;

use super::signature::{SignatureProblem, Signed};

/// Why a request does not prove the possession of its key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RequestError {
    /// The bytes are not the DER of a request.
    Malformed,
    /// Another key made the signature, or it is over another request.
    Signature,
    /// The algorithm of the signature is not supported.
    Unsupported,
}

impl From<der::Error> for RequestError {
    fn from(_: der::Error) -> Self {
        Self::Malformed
    }
}

/// The certificate that a certificate request in DER asks for. The signature of the request proves
/// the possession of the key.
///
/// # Errors
/// Returns an error if the request cannot be read, or if its key did not sign it.
pub fn requested_certificate(request: &[u8]) -> Result<CertificateDer<'static>, RequestError> {
    let info = CertReq::from_der(request)?.info;
    let spki = info.public_key.to_der()?;
    Signed::parse(request)?.verify(&spki).map_err(|problem| match problem {
        SignatureProblem::Invalid => RequestError::Signature,
        SignatureProblem::Unsupported => RequestError::Unsupported,
    })?;
    let extensions = info.attributes.iter().find(|it| it.oid == ExtensionReq::OID);
    let extensions = extensions.and_then(|it| it.values.get(0));
    let extensions = extensions.map(Encode::to_der).transpose()?.unwrap_or_default();
    Ok(unsigned(&info.subject.to_der()?, &spki, &extensions)?)
}

/// A certificate without names for the key with this SubjectPublicKeyInfo (DER). Nothing proves the
/// possession of the key.
///
/// # Errors
/// Returns an error if the key cannot be read.
pub fn certificate_of_key(spki: &[u8]) -> Result<CertificateDer<'static>, RequestError> {
    SubjectPublicKeyInfoRef::from_der(spki)?;
    Ok(unsigned(NO_NAME, spki, &[])?)
}

/// Whether a certificate was made here for a key that has none, and was issued by nobody.
#[must_use]
pub fn is_unsigned(certificate: &CertificateDer<'_>) -> bool {
    certificate.ends_with(&[UNSIGNED, NO_SIGNATURE].concat())
}

/// Version 3 and the serial number 0.
const VERSION_AND_SERIAL: &[u8] = &[0xa0, 3, 2, 1, 2, 2, 1, 0];
/// The algorithm `id-alg-unsigned` (RFC 9925, section 3.1).
const UNSIGNED: &[u8] = &[0x30, 10, 6, 8, 0x2b, 6, 1, 5, 5, 7, 6, 36];
/// A signature without bits.
const NO_SIGNATURE: &[u8] = &[3, 1, 0];
/// A name without attributes.
const NO_NAME: &[u8] = &[0x30, 0];
/// From the Unix epoch on, without a well-defined end (RFC 5280, section 4.1.2.5).
const VALIDITY: &[u8] = b"\x30\x20\x17\x0d700101000000Z\x18\x0f99991231235959Z";
/// The tag of the extensions of a certificate.
const EXTENSIONS: Tag = Tag::ContextSpecific { constructed: true, number: TagNumber(3) };

/// A certificate without issuer and signature. `extensions` may be empty.
fn unsigned(
    subject: &[u8],
    spki: &[u8],
    extensions: &[u8],
) -> der::Result<CertificateDer<'static>> {
    let extensions = match extensions {
        [] => Vec::new(),
        _ => AnyRef::new(EXTENSIONS, extensions)?.to_der()?,
    };
    let sequence = |parts: &[&[u8]]| AnyRef::new(Tag::Sequence, &parts.concat())?.to_der();
    let fields = [VERSION_AND_SERIAL, UNSIGNED, NO_NAME, VALIDITY, subject, spki, &extensions];
    Ok(sequence(&[&sequence(&fields)?, UNSIGNED, NO_SIGNATURE])?.into())
}

#[cfg(test)]
mod tests {
    use rcgen::{CertificateParams, KeyPair, PublicKeyData};

    use super::*;
    use crate::spki;
    use crate::tls::CertificateSummary;

    fn request(algorithm: &'static rcgen::SignatureAlgorithm) -> (Vec<u8>, Vec<u8>) {
        let key = KeyPair::generate_for(algorithm).unwrap();
        let mut parameters = CertificateParams::new(["a.example".to_owned()]).unwrap();
        parameters.distinguished_name.push(rcgen::DnType::CommonName, "a client");
        let request = parameters.serialize_request(&key).unwrap();
        (request.der().to_vec(), key.subject_public_key_info())
    }

    #[test]
    fn the_requested_certificate_has_subject_names_and_key_of_the_request() {
        for algorithm in [
            &rcgen::PKCS_ECDSA_P256_SHA256,
            &rcgen::PKCS_ECDSA_P384_SHA384,
            &rcgen::PKCS_ED25519,
            &rcgen::PKCS_RSA_SHA256,
            &rcgen::PKCS_ML_DSA_65,
        ] {
            let (request, key) = request(algorithm);
            let certificate = requested_certificate(&request).unwrap();
            assert_eq!(spki::of_certificate(&certificate).unwrap(), key);
            assert!(is_unsigned(&certificate));
            let summary = CertificateSummary::new(&certificate);
            assert_eq!(summary.subject, "CN=a client");
            assert_eq!(summary.dns_names, ["a.example"]);
            let bare = certificate_of_key(&key).unwrap();
            assert_eq!(spki::of_certificate(&bare).unwrap(), key);
            assert_eq!(CertificateSummary::new(&bare).name(), summary.fingerprint);
        }
    }

    #[test]
    fn every_changed_byte_and_every_prefix_of_a_request_is_an_error() {
        let (request, _) = request(&rcgen::PKCS_ED25519);
        for position in 0..request.len() {
            let mut changed = request.clone();
            changed[position] ^= 1;
            assert!(requested_certificate(&changed).is_err(), "byte {position}");
            assert_eq!(requested_certificate(&request[..position]), Err(RequestError::Malformed));
        }
        let longer = [&request[..], &[0]].concat();
        assert_eq!(requested_certificate(&longer), Err(RequestError::Malformed));
    }

    #[test]
    fn a_signature_of_another_key_proves_nothing() {
        let (one, key) = request(&rcgen::PKCS_ECDSA_P256_SHA256);
        let (other, other_key) = request(&rcgen::PKCS_ECDSA_P256_SHA256);
        let at = one.windows(key.len()).position(|window| window == key).unwrap();
        let mut stolen = one.clone();
        stolen[at..at + key.len()].copy_from_slice(&other_key);
        assert_eq!(requested_certificate(&stolen), Err(RequestError::Signature));
        assert!(requested_certificate(&other).is_ok());
    }

    #[test]
    fn a_key_that_is_not_the_der_of_one_is_an_error() {
        let (_, key) = request(&rcgen::PKCS_ED25519);
        for wrong in [&[][..], b"key", &key[1..], &key[..key.len() - 1]] {
            assert_eq!(certificate_of_key(wrong), Err(RequestError::Malformed), "{wrong:?}");
        }
    }
}

//! An object in DER, or in BER: its kind by its first fields, and its keys.

use x509_cert::der::{Decode, Reader, Tag};

use super::ber::{self, BerElement, SEQUENCE};
#[cfg(feature = "key-stores")]
use super::pkcs12;
use super::{InputError, KeyResults, der, pkcs7};
use crate::spki::sequence;

/// The SubjectPublicKeyInfos (DER) in an object of any kind. All kinds but PKCS #7 and PKCS #12
/// have one.
pub(super) fn keys_in(object: &[u8]) -> KeyResults {
    match kind_of(object) {
        #[cfg(feature = "key-stores")]
        Some(ObjectKind::Pkcs12) => pkcs12::keys_in(object),
        #[cfg(not(feature = "key-stores"))]
        Some(ObjectKind::Pkcs12) => vec![Err(InputError::Unsupported {
            what: "a PKCS #12 store".to_owned(),
            hint: "; give the certificates instead, or enable the feature `key-stores`",
        })],
        Some(ObjectKind::Pkcs7) => pkcs7::keys_in(object),
        kind => vec![key_in(kind, object)],
    }
}

fn key_in(kind: Option<ObjectKind>, object: &[u8]) -> Result<Vec<u8>, InputError> {
    match kind {
        Some(ObjectKind::Certificate) => {
            der::certificate(object).or_else(|error| der::request(object).map_err(|_| error))
        }
        Some(ObjectKind::EncryptedPrivateKey) => {
            Err(InputError::Encrypted { what: "the private key" })
        }
        Some(ObjectKind::Pkcs1PublicKey) => der::pkcs1_public_key(object),
        Some(ObjectKind::PrivateKey) => der::private_key(object),
        Some(ObjectKind::PublicKey) => der::public_key(object),
        Some(ObjectKind::Pkcs12 | ObjectKind::Pkcs7) | None => Err(InputError::NoKey),
    }
}

enum ObjectKind {
    /// A certificate or a request, which have the same structure.
    Certificate,
    EncryptedPrivateKey,
    Pkcs1PublicKey,
    Pkcs12,
    Pkcs7,
    PrivateKey,
    PublicKey,
}

/// The kind of an object, by the tags of its first fields.
fn kind_of(object: &[u8]) -> Option<ObjectKind> {
    // The others are never BER.
    if let Some(whole) = BerElement::only(object, SEQUENCE) {
        let mut fields = whole.elements();
        if let (Some(first), Some(second)) = (fields.next(), fields.next()) {
            match (first.tag, second.tag) {
                (ber::OID, ber::CONTEXT_0) => return Some(ObjectKind::Pkcs7),
                (ber::INTEGER, SEQUENCE) if first.number() == Some(3) => {
                    return Some(ObjectKind::Pkcs12);
                }
                _ => {}
            }
        }
    }
    let mut fields = sequence(object).ok()?;
    let first = fields.tlv_bytes().ok()?;
    let second = Tag::peek(&fields).ok()?;
    match (Tag::from_der(first.get(..1)?).ok()?, second) {
        (Tag::Sequence, Tag::Sequence) => Some(ObjectKind::Certificate),
        (Tag::Sequence, Tag::BitString) => Some(ObjectKind::PublicKey),
        (Tag::Sequence, Tag::OctetString) => Some(ObjectKind::EncryptedPrivateKey),
        (Tag::Integer, Tag::Integer) => {
            fields.tlv_bytes().ok()?;
            Some(if fields.is_finished() {
                ObjectKind::Pkcs1PublicKey
            } else {
                ObjectKind::PrivateKey
            })
        }
        (Tag::Integer, Tag::OctetString) => Some(ObjectKind::PrivateKey),
        (Tag::Integer, Tag::Sequence) => Some(ObjectKind::PrivateKey),
        _ => None,
    }
}

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
    // The other kinds are never BER.
    let mut fields = BerElement::only(object, SEQUENCE).into_iter().flat_map(|it| it.elements());
    match (fields.next(), fields.next().map(|second| second.tag)) {
        (Some(BerElement { tag: ber::OID, .. }), Some(ber::CONTEXT_0)) => pkcs7::keys_in(object),
        (Some(version), Some(SEQUENCE)) if version.number() == Some(3) => pkcs12_keys_in(object),
        _ => vec![key_in(object)],
    }
}

#[cfg(feature = "key-stores")]
fn pkcs12_keys_in(object: &[u8]) -> KeyResults {
    pkcs12::keys_in(object)
}

#[cfg(not(feature = "key-stores"))]
fn pkcs12_keys_in(_object: &[u8]) -> KeyResults {
    vec![Err(InputError::Unsupported {
        what: "a PKCS #12 store".to_owned(),
        hint: "; give the certificates instead, or enable the feature `key-stores`",
    })]
}

/// The key in an object in DER, whose kind follows from the tags of its first fields.
fn key_in(object: &[u8]) -> Result<Vec<u8>, InputError> {
    match first_tags(object) {
        // A certificate or a request, which have the same structure.
        Some((Tag::Sequence, Tag::Sequence, _)) => {
            der::certificate(object).or_else(|error| der::request(object).map_err(|_| error))
        }
        Some((Tag::Sequence, Tag::BitString, _)) => der::public_key(object),
        Some((Tag::Sequence, Tag::OctetString, _)) => {
            Err(InputError::Encrypted { what: "the private key" })
        }
        Some((Tag::Integer, Tag::Integer, true)) => der::pkcs1_public_key(object),
        Some((Tag::Integer, Tag::Integer | Tag::OctetString | Tag::Sequence, _)) => {
            der::private_key(object)
        }
        _ => Err(InputError::NoKey),
    }
}

/// The tags of the first two fields, and whether there are no others.
fn first_tags(object: &[u8]) -> Option<(Tag, Tag, bool)> {
    let mut fields = sequence(object).ok()?;
    let first = fields.tlv_bytes().ok()?;
    let second = Tag::peek(&fields).ok()?;
    let is_pair = fields.tlv_bytes().is_ok() && fields.is_finished();
    Some((Tag::from_der(first.get(..1)?).ok()?, second, is_pair))
}

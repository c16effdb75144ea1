//! PKCS #7 objects (`.p7b`, `.p7c`): the keys of their certificates.
//!
//! Signatures and content are not read. Sources: RFC 2315, section 9, RFC 5652, section 5.

use super::ber::{BerElement, CONTEXT_0, INTEGER, OID, SEQUENCE, SET};
use super::{Damage, InputError, KeyResults, der};

/// 1.2.840.113549.1.7.2.
const SIGNED_DATA: &[u8] = b"\x2a\x86\x48\x86\xf7\x0d\x01\x07\x02";

const WHAT: &str = "a PKCS #7 object";

/// The keys of all certificates in a PKCS #7 object, in its order.
pub(super) fn keys_in(object: &[u8]) -> KeyResults {
    certificate_keys(object).unwrap_or_else(|error| vec![Err(error)])
}

fn certificate_keys(object: &[u8]) -> Result<KeyResults, InputError> {
    let signed = signed_data(object)?;
    let damaged = || broken("its structure is damaged");
    let mut fields = signed.elements();
    fields.read(INTEGER).ok_or_else(damaged)?; // version
    fields.read(SET).ok_or_else(damaged)?; // digest algorithms
    fields.read(SEQUENCE).ok_or_else(damaged)?; // content
    let certificates = fields.read_optional(CONTEXT_0).map(|set| set.elements());
    let mut certificates = certificates.unwrap_or(super::ber::BerElements(b""));
    let mut keys = KeyResults::new();
    // Other tags are attribute certificates, which have no key.
    for element in certificates.by_ref().filter(|element| element.tag == SEQUENCE) {
        keys.push(der::certificate(element.whole));
    }
    if !certificates.0.is_empty() {
        keys.push(Err(damaged()));
    }
    if keys.is_empty() {
        return Err(InputError::NoCertificate { what: WHAT });
    }
    Ok(keys)
}

/// The SignedData in a ContentInfo.
fn signed_data(object: &[u8]) -> Result<BerElement<'_>, InputError> {
    let damaged = || broken("its structure is damaged");
    let mut info = BerElement::only(object, SEQUENCE).ok_or_else(damaged)?.elements();
    let kind = info.read(OID).ok_or_else(damaged)?;
    if kind.content != SIGNED_DATA {
        return Err(InputError::NoCertificate { what: WHAT });
    }
    let explicit = info.read(CONTEXT_0).ok_or_else(damaged)?;
    BerElement::only(explicit.content, SEQUENCE).ok_or_else(damaged)
}

fn broken(reason: &str) -> InputError {
    InputError::Broken { what: WHAT, source: Damage::Text(reason.to_owned()) }
}

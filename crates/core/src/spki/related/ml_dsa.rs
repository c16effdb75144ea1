//! ML-DSA keys (FIPS 204), which have one encoding.
//!
//! RFC 9881, section 2, forbids parameters. A key with parameters is therefore none of these keys.

use aws_lc_rs::signature::{
    ML_DSA_44_SIGNING, ML_DSA_65_SIGNING, ML_DSA_87_SIGNING, PqdsaSigningAlgorithm,
};

use crate::spki::{Element, OID, SEQUENCE};

/// A parameter set of ML-DSA.
pub(crate) struct MlDsa {
    /// The name in logs and in JSON.
    pub(crate) name: &'static str,
    /// The DER before the key. Nine bytes from the ninth on are the identifier.
    prefix: &'static [u8; 22],
    /// The length of a public key, in bytes (FIPS 204, table 2).
    key_length: usize,
    /// The algorithm that makes signatures, and public keys of private ones.
    pub(crate) signing: &'static PqdsaSigningAlgorithm,
}

static PARAMETER_SETS: [MlDsa; 3] = [
    MlDsa {
        name: "ml-dsa-44",
        prefix: b"\x30\x82\x05\x32\x30\x0b\x06\x09\x60\x86\x48\x01\x65\x03\x04\x03\x11\x03\x82\x05\x21\x00",
        key_length: 1312,
        signing: &ML_DSA_44_SIGNING,
    },
    MlDsa {
        name: "ml-dsa-65",
        prefix: b"\x30\x82\x07\xb2\x30\x0b\x06\x09\x60\x86\x48\x01\x65\x03\x04\x03\x12\x03\x82\x07\xa1\x00",
        key_length: 1952,
        signing: &ML_DSA_65_SIGNING,
    },
    MlDsa {
        name: "ml-dsa-87",
        prefix: b"\x30\x82\x0a\x32\x30\x0b\x06\x09\x60\x86\x48\x01\x65\x03\x04\x03\x13\x03\x82\x0a\x21\x00",
        key_length: 2592,
        signing: &ML_DSA_87_SIGNING,
    },
];

impl MlDsa {
    /// The parameter set with this name.
    pub(crate) fn named(name: &str) -> Option<&'static Self> {
        PARAMETER_SETS.iter().find(|it| it.name == name)
    }

    /// The parameter set with this object identifier (content octets).
    pub(in crate::spki) fn identified(oid: &[u8]) -> Option<&'static Self> {
        PARAMETER_SETS.iter().find(|it| it.prefix.get(8..17) == Some(oid))
    }

    /// The parameter set and the key in a SubjectPublicKeyInfo (DER).
    pub(super) fn parse(spki: &[u8]) -> Option<(&'static Self, &[u8])> {
        PARAMETER_SETS.iter().find_map(|it| {
            let key = spki.strip_prefix(it.prefix)?;
            (key.len() == it.key_length).then_some((it, key))
        })
    }

    /// The SubjectPublicKeyInfo (DER) of a key; `None` if it has another length.
    pub(in crate::spki) fn spki(&self, key: &[u8]) -> Option<Vec<u8>> {
        (key.len() == self.key_length).then(|| [self.prefix, key].concat())
    }
}

/// Why a SubjectPublicKeyInfo (DER) that names ML-DSA is no ML-DSA key: it has parameters. `None`
/// for every other key.
#[must_use]
pub fn key_problem(spki: &[u8]) -> Option<&'static str> {
    let mut algorithm = Element::next(&mut Element::only(spki)?.content, SEQUENCE)?.content;
    let named = MlDsa::identified(Element::next(&mut algorithm, OID)?.content);
    let has_parameters = named.is_some() && !algorithm.is_empty();
    has_parameters.then_some("an ML-DSA key with parameters; RFC 9881 requires them absent")
}

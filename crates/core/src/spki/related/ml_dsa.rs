//! ML-DSA keys (FIPS 204), which have one encoding.
//!
//! RFC 9881, section 2, forbids parameters. A key with parameters is therefore none of these keys.

use aws_lc_rs::signature::{
    ML_DSA_44_SIGNING, ML_DSA_65_SIGNING, ML_DSA_87_SIGNING, PqdsaSigningAlgorithm,
};

/// A parameter set of ML-DSA.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MlDsa {
    /// ML-DSA-44.
    MlDsa44,
    /// ML-DSA-65.
    MlDsa65,
    /// ML-DSA-87.
    MlDsa87,
}

impl MlDsa {
    /// Every parameter set.
    pub(in crate::spki) const ALL: [Self; 3] = [Self::MlDsa44, Self::MlDsa65, Self::MlDsa87];

    /// The name in logs and in JSON.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::MlDsa44 => "ml-dsa-44",
            Self::MlDsa65 => "ml-dsa-65",
            Self::MlDsa87 => "ml-dsa-87",
        }
    }

    /// The DER before the key.
    pub(in crate::spki) fn prefix(self) -> &'static [u8; 22] {
        match self {
            Self::MlDsa44 => {
                b"\x30\x82\x05\x32\x30\x0b\x06\x09\x60\x86\x48\x01\x65\x03\x04\x03\x11\x03\x82\x05\x21\x00"
            }
            Self::MlDsa65 => {
                b"\x30\x82\x07\xb2\x30\x0b\x06\x09\x60\x86\x48\x01\x65\x03\x04\x03\x12\x03\x82\x07\xa1\x00"
            }
            Self::MlDsa87 => {
                b"\x30\x82\x0a\x32\x30\x0b\x06\x09\x60\x86\x48\x01\x65\x03\x04\x03\x13\x03\x82\x0a\x21\x00"
            }
        }
    }

    /// The length of a public key, in bytes (FIPS 204, table 2).
    fn key_length(self) -> usize {
        match self {
            Self::MlDsa44 => 1312,
            Self::MlDsa65 => 1952,
            Self::MlDsa87 => 2592,
        }
    }

    /// The algorithm that makes signatures, and public keys of private ones.
    pub(crate) fn signing(self) -> &'static PqdsaSigningAlgorithm {
        match self {
            Self::MlDsa44 => &ML_DSA_44_SIGNING,
            Self::MlDsa65 => &ML_DSA_65_SIGNING,
            Self::MlDsa87 => &ML_DSA_87_SIGNING,
        }
    }

    /// The SubjectPublicKeyInfo (DER) of a key; `None` if it has another length.
    pub(in crate::spki) fn spki(self, key: &[u8]) -> Option<Vec<u8>> {
        (key.len() == self.key_length()).then(|| [self.prefix(), key].concat())
    }
}

/// A public key of ML-DSA.
pub(super) struct MlDsaKey<'a> {
    pub(super) parameters: MlDsa,
    pub(super) key: &'a [u8],
}

impl<'a> MlDsaKey<'a> {
    pub(super) fn parse(spki: &'a [u8]) -> Option<Self> {
        MlDsa::ALL.into_iter().find_map(|parameters| {
            let key = spki.strip_prefix(parameters.prefix())?;
            (key.len() == parameters.key_length()).then_some(Self { parameters, key })
        })
    }
}

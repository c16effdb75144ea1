//! The signature algorithm of a proof, which follows from the key and never from the proof.

use aws_lc_rs::signature::{
    ECDSA_P256_SHA256_FIXED, ECDSA_P256K1_SHA256_FIXED, ECDSA_P384_SHA384_FIXED,
    ECDSA_P521_SHA512_FIXED, ED25519, ML_DSA_44, ML_DSA_65, ML_DSA_87,
    RSA_PKCS1_1024_8192_SHA256_FOR_LEGACY_USE_ONLY, RSA_PKCS1_2048_8192_SHA256,
    VerificationAlgorithm,
};

use crate::spki::Algorithm;

/// The sizes of RSA keys that are accepted. The maximum is 8192 bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RsaKeys {
    From1024,
    From2048,
}

/// A signature algorithm of JOSE (RFC 7518, section 3.1, RFC 8812, RFC 9864, RFC 9964).
pub(super) struct SignatureAlgorithm {
    /// Accepted values of `alg`, the preferred one first.
    names: &'static [&'static str],
    /// ECDSA signatures have the fixed length of RFC 7518, section 3.4, and are not DER.
    pub(super) verification: &'static dyn VerificationAlgorithm,
}

const ED25519_NAMES: &[&str] = &["Ed25519", "EdDSA"];
const ES256_NAMES: &[&str] = &["ES256"];
const ES256K_NAMES: &[&str] = &["ES256K"];
const ES384_NAMES: &[&str] = &["ES384"];
const ES512_NAMES: &[&str] = &["ES512"];
const ML_DSA_44_NAMES: &[&str] = &["ML-DSA-44"];
const ML_DSA_65_NAMES: &[&str] = &["ML-DSA-65"];
const ML_DSA_87_NAMES: &[&str] = &["ML-DSA-87"];
const RS256_NAMES: &[&str] = &["RS256"];

/// Maximum size of an RSA key, in bits; the cryptographic library rejects larger ones.
const MAX_RSA_BITS: usize = 8192;

impl SignatureAlgorithm {
    /// The algorithm of proofs by the key with this SubjectPublicKeyInfo (DER); `None` if there is
    /// none.
    pub(super) fn from_spki(spki: &[u8], rsa_keys: RsaKeys) -> Option<Self> {
        let algorithm = match Algorithm::of(spki) {
            Algorithm::Ec("p256") => Self::new(ES256_NAMES, &ECDSA_P256_SHA256_FIXED),
            Algorithm::Ec("p384") => Self::new(ES384_NAMES, &ECDSA_P384_SHA384_FIXED),
            Algorithm::Ec("p521") => Self::new(ES512_NAMES, &ECDSA_P521_SHA512_FIXED),
            Algorithm::Ec("secp256k1") => Self::new(ES256K_NAMES, &ECDSA_P256K1_SHA256_FIXED),
            Algorithm::Ed25519 => Self::new(ED25519_NAMES, &ED25519),
            Algorithm::MlDsa("ml-dsa-44") => Self::new(ML_DSA_44_NAMES, &ML_DSA_44),
            Algorithm::MlDsa("ml-dsa-65") => Self::new(ML_DSA_65_NAMES, &ML_DSA_65),
            Algorithm::MlDsa("ml-dsa-87") => Self::new(ML_DSA_87_NAMES, &ML_DSA_87),
            Algorithm::Rsa(2048..=MAX_RSA_BITS) => {
                Self::new(RS256_NAMES, &RSA_PKCS1_2048_8192_SHA256)
            }
            Algorithm::Rsa(1024..2048) if rsa_keys == RsaKeys::From1024 => {
                Self::new(RS256_NAMES, &RSA_PKCS1_1024_8192_SHA256_FOR_LEGACY_USE_ONLY)
            }
            Algorithm::Ec(_) | Algorithm::MlDsa(_) | Algorithm::Other | Algorithm::Rsa(_) => {
                return None;
            }
        };
        Some(algorithm)
    }

    fn new(
        names: &'static [&'static str],
        verification: &'static dyn VerificationAlgorithm,
    ) -> Self {
        Self { names, verification }
    }

    /// The name of this algorithm that equals `alg`.
    pub(super) fn name(&self, alg: &str) -> Option<&'static str> {
        self.names.iter().copied().find(|name| *name == alg)
    }

    /// The name in proofs that keygate creates.
    pub(super) fn preferred_name(&self) -> &'static str {
        self.names.first().copied().unwrap_or_default()
    }
}

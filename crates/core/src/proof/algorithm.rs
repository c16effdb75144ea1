//! The signature algorithm of a proof, which follows from the key and never from the proof.

use aws_lc_rs::signature::{
    ECDSA_P256_SHA256_FIXED, ECDSA_P256K1_SHA256_FIXED, ECDSA_P384_SHA384_FIXED,
    ECDSA_P521_SHA512_FIXED, ED25519, ML_DSA_44, ML_DSA_65, ML_DSA_87,
    RSA_PKCS1_1024_8192_SHA256_FOR_LEGACY_USE_ONLY, RSA_PKCS1_2048_8192_SHA256,
    VerificationAlgorithm,
};

use crate::spki::Algorithm;

/// A signature algorithm of JOSE (RFC 7518, section 3.1, RFC 8812, RFC 9864, RFC 9964).
pub(super) struct SignatureAlgorithm {
    /// Accepted values of `alg`, the preferred one first.
    names: &'static [&'static str],
    /// ECDSA signatures have the fixed length of RFC 7518, section 3.4, and are not DER.
    pub(super) verification: &'static dyn VerificationAlgorithm,
}

/// Minimum size of an RSA key whose proof counts, in bits.
pub(super) const MIN_RSA_BITS: usize = 2048;
/// Maximum size of an RSA key, in bits; the cryptographic library rejects larger ones.
const MAX_RSA_BITS: usize = 8192;

impl SignatureAlgorithm {
    /// The algorithm of proofs by the key with this SubjectPublicKeyInfo (DER); `None` if there is
    /// none, or if an RSA key has less than `min_rsa_bits`.
    pub(super) fn from_spki(spki: &[u8], min_rsa_bits: usize) -> Option<Self> {
        let algorithm = Algorithm::of(spki);
        let (names, verification): (&[&str], &dyn VerificationAlgorithm) = match algorithm {
            Algorithm::Ec("p256") => (&["ES256"], &ECDSA_P256_SHA256_FIXED),
            Algorithm::Ec("p384") => (&["ES384"], &ECDSA_P384_SHA384_FIXED),
            Algorithm::Ec("p521") => (&["ES512"], &ECDSA_P521_SHA512_FIXED),
            Algorithm::Ec("secp256k1") => (&["ES256K"], &ECDSA_P256K1_SHA256_FIXED),
            Algorithm::Ed25519 => (&["Ed25519", "EdDSA"], &ED25519),
            Algorithm::MlDsa("ml-dsa-44") => (&["ML-DSA-44"], &ML_DSA_44),
            Algorithm::MlDsa("ml-dsa-65") => (&["ML-DSA-65"], &ML_DSA_65),
            Algorithm::MlDsa("ml-dsa-87") => (&["ML-DSA-87"], &ML_DSA_87),
            Algorithm::Rsa(MIN_RSA_BITS..=MAX_RSA_BITS) => {
                (&["RS256"], &RSA_PKCS1_2048_8192_SHA256)
            }
            Algorithm::Rsa(bits @ ..MIN_RSA_BITS) if bits >= min_rsa_bits => {
                (&["RS256"], &RSA_PKCS1_1024_8192_SHA256_FOR_LEGACY_USE_ONLY)
            }
            Algorithm::Ec(_) | Algorithm::MlDsa(_) | Algorithm::Other | Algorithm::Rsa(_) => {
                return None;
            }
        };
        Some(Self { names, verification })
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

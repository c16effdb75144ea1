//! Creates proofs with a private key, in the bytes of the reference generator.
//!
//! Source: <https://github.com/pwnedkeys/pwnedkeys-api-client>, `response.rb`.

use aws_lc_rs::error::{KeyRejected, Unspecified};
use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::signature::{
    ECDSA_P256_SHA256_FIXED_SIGNING, ECDSA_P256K1_SHA256_FIXED_SIGNING,
    ECDSA_P384_SHA384_FIXED_SIGNING, ECDSA_P521_SHA512_FIXED_SIGNING, EcdsaKeyPair,
    EcdsaSigningAlgorithm, Ed25519KeyPair, PqdsaKeyPair, RSA_PKCS1_SHA256, RsaKeyPair,
};
use data_encoding::BASE64URL_NOPAD;

use super::algorithm::{RsaKeys, SignatureAlgorithm};
use crate::spki::{Algorithm, Encoding, Fingerprint, InputError, MlDsa, keys_in, related};

/// The statement of the reference generator, two spaces included.
const STATEMENT: &str = "This key is pwned!  See https://pwnedkeys.com for more info.";

/// A proof for one encoding of a key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CreatedProof {
    /// The SubjectPublicKeyInfo (DER) that verifies the proof.
    pub spki: Vec<u8>,
    /// The fingerprint of `spki`, which is the `kid` of the proof.
    pub fingerprint: Fingerprint,
    /// The proof, without a line break at the end.
    pub json: String,
}

/// The reason why no proof can be made with a key.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum CreateError {
    /// The input is not a private key in DER.
    #[error(transparent)]
    Input(#[from] InputError),
    /// ACME has no signature for the algorithm of the key.
    #[error(
        "ACME has no signature for a key of the algorithm {0}: expected RSA from 2048 to 8192 bits, P-256, P-384, P-521 or Ed25519"
    )]
    NoRequest(String),
    /// The input has no private key, or the cryptographic library rejects the private key.
    #[error("not a private key that can sign: {0}")]
    PrivateKey(#[from] KeyRejected),
    /// The cryptographic library cannot sign.
    #[error("the signature failed: {0}")]
    Signature(#[from] Unspecified),
    /// No proof is defined for the algorithm or the size of the key.
    #[error(
        "no proof is defined for a key of the algorithm {0}: expected RSA from 2048 to 8192 bits, P-256, P-384, P-521, secp256k1, Ed25519 or ML-DSA"
    )]
    Unsupported(String),
}

/// Creates the proofs of a private key (DER of PKCS #8, PKCS #1 or SEC 1), one for each encoding
/// that a filter contains: an elliptic-curve key has two, uncompressed first.
///
/// # Errors
/// Returns an error if `private_key` is not a private key, or has an algorithm without proofs.
pub fn create(private_key: &[u8]) -> Result<Vec<CreatedProof>, CreateError> {
    let spki = spki_of(private_key)?;
    let signer = Signer::new(private_key, &spki)?;
    let mut proofs = Vec::new();
    for (encoding, spki) in related(&spki) {
        if matches!(encoding, Encoding::Presented | Encoding::Compressed) {
            proofs.push(proof(&signer, spki)?);
        }
    }
    Ok(proofs)
}

/// The SubjectPublicKeyInfo (DER) of a private key.
pub(super) fn spki_of(private_key: &[u8]) -> Result<Vec<u8>, InputError> {
    let found = keys_in(private_key).into_iter().next().map(|finding| finding.key);
    found.unwrap_or(Err(InputError::NoKey))
}

fn proof(signer: &Signer, spki: Vec<u8>) -> Result<CreatedProof, CreateError> {
    let fingerprint = Fingerprint::of(&spki);
    let algorithm = SignatureAlgorithm::from_spki(&spki, RsaKeys::From2048)
        .ok_or_else(|| CreateError::Unsupported(Algorithm::of(&spki).to_string()))?;
    let header = format!(r#"{{"alg":"{}","kid":"{fingerprint}"}}"#, algorithm.preferred_name());
    let header = BASE64URL_NOPAD.encode(header.as_bytes());
    let payload = BASE64URL_NOPAD.encode(STATEMENT.as_bytes());
    let signature = signer.sign(format!("{header}.{payload}").as_bytes())?;
    let signature = BASE64URL_NOPAD.encode(&signature);
    let json =
        format!(r#"{{"payload":"{payload}","protected":"{header}","signature":"{signature}"}}"#);
    Ok(CreatedProof { spki, fingerprint, json })
}

pub(super) enum Signer {
    Ecdsa(EcdsaKeyPair),
    Ed25519(Ed25519KeyPair),
    MlDsa(PqdsaKeyPair),
    Rsa(RsaKeyPair),
}

impl Signer {
    /// The signer with `private_key`, whose public key is `spki`.
    pub(super) fn new(private_key: &[u8], spki: &[u8]) -> Result<Self, CreateError> {
        let ecdsa = |curve: &'static EcdsaSigningAlgorithm| {
            Ok(Self::Ecdsa(EcdsaKeyPair::from_private_key_der(curve, private_key)?))
        };
        match Algorithm::of(spki) {
            Algorithm::Ec("p256") => ecdsa(&ECDSA_P256_SHA256_FIXED_SIGNING),
            Algorithm::Ec("p384") => ecdsa(&ECDSA_P384_SHA384_FIXED_SIGNING),
            Algorithm::Ec("p521") => ecdsa(&ECDSA_P521_SHA512_FIXED_SIGNING),
            Algorithm::Ec("secp256k1") => ecdsa(&ECDSA_P256K1_SHA256_FIXED_SIGNING),
            // PKCS #8 of version 1 has no public key that could be checked.
            Algorithm::Ed25519 => {
                Ok(Self::Ed25519(Ed25519KeyPair::from_pkcs8_maybe_unchecked(private_key)?))
            }
            algorithm @ Algorithm::MlDsa(name) => {
                let unsupported = || CreateError::Unsupported(algorithm.to_string());
                let parameters = MlDsa::named(name).ok_or_else(unsupported)?;
                Ok(Self::MlDsa(PqdsaKeyPair::from_pkcs8(parameters.signing, private_key)?))
            }
            Algorithm::Rsa(2048..) => {
                let pair = RsaKeyPair::from_pkcs8(private_key);
                Ok(Self::Rsa(pair.or_else(|_| RsaKeyPair::from_der(private_key))?))
            }
            algorithm @ (Algorithm::Ec(_) | Algorithm::Other | Algorithm::Rsa(_)) => {
                Err(CreateError::Unsupported(algorithm.to_string()))
            }
        }
    }

    pub(super) fn sign(&self, message: &[u8]) -> Result<Vec<u8>, Unspecified> {
        let random = SystemRandom::new();
        match self {
            Self::Ecdsa(pair) => Ok(pair.sign(&random, message)?.as_ref().to_vec()),
            Self::Ed25519(pair) => Ok(pair.sign(message).as_ref().to_vec()),
            Self::MlDsa(pair) => {
                let mut signature = vec![0; pair.algorithm().signature_len()];
                pair.sign(message, &mut signature)?;
                Ok(signature)
            }
            Self::Rsa(pair) => {
                let mut signature = vec![0; pair.public_modulus_len()];
                pair.sign(&RSA_PKCS1_SHA256, &random, message, &mut signature)?;
                Ok(signature)
            }
        }
    }
}

//! Proofs of compromise: statements that are signed with the compromised key itself.
//!
//! A proof is a flattened JWS (RFC 7515, section 7.2.2), as the pwnedkeys API serves it. Works on
//! bytes and never does I/O. The key that verifies a proof comes from the caller. The proof names
//! that key by its fingerprint and cannot supply one. Everything that the format does not need is
//! rejected, so that no other signature of the key can pass for a proof: a JWT has other header
//! parameters. Source: <https://pwnedkeys.com/api/v1>

mod algorithm;
mod create;
mod form;

use aws_lc_rs::signature::ParsedPublicKey;

pub use self::create::{CreateError, CreatedProof, create};

use self::algorithm::{MIN_RSA_BITS, SignatureAlgorithm};
use self::form::ProofForm;
use crate::named::named;
use crate::regular_file::FileSize;
use crate::spki::Fingerprint;

/// Maximum size of a proof, in bytes. A proof of an ML-DSA-87 key has less than 8 KiB.
pub const MAX_BODY: usize = 16 << 10;
/// Maximum size of the statement in a proof, in bytes.
pub const MAX_PAYLOAD: usize = 1024;
/// Words that every statement contains.
pub const TEXT: &str = "key is pwned";

/// A verified proof: the holder of a private key signed that the key is compromised.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Proof {
    /// The fingerprint of the SubjectPublicKeyInfo that verified the proof.
    pub fingerprint: Fingerprint,
    /// The JOSE name of the signature algorithm, for example `ES256`.
    pub algorithm: &'static str,
    /// The signed statement, at most [`MAX_PAYLOAD`] bytes.
    pub payload: Vec<u8>,
}

named! {
    /// The reason why bytes do not prove the compromise of a key.
    #[derive(Hash, thiserror::Error)]
    pub enum BadProof {
        /// `alg` is not the algorithm that belongs to the key.
        #[error("`alg` is not the signature algorithm of the key")]
        Algorithm = "algorithm",
        /// A member has padding, spare bits, or characters outside of the alphabet.
        #[error("a member is not strict base64url (RFC 4648, section 5, without padding)")]
        Base64 = "base64",
        /// The protected header does not consist of `alg` and `kid`, once each.
        #[error("the protected header does not consist of the strings `alg` and `kid`")]
        Header = "header",
        /// The body is not JSON.
        #[error("not JSON")]
        Json = "json",
        /// No proof is defined for the algorithm or the size of the key.
        #[error("no proof is defined for a key of this algorithm or size")]
        Key = "key",
        /// `kid` is not the fingerprint of the key.
        #[error("`kid` is not the fingerprint of the key")]
        KeyId = "kid",
        /// The body does not consist of three string members, once each.
        #[error(
            "not an object of the strings `payload`, `protected` and `signature`, each of them once"
        )]
        Members = "members",
        /// The payload is larger than [`MAX_PAYLOAD`].
        #[error("the payload is larger than {}", FileSize(MAX_PAYLOAD as u64))]
        Payload = "payload",
        /// The key did not make the signature.
        #[error("the signature is not one of the key")]
        Signature = "signature",
        /// The body is larger than [`MAX_BODY`].
        #[error("larger than {}", FileSize(MAX_BODY as u64))]
        Size = "size",
        /// The payload does not contain [`TEXT`].
        #[error("the payload does not contain \"{TEXT}\"")]
        Text = "text",
    }
}

/// Verifies that `body` proves the compromise of the key with this SubjectPublicKeyInfo (DER).
///
/// `spki` is the encoding that the proof was requested for: `kid` is its fingerprint. Keys are RSA
/// from 2048 to 8192 bits, P-256, P-384, P-521, secp256k1, Ed25519 and ML-DSA.
///
/// # Errors
/// Returns the first reason in this order: [`BadProof::Size`], [`BadProof::Json`],
/// [`BadProof::Members`], [`BadProof::Base64`], [`BadProof::Header`], [`BadProof::Key`],
/// [`BadProof::Algorithm`], [`BadProof::KeyId`], [`BadProof::Payload`], [`BadProof::Text`],
/// [`BadProof::Signature`].
pub fn verify(body: &[u8], spki: &[u8]) -> Result<Proof, BadProof> {
    verify_with(body, spki, MIN_RSA_BITS)
}

/// As [`verify`], and accepts RSA keys from 1024 bits.
///
/// RFC 7518, section 3.3, requires 2048 bits. pwnedkeys also has proofs for smaller keys. They are
/// good enough for a person who examines a proof, but not for a decision about a client.
///
/// # Errors
/// Returns the errors of [`verify`].
pub fn verify_with_rsa_1024(body: &[u8], spki: &[u8]) -> Result<Proof, BadProof> {
    verify_with(body, spki, 1024)
}

fn verify_with(body: &[u8], spki: &[u8], min_rsa_bits: usize) -> Result<Proof, BadProof> {
    let form = ProofForm::parse(body)?;
    let fingerprint = Fingerprint::of(spki);
    let algorithm = SignatureAlgorithm::from_spki(spki, min_rsa_bits).ok_or(BadProof::Key)?;
    let name = algorithm.name(&form.algorithm).ok_or(BadProof::Algorithm)?;
    if form.key_id != fingerprint.to_string() {
        return Err(BadProof::KeyId);
    }
    form.check_payload()?;
    let key = ParsedPublicKey::new(algorithm.verification, spki).map_err(|_| BadProof::Key)?;
    key.verify_sig(form.signed.as_bytes(), &form.signature).map_err(|_| BadProof::Signature)?;
    Ok(Proof { fingerprint, algorithm: name, payload: form.payload })
}

/// The fingerprint of the key that `body` claims to prove compromised. Verifies no signature.
///
/// # Errors
/// Returns an error if `body` has not the form of a proof.
pub fn form(body: &[u8]) -> Result<Fingerprint, BadProof> {
    let form = ProofForm::parse(body)?;
    let fingerprint = Fingerprint::parse(&form.key_id)
        .filter(|fingerprint| fingerprint.to_string() == form.key_id)
        .ok_or(BadProof::KeyId)?;
    form.check_payload()?;
    Ok(fingerprint)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_created_proof_verifies_with_each_encoding_that_it_was_made_for() {
        for (algorithm, name, encodings) in [
            (&rcgen::PKCS_ECDSA_P256_SHA256, "ES256", 2),
            (&rcgen::PKCS_ECDSA_P384_SHA384, "ES384", 2),
            (&rcgen::PKCS_ECDSA_P521_SHA512, "ES512", 2),
            (&rcgen::PKCS_ED25519, "Ed25519", 1),
            (&rcgen::PKCS_ML_DSA_44, "ML-DSA-44", 1),
            (&rcgen::PKCS_ML_DSA_65, "ML-DSA-65", 1),
            (&rcgen::PKCS_ML_DSA_87, "ML-DSA-87", 1),
            (&rcgen::PKCS_RSA_SHA256, "RS256", 1),
        ] {
            let key = rcgen::KeyPair::generate_for(algorithm).unwrap();
            let proofs = create(&key.serialize_der()).unwrap();
            assert_eq!(proofs.len(), encodings, "{name}");
            for created in proofs {
                let proof = verify(created.json.as_bytes(), &created.spki).unwrap();
                assert_eq!(proof.algorithm, name);
                assert_eq!(proof.fingerprint, created.fingerprint);
                assert_eq!(form(created.json.as_bytes()), Ok(created.fingerprint));
            }
        }
    }
}

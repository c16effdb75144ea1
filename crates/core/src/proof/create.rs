//! Creates proofs with a private key, in the bytes of the reference generator.
//!
//! Source: <https://github.com/pwnedkeys/pwnedkeys-api-client>, `response.rb`.

use super::algorithm::{MIN_RSA_BITS, SignatureAlgorithm};
use crate::jws::{Signer, spki_of};
use crate::spki::{Algorithm, Encoding, Fingerprint, related};

pub use crate::jws::CreateError;

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

fn proof(signer: &Signer, spki: Vec<u8>) -> Result<CreatedProof, CreateError> {
    let fingerprint = Fingerprint::of(&spki);
    let algorithm = SignatureAlgorithm::from_spki(&spki, MIN_RSA_BITS)
        .ok_or_else(|| CreateError::Unsupported(Algorithm::of(&spki).to_string()))?;
    let header = format!(r#"{{"alg":"{}","kid":"{fingerprint}"}}"#, algorithm.preferred_name());
    let [header, payload, signature] = signer.parts(header.as_bytes(), STATEMENT.as_bytes())?;
    let json =
        format!(r#"{{"payload":"{payload}","protected":"{header}","signature":"{signature}"}}"#);
    Ok(CreatedProof { spki, fingerprint, json })
}

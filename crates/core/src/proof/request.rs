//! Requests that a private key signs, with its public key in the header (RFC 8555, section 6.2).

use aws_lc_rs::error::Unspecified;
use aws_lc_rs::signature::{EcdsaKeyPair, KeyPair};
use data_encoding::BASE64URL_NOPAD;
use serde_json::{Value, json};

use super::create::{CreateError, Signer, spki_of};
use crate::spki::{Algorithm, PublicKey};

/// Signs requests to an ACME server with a private key.
pub struct RequestSigner {
    signer: Signer,
    /// SubjectPublicKeyInfo (DER) of the key.
    pub spki: Vec<u8>,
    /// The JOSE name of the signature algorithm.
    pub algorithm: &'static str,
    /// The public key as a JSON Web Key (RFC 7518, section 6; RFC 8037).
    jwk: Value,
}

impl RequestSigner {
    /// A signer with a private key (DER of PKCS #8, PKCS #1 or SEC 1).
    ///
    /// # Errors
    /// Returns an error if `private_key` is not a private key, or if its algorithm has no signature
    /// in ACME.
    pub fn new(private_key: &[u8]) -> Result<Self, CreateError> {
        let spki = spki_of(private_key)?;
        let signer = Signer::new(private_key, &spki)?;
        let key = Algorithm::of(&spki);
        let unsupported = || CreateError::NoRequest(key.to_string());
        let (algorithm, jwk) = match (&signer, &key) {
            (Signer::Ecdsa(pair), Algorithm::Ec("p256")) => ("ES256", ec_key("P-256", pair)),
            (Signer::Ecdsa(pair), Algorithm::Ec("p384")) => ("ES384", ec_key("P-384", pair)),
            (Signer::Ecdsa(pair), Algorithm::Ec("p521")) => ("ES512", ec_key("P-521", pair)),
            (Signer::Ed25519(pair), _) => {
                let x = BASE64URL_NOPAD.encode(pair.public_key().as_ref());
                ("EdDSA", json!({ "kty": "OKP", "crv": "Ed25519", "x": x }))
            }
            (Signer::Rsa(_), _) => {
                let numbers = PublicKey::parse(&spki).rsa_numbers().ok_or_else(unsupported)?;
                let [n, e] =
                    [numbers.modulus, numbers.exponent].map(|it| BASE64URL_NOPAD.encode(it));
                ("RS256", json!({ "kty": "RSA", "n": n, "e": e }))
            }
            (Signer::Ecdsa(_) | Signer::MlDsa(_), _) => return Err(unsupported()),
        };
        Ok(Self { signer, spki, algorithm, jwk })
    }

    /// The body of a request: a flattened JWS (RFC 7515, section 7.2.2).
    ///
    /// # Errors
    /// Returns an error if the cryptographic library cannot sign.
    pub fn sign(&self, nonce: &str, url: &str, payload: &Value) -> Result<String, Unspecified> {
        let header = json!({ "alg": self.algorithm, "jwk": self.jwk, "nonce": nonce, "url": url });
        let [protected, payload] =
            [&header, payload].map(|it| BASE64URL_NOPAD.encode(it.to_string().as_bytes()));
        let signature = self.signer.sign(format!("{protected}.{payload}").as_bytes())?;
        let signature = BASE64URL_NOPAD.encode(&signature);
        Ok(json!({ "protected": protected, "payload": payload, "signature": signature })
            .to_string())
    }
}

/// The public key of `pair`, whose point is uncompressed: 4, x, y.
fn ec_key(curve: &str, pair: &EcdsaKeyPair) -> Value {
    let point = pair.public_key().as_ref().get(1..).unwrap_or_default();
    let (x, y) = point.split_at(point.len() / 2);
    let [x, y] = [x, y].map(|it| BASE64URL_NOPAD.encode(it));
    json!({ "kty": "EC", "crv": curve, "x": x, "y": y })
}

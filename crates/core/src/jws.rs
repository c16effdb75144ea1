//! Signatures of JOSE with a private key (RFC 7515): of proofs, requests and assertions.

use aws_lc_rs::error::{KeyRejected, Unspecified};
use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::signature::{
    ECDSA_P256_SHA256_FIXED_SIGNING, ECDSA_P256K1_SHA256_FIXED_SIGNING,
    ECDSA_P384_SHA384_FIXED_SIGNING, ECDSA_P521_SHA512_FIXED_SIGNING, EcdsaKeyPair,
    EcdsaSigningAlgorithm, Ed25519KeyPair, KeyPair, PqdsaKeyPair, RSA_PKCS1_SHA256, RsaKeyPair,
};
use data_encoding::BASE64URL_NOPAD;
use serde_json::{Value, json};

use crate::spki::{Algorithm, InputError, MlDsa, PublicKey, keys_in};

/// The reason why a key cannot sign.
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

/// A private key that signs, with its public key for others. `Debug` shows no secret.
#[derive(Debug)]
pub struct SigningKey {
    signer: Signer,
    /// SubjectPublicKeyInfo (DER) of the key.
    pub spki: Vec<u8>,
    /// The JOSE name of the signature algorithm.
    pub algorithm: &'static str,
    /// The public key as a JSON Web Key (RFC 7518, section 6; RFC 8037).
    pub jwk: Value,
}

impl SigningKey {
    /// The private key (DER of PKCS #8, PKCS #1 or SEC 1).
    ///
    /// # Errors
    /// Returns an error if `private_key` is not a private key, or if ACME has no signature for its
    /// algorithm.
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

    /// The JWS of `header` and `payload`: its three parts in base64url.
    ///
    /// # Errors
    /// Returns an error if the cryptographic library cannot sign.
    pub fn sign(&self, header: &Value, payload: &Value) -> Result<[String; 3], Unspecified> {
        self.signer.parts(header.to_string().as_bytes(), payload.to_string().as_bytes())
    }

    /// The body of a request to an ACME server: a flattened JWS with the public key in its header
    /// (RFC 7515, section 7.2.2; RFC 8555, section 6.2).
    ///
    /// # Errors
    /// Returns an error if the cryptographic library cannot sign.
    pub fn acme_request(
        &self,
        nonce: &str,
        url: &str,
        payload: &Value,
    ) -> Result<String, Unspecified> {
        let Self { algorithm, jwk, .. } = self;
        let header = json!({ "alg": algorithm, "jwk": jwk, "nonce": nonce, "url": url });
        let [protected, payload, signature] = self.sign(&header, payload)?;
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

/// The SubjectPublicKeyInfo (DER) of a private key.
pub(crate) fn spki_of(private_key: &[u8]) -> Result<Vec<u8>, InputError> {
    let found = keys_in(private_key).into_iter().next().map(|finding| finding.key);
    found.unwrap_or(Err(InputError::NoKey))
}

#[derive(Debug)]
pub(crate) enum Signer {
    Ecdsa(EcdsaKeyPair),
    Ed25519(Ed25519KeyPair),
    MlDsa(PqdsaKeyPair),
    Rsa(RsaKeyPair),
}

impl Signer {
    /// The signer with `private_key`, whose public key is `spki`.
    pub(crate) fn new(private_key: &[u8], spki: &[u8]) -> Result<Self, CreateError> {
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

    /// The parts of a JWS in base64url: header, payload, signature.
    pub(crate) fn parts(&self, header: &[u8], payload: &[u8]) -> Result<[String; 3], Unspecified> {
        let [header, payload] = [header, payload].map(|it| BASE64URL_NOPAD.encode(it));
        let signature = self.sign(format!("{header}.{payload}").as_bytes())?;
        Ok([header, payload, BASE64URL_NOPAD.encode(&signature)])
    }

    fn sign(&self, message: &[u8]) -> Result<Vec<u8>, Unspecified> {
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

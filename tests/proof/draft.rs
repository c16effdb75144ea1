//! Proofs of any content, made with the private keys of `tests/vectors`.

use std::path::Path;

use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::signature::{
    ECDSA_P256_SHA256_ASN1_SIGNING, ECDSA_P256_SHA256_FIXED_SIGNING,
    ECDSA_P384_SHA384_ASN1_SIGNING, ECDSA_P384_SHA384_FIXED_SIGNING,
    ECDSA_P521_SHA512_ASN1_SIGNING, ECDSA_P521_SHA512_FIXED_SIGNING, EcdsaKeyPair,
    EcdsaSigningAlgorithm, Ed25519KeyPair, RSA_PKCS1_SHA256, RSA_PKCS1_SHA384, RSA_PSS_SHA256,
    RsaEncoding, RsaKeyPair,
};
use data_encoding::BASE64URL_NOPAD;
use keygate_core::spki::{Fingerprint, keys_in};
use rustls::pki_types::PrivateKeyDer;
use rustls::pki_types::pem::PemObject;

/// The statement of the reference generator.
pub const STATEMENT: &str = "This key is pwned!  See https://pwnedkeys.com for more info.";

/// A private key with its public half.
pub struct TestKey {
    pub der: Vec<u8>,
    pub spki: Vec<u8>,
}

impl TestKey {
    /// The key in `tests/vectors/NAME.key.pem`.
    pub fn named(name: &str) -> Self {
        let path = format!("{}/tests/vectors/{name}.key.pem", env!("CARGO_MANIFEST_DIR"));
        Self::from_pem_file(Path::new(&path))
    }

    pub fn from_pem_file(path: &Path) -> Self {
        let der = PrivateKeyDer::from_pem_file(path).unwrap().secret_der().to_vec();
        let spki = keys_in(&der).remove(0).key.unwrap();
        Self { der, spki }
    }

    pub fn fingerprint(&self) -> String {
        Fingerprint::of(&self.spki).to_string()
    }

    /// A proof with the usual payload, and this `alg` and `kid`.
    pub fn draft(&self, alg: &str, sign: impl Fn(&[u8], &[u8]) -> Vec<u8>) -> String {
        let header = header(alg, &self.fingerprint());
        self.proof(&header, STATEMENT.as_bytes(), sign)
    }

    /// A proof with this protected header and payload.
    pub fn proof(
        &self,
        header: &str,
        payload: &[u8],
        sign: impl Fn(&[u8], &[u8]) -> Vec<u8>,
    ) -> String {
        let (header, payload) =
            (BASE64URL_NOPAD.encode(header.as_bytes()), BASE64URL_NOPAD.encode(payload));
        let signature = sign(&self.der, format!("{header}.{payload}").as_bytes());
        body(&payload, &header, &BASE64URL_NOPAD.encode(&signature))
    }
}

pub fn header(alg: &str, kid: &str) -> String {
    format!(r#"{{"alg":"{alg}","kid":"{kid}"}}"#)
}

pub fn body(payload: &str, protected: &str, signature: &str) -> String {
    format!(r#"{{"payload":"{payload}","protected":"{protected}","signature":"{signature}"}}"#)
}

/// The members of a proof in the order `payload`, `protected`, `signature`.
pub fn members(proof: &str) -> [String; 3] {
    let words: Vec<_> = proof.split('"').collect();
    [words[3], words[7], words[11]].map(str::to_owned)
}

/// The sizes of an ECDSA signature as two numbers, by the name of the key's file.
pub const CURVES: [(&str, &str, usize); 3] =
    [("p256-a", "ES256", 64), ("p384", "ES384", 96), ("p521", "ES512", 132)];

fn ecdsa(curve: &'static EcdsaSigningAlgorithm, key: &[u8], message: &[u8]) -> Vec<u8> {
    let pair = EcdsaKeyPair::from_private_key_der(curve, key).unwrap();
    pair.sign(&SystemRandom::new(), message).unwrap().as_ref().to_vec()
}

/// The signature of the JOSE algorithm `alg`, which is ES256, ES384 or ES512.
pub fn fixed(alg: &str) -> impl Fn(&[u8], &[u8]) -> Vec<u8> {
    let curve = match alg {
        "ES256" => &ECDSA_P256_SHA256_FIXED_SIGNING,
        "ES384" => &ECDSA_P384_SHA384_FIXED_SIGNING,
        "ES512" => &ECDSA_P521_SHA512_FIXED_SIGNING,
        other => panic!("{other}"),
    };
    move |key, message| ecdsa(curve, key, message)
}

/// As [`fixed`], but in DER.
pub fn asn1(alg: &str) -> impl Fn(&[u8], &[u8]) -> Vec<u8> {
    let curve = match alg {
        "ES256" => &ECDSA_P256_SHA256_ASN1_SIGNING,
        "ES384" => &ECDSA_P384_SHA384_ASN1_SIGNING,
        "ES512" => &ECDSA_P521_SHA512_ASN1_SIGNING,
        other => panic!("{other}"),
    };
    move |key, message| ecdsa(curve, key, message)
}

fn rsa(padding: &'static dyn RsaEncoding, key: &[u8], message: &[u8]) -> Vec<u8> {
    let pair = RsaKeyPair::from_pkcs8(key).unwrap();
    let mut signature = vec![0; pair.public_modulus_len()];
    pair.sign(padding, &SystemRandom::new(), message, &mut signature).unwrap();
    signature
}

pub fn rs256(key: &[u8], message: &[u8]) -> Vec<u8> {
    rsa(&RSA_PKCS1_SHA256, key, message)
}

pub fn rs384(key: &[u8], message: &[u8]) -> Vec<u8> {
    rsa(&RSA_PKCS1_SHA384, key, message)
}

pub fn ps256(key: &[u8], message: &[u8]) -> Vec<u8> {
    rsa(&RSA_PSS_SHA256, key, message)
}

pub fn ed25519(key: &[u8], message: &[u8]) -> Vec<u8> {
    Ed25519KeyPair::from_pkcs8_maybe_unchecked(key).unwrap().sign(message).as_ref().to_vec()
}

//! Extracts the public key of one DER object: a certificate, a request, a public or private key.
//!
//! The public key of a private key is computed if
//! the object does not contain it. Sources: RFC 5280 (certificates), RFC 2986 (requests), RFC 8017
//! (RSA), RFC 5915 and RFC 5958 (private keys), RFC 9881 (ML-DSA).

use aws_lc_rs::encoding::{AsDer, PublicKeyX509Der};
use aws_lc_rs::error::Unspecified;
use aws_lc_rs::signature::{
    ECDSA_P256_SHA256_ASN1_SIGNING, ECDSA_P256K1_SHA256_ASN1_SIGNING,
    ECDSA_P384_SHA384_ASN1_SIGNING, ECDSA_P521_SHA512_ASN1_SIGNING, EcdsaKeyPair, Ed25519KeyPair,
    KeyPair, PqdsaKeyPair,
};
use x509_cert::der::asn1::{AnyRef, ObjectIdentifier};
use x509_cert::der::{Decode, Encode, Reader, SliceReader, Tag};
use x509_cert::request::CertReq;
use x509_cert::spki::SubjectPublicKeyInfoRef;

use super::{Damage, InputError};
use crate::spki::related::{ed25519_spki, rsa_spki};
use crate::spki::{MlDsa, of_certificate, sequence};

const RSA: ObjectIdentifier = ObjectIdentifier::new_unwrap("1.2.840.113549.1.1.1");
const EC: ObjectIdentifier = ObjectIdentifier::new_unwrap("1.2.840.10045.2.1");
const ED25519: ObjectIdentifier = ObjectIdentifier::new_unwrap("1.3.101.112");

pub(super) fn certificate(object: &[u8]) -> Result<Vec<u8>, InputError> {
    let spki = of_certificate(object).map_err(|error| broken("a certificate", error))?;
    public_key(spki)
}

/// OpenSSL's format: a certificate followed by its trust settings.
pub(super) fn trusted_certificate(object: &[u8]) -> Result<Vec<u8>, InputError> {
    let first = SliceReader::new(object).and_then(|mut reader| reader.tlv_bytes());
    certificate(first.map_err(|error| broken("a certificate", error))?)
}

pub(super) fn request(object: &[u8]) -> Result<Vec<u8>, InputError> {
    let what = "a certificate request";
    let request = CertReq::from_der(object).map_err(|error| broken(what, error))?;
    request.info.public_key.to_der().map_err(|error| broken(what, error))
}

pub(super) fn public_key(object: &[u8]) -> Result<Vec<u8>, InputError> {
    SubjectPublicKeyInfoRef::from_der(object).map_err(|error| broken("a public key", error))?;
    Ok(object.to_vec())
}

pub(super) fn pkcs1_public_key(object: &[u8]) -> Result<Vec<u8>, InputError> {
    let what = "an RSA public key";
    let mut fields = sequence(object).map_err(|error| broken(what, error))?;
    rsa_key(&mut fields, what)
}

/// A PKCS #8, PKCS #1 or SEC 1 key, distinguished by the field after the version.
pub(super) fn private_key(object: &[u8]) -> Result<Vec<u8>, InputError> {
    let mut fields = sequence(object).map_err(|error| broken(PRIVATE_KEY, error))?;
    skip(&mut fields)?; // version
    let next = Tag::peek(&fields).map_err(|error| broken(PRIVATE_KEY, error))?;
    if next == Tag::Integer {
        rsa_key(&mut fields, PRIVATE_KEY)
    } else if next == Tag::OctetString {
        ec_key(object)
    } else {
        pkcs8_key(object, &mut fields)
    }
}

const PRIVATE_KEY: &str = "a private key";

fn pkcs8_key(object: &[u8], fields: &mut SliceReader<'_>) -> Result<Vec<u8>, InputError> {
    let damaged = |error: x509_cert::der::Error| broken(PRIVATE_KEY, error);
    let mut algorithm = sequence(fields.tlv_bytes().map_err(damaged)?).map_err(damaged)?;
    let oid: ObjectIdentifier = algorithm.decode().map_err(damaged)?;
    let content: AnyRef<'_> = fields.decode().map_err(damaged)?;
    match oid {
        RSA => {
            let mut fields = sequence(content.value()).map_err(damaged)?;
            skip(&mut fields)?;
            rsa_key(&mut fields, PRIVATE_KEY)
        }
        EC => ec_key(object),
        ED25519 => {
            // OCTET STRING of 32 bytes in the OCTET STRING (RFC 8410, section 7).
            let seed = AnyRef::from_der(content.value()).map_err(damaged)?;
            let pair = Ed25519KeyPair::from_seed_unchecked(seed.value())
                .map_err(|error| broken(PRIVATE_KEY, error))?;
            Ok(ed25519_spki(pair.public_key().as_ref()))
        }
        other => {
            let unsupported = || InputError::Unsupported {
                what: format!("a private key of the algorithm {other}"),
                hint: ": give its public key or certificate instead",
            };
            ml_dsa_key(object, MlDsa::identified(other.as_bytes()).ok_or_else(unsupported)?)
        }
    }
}

/// The next two INTEGERs as an RSA key of any size.
fn rsa_key(fields: &mut SliceReader<'_>, what: &'static str) -> Result<Vec<u8>, InputError> {
    let damaged = |error: x509_cert::der::Error| broken(what, error);
    let modulus = fields.tlv_bytes().map_err(damaged)?;
    let exponent = fields.tlv_bytes().map_err(damaged)?;
    rsa_spki(modulus, exponent).ok_or_else(|| {
        broken(what, Damage::Text("modulus and exponent are not positive integers".to_owned()))
    })
}

/// An elliptic-curve private key. The point is computed if it is missing.
fn ec_key(object: &[u8]) -> Result<Vec<u8>, InputError> {
    let curves = [
        &ECDSA_P256_SHA256_ASN1_SIGNING,
        &ECDSA_P384_SHA384_ASN1_SIGNING,
        &ECDSA_P521_SHA512_ASN1_SIGNING,
        &ECDSA_P256K1_SHA256_ASN1_SIGNING,
    ];
    let pairs = curves.into_iter().map(|curve| EcdsaKeyPair::from_private_key_der(curve, object));
    let Some(pair) = pairs.flatten().next() else {
        let reason = "damaged, or not on P-256, P-384, P-521 or secp256k1".to_owned();
        return Err(broken("an elliptic-curve private key", Damage::Text(reason)));
    };
    let spki: PublicKeyX509Der<'_> =
        pair.public_key().as_der().map_err(|error| broken(PRIVATE_KEY, error))?;
    Ok(spki.as_ref().to_vec())
}

/// An ML-DSA private key: the seed, the expanded key, or both, which must agree.
fn ml_dsa_key(object: &[u8], parameters: &MlDsa) -> Result<Vec<u8>, InputError> {
    let pair = PqdsaKeyPair::from_pkcs8(parameters.signing, object)
        .map_err(|error| broken(PRIVATE_KEY, error))?;
    let spki = parameters.spki(pair.public_key().as_ref());
    spki.ok_or_else(|| broken(PRIVATE_KEY, Unspecified))
}

fn skip(fields: &mut SliceReader<'_>) -> Result<(), InputError> {
    fields.tlv_bytes().map(drop).map_err(|error| broken(PRIVATE_KEY, error))
}

fn broken(what: &'static str, damage: impl Into<Damage>) -> InputError {
    InputError::Broken { what, source: damage.into() }
}

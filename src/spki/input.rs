//! The public keys in whatever people have: certificates, requests, public and private keys, as
//! PEM or DER, told apart by content.

use rustls::pki_types::pem::{PemObject, SectionKind};
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs1KeyDer, PrivatePkcs8KeyDer, PrivateSec1KeyDer};
use x509_cert::der::{Decode, Encode};
use x509_cert::request::CertReq;
use x509_cert::spki::SubjectPublicKeyInfoRef;

use super::of_certificate;

/// Why an input has no public key to look at.
#[derive(Debug, thiserror::Error)]
pub enum InputError {
    /// A PEM section or DER that is broken, or a private key of a kind that is not supported.
    #[error("{what} cannot be read: {reason}")]
    Broken {
        /// What it claims to be.
        what: &'static str,
        /// What is wrong with it.
        reason: String,
    },
    /// Nothing that is recognized.
    #[error(
        "no key found: expected a certificate, a certificate request, a public key or a private key, in PEM or DER"
    )]
    NoKey,
    /// The PEM framing or its base64 is broken.
    #[error("broken PEM: {0}")]
    Pem(String),
}

/// The SubjectPublicKeyInfo (DER) of every key in `input`, in its order.
///
/// # Errors
/// PEM that is broken, a section that does not hold what its label says, or no key at all.
pub fn keys_in(input: &[u8]) -> Result<Vec<Vec<u8>>, InputError> {
    if input.windows(BEGIN.len()).any(|window| window == BEGIN) {
        return keys_in_pem(input);
    }
    key_in_der(input).map(|spki| vec![spki])
}

const BEGIN: &[u8] = b"-----BEGIN ";

fn keys_in_pem(input: &[u8]) -> Result<Vec<Vec<u8>>, InputError> {
    let mut keys = Vec::new();
    for section in <(SectionKind, Vec<u8>)>::pem_slice_iter(input) {
        let (kind, der) = section.map_err(|error| InputError::Pem(error.to_string()))?;
        keys.extend(key_in_section(kind, der)?);
    }
    if keys.is_empty() { Err(InputError::NoKey) } else { Ok(keys) }
}

fn key_in_section(kind: SectionKind, der: Vec<u8>) -> Result<Option<Vec<u8>>, InputError> {
    match kind {
        SectionKind::Certificate => {
            let spki = of_certificate(&der).map_err(|error| broken("a certificate", &error))?;
            Ok(Some(spki.to_vec()))
        }
        SectionKind::Csr => of_request(&der).map(Some),
        SectionKind::EcPrivateKey => of_private_key(&PrivateSec1KeyDer::from(der).into()).map(Some),
        SectionKind::PrivateKey => of_private_key(&PrivatePkcs8KeyDer::from(der).into()).map(Some),
        SectionKind::PublicKey => of_public_key(&der).map(Some),
        SectionKind::RsaPrivateKey => {
            of_private_key(&PrivatePkcs1KeyDer::from(der).into()).map(Some)
        }
        // Revocation lists and the like have no key.
        SectionKind::Crl | SectionKind::EchConfigList | _ => Ok(None),
    }
}

fn key_in_der(der: &[u8]) -> Result<Vec<u8>, InputError> {
    if let Ok(spki) = of_certificate(der) {
        return Ok(spki.to_vec());
    }
    if let Ok(spki) = of_public_key(der).or_else(|_| of_request(der)) {
        return Ok(spki);
    }
    match PrivateKeyDer::try_from(der) {
        Ok(key) => of_private_key(&key),
        Err(_) => Err(InputError::NoKey),
    }
}

fn of_public_key(der: &[u8]) -> Result<Vec<u8>, InputError> {
    SubjectPublicKeyInfoRef::from_der(der).map_err(|error| broken("a public key", &error))?;
    Ok(der.to_vec())
}

fn of_request(der: &[u8]) -> Result<Vec<u8>, InputError> {
    let request =
        CertReq::from_der(der).map_err(|error| broken("a certificate request", &error))?;
    request.info.public_key.to_der().map_err(|error| broken("a certificate request", &error))
}

fn of_private_key(key: &PrivateKeyDer<'_>) -> Result<Vec<u8>, InputError> {
    let key = rustls::crypto::aws_lc_rs::sign::any_supported_type(key)
        .map_err(|error| broken("a private key", &error))?;
    match key.public_key() {
        Some(spki) => Ok(spki.to_vec()),
        None => Err(InputError::NoKey),
    }
}

fn broken(what: &'static str, reason: &dyn std::error::Error) -> InputError {
    InputError::Broken { what, reason: reason.to_string() }
}

#[cfg(test)]
mod tests {
    use rcgen::PublicKeyData;

    use super::*;

    #[test]
    fn every_form_of_a_key_gives_the_same_spki() {
        let key = rcgen::KeyPair::generate().unwrap();
        let spki = key.subject_public_key_info();
        let parameters = rcgen::CertificateParams::default();
        let certificate = parameters.self_signed(&key).unwrap();
        let request = parameters.serialize_request(&key).unwrap();
        for (what, input) in [
            ("certificate, PEM", certificate.pem().into_bytes()),
            ("certificate, DER", certificate.der().to_vec()),
            ("request, PEM", request.pem().unwrap().into_bytes()),
            ("request, DER", request.der().to_vec()),
            ("public key, PEM", key.public_key_pem().into_bytes()),
            ("public key, DER", spki.clone()),
            ("private key, PEM", key.serialize_pem().into_bytes()),
            ("private key, DER", key.serialize_der()),
        ] {
            assert_eq!(keys_in(&input).unwrap(), std::slice::from_ref(&spki), "{what}");
        }
    }

    #[test]
    fn a_bundle_gives_its_keys_in_order() {
        let keys: Vec<_> = (0..3).map(|_| rcgen::KeyPair::generate().unwrap()).collect();
        let bundle: String = keys.iter().map(rcgen::KeyPair::public_key_pem).collect();
        let spkis: Vec<_> = keys.iter().map(PublicKeyData::subject_public_key_info).collect();
        assert_eq!(keys_in(bundle.as_bytes()).unwrap(), spkis);
    }

    #[test]
    fn what_is_not_a_key_says_so() {
        assert!(matches!(keys_in(b"hello").unwrap_err(), InputError::NoKey));
        assert!(matches!(keys_in(b"").unwrap_err(), InputError::NoKey));
        let broken = b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
        assert!(matches!(keys_in(broken).unwrap_err(), InputError::Broken { .. }));
        let unfinished = b"-----BEGIN CERTIFICATE-----\nAAAA\n";
        assert!(matches!(keys_in(unfinished).unwrap_err(), InputError::Pem(_)));
    }
}

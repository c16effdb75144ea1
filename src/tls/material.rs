//! Certificates and keys out of PEM: checked once, so that what is built from them cannot fail.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use rustls::RootCertStore;
use rustls::crypto::aws_lc_rs::default_provider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{
    CertificateDer, CertificateRevocationListDer, PrivateKeyDer, PrivatePkcs1KeyDer,
    PrivatePkcs8KeyDer, PrivateSec1KeyDer,
};
use rustls::server::WebPkiClientVerifier;
use rustls::sign::CertifiedKey;
use x509_cert::crl::CertificateList;
use x509_cert::der::Decode;
use zeroize::Zeroizing;

/// A service's own certificate chain and key, which belong together.
pub type Credentials = Arc<CertifiedKey>;

/// Why a PEM file is of no use.
#[derive(Debug, thiserror::Error)]
pub enum TlsFileError {
    /// A certificate that cannot be a trust anchor.
    #[error("certificate {position} cannot be a trust anchor: {source}")]
    Anchor {
        /// Counted from 1.
        position: usize,
        /// Why.
        source: rustls::Error,
    },
    /// A revocation list that is broken.
    #[error("revocation list {position} cannot be used: {reason}")]
    Crl {
        /// Counted from 1.
        position: usize,
        /// Why.
        reason: String,
    },
    /// A revocation list that was made before the one in use.
    #[error(
        "the revocation list of {issuer} is older than the one in use; restart to go back to it"
    )]
    CrlRollback {
        /// The CA.
        issuer: String,
    },
    /// The certificate is for another key.
    #[error(
        "the private key does not belong to the certificate: their public keys differ; give the key that the certificate was made for"
    )]
    KeyMismatch,
    /// No CERTIFICATE section.
    #[error("there is no certificate in it; a PEM file with \"BEGIN CERTIFICATE\" is expected")]
    NoCertificate,
    /// No X509 CRL section, and no revocation list in DER.
    #[error("there is no revocation list in it; PEM with \"BEGIN X509 CRL\", or DER, is expected")]
    NoCrl,
    /// No private key that can be used.
    #[error("no usable private key: {0}")]
    PrivateKey(String),
    /// The PEM framing, its base64 or the certificate in it is broken.
    #[error("broken PEM: {0}")]
    Pem(rustls::pki_types::pem::Error),
}

/// A certificate chain, leaf first, with its private key (PKCS#8, PKCS#1 or SEC1), both PEM.
///
/// # Errors
/// Broken PEM, nothing in it, an unsupported key, or a key that does not belong to the certificate.
pub fn credentials(chain: &[u8], private_key: &[u8]) -> Result<Credentials, TlsFileError> {
    let chain = certificates(chain)?;
    let unusable = |error: &dyn std::error::Error| TlsFileError::PrivateKey(error.to_string());
    let der = match private_key_zeroized(private_key) {
        Some(der) => der,
        // Not as it should be; it says what is wrong.
        None => PrivateKeyDer::from_pem_slice(private_key).map_err(|error| unusable(&error))?,
    };
    let der = Zeroizing::new(der);
    let key = rustls::crypto::aws_lc_rs::sign::any_supported_type(&der)
        .map_err(|error| unusable(&error))?;
    let credentials = CertifiedKey::new(chain, key);
    match credentials.keys_match() {
        Ok(()) => Ok(Arc::new(credentials)),
        Err(rustls::Error::InconsistentKeys(rustls::InconsistentKeys::KeyMismatch)) => {
            Err(TlsFileError::KeyMismatch)
        }
        Err(error) => Err(unusable(&error)),
    }
}

/// The first private key in a PEM file, if it is well-formed. Unlike the library's reader this leaves
/// no copy of the base64 text in memory.
fn private_key_zeroized(pem: &[u8]) -> Option<PrivateKeyDer<'static>> {
    let mut lines = pem.split(|byte| *byte == b'\n').map(<[u8]>::trim_ascii);
    let made: fn(Vec<u8>) -> PrivateKeyDer<'static> = lines.find_map(|line| match line {
        b"-----BEGIN PRIVATE KEY-----" => Some((|der| PrivatePkcs8KeyDer::from(der).into()) as _),
        b"-----BEGIN RSA PRIVATE KEY-----" => {
            Some((|der| PrivatePkcs1KeyDer::from(der).into()) as _)
        }
        b"-----BEGIN EC PRIVATE KEY-----" => Some((|der| PrivateSec1KeyDer::from(der).into()) as _),
        _ => None,
    })?;
    // With room for all of it: a buffer that grows leaves pieces behind.
    let mut text = Zeroizing::new(Vec::with_capacity(pem.len()));
    loop {
        let line = lines.next()?;
        if line.starts_with(b"-----END ") {
            break;
        }
        text.extend_from_slice(line);
    }
    let mut der = Zeroizing::new(vec![0; base64::decoded_len_estimate(text.len())]);
    let length = STANDARD.decode_slice(&*text, &mut der).ok()?;
    der.truncate(length);
    Some(made(std::mem::take(&mut *der)))
}

/// The CAs whose clients are accepted.
#[derive(Debug)]
pub struct TrustAnchors {
    /// What is left of them for verification.
    pub store: Arc<RootCertStore>,
    /// As they were read.
    pub certificates: Vec<CertificateDer<'static>>,
}

/// The CAs in a PEM file.
///
/// # Errors
/// Broken PEM, no certificate in it, or one that cannot be a trust anchor.
pub fn trust_anchors(pem: &[u8]) -> Result<TrustAnchors, TlsFileError> {
    let certificates = certificates(pem)?;
    let mut store = RootCertStore::empty();
    for (position, certificate) in (1..).zip(&certificates) {
        store
            .add(certificate.clone())
            .map_err(|source| TlsFileError::Anchor { position, source })?;
    }
    Ok(TrustAnchors { store: Arc::new(store), certificates })
}

/// Certificates that their issuers have taken back.
#[derive(Debug, Default)]
pub struct Crls {
    /// DER.
    pub lists: Vec<CertificateRevocationListDer<'static>>,
    /// When the first of them is no longer up to date, since the Unix epoch.
    pub next_update: Option<Duration>,
    /// When the last list of each CA was made, since the Unix epoch.
    made: HashMap<String, Duration>,
}

impl Crls {
    /// Adds the lists in a file, PEM or DER, for clients of `anchors`.
    ///
    /// # Errors
    /// Broken PEM, no list in it, or one that cannot be read.
    pub fn add(&mut self, file: &[u8], anchors: &TrustAnchors) -> Result<(), TlsFileError> {
        let lists = if file.first() == Some(&DER_SEQUENCE) {
            vec![CertificateRevocationListDer::from(file.to_vec())]
        } else {
            CertificateRevocationListDer::pem_slice_iter(file)
                .collect::<Result<Vec<_>, _>>()
                .map_err(TlsFileError::Pem)?
        };
        if lists.is_empty() {
            return Err(TlsFileError::NoCrl);
        }
        for (position, list) in (1..).zip(lists) {
            let unusable = |reason: String| TlsFileError::Crl { position, reason };
            let parsed: CertificateList =
                CertificateList::from_der(&list).map_err(|error| unusable(error.to_string()))?;
            // By the verifier's own reader, so that what is built from it cannot fail.
            let verifier = WebPkiClientVerifier::builder_with_provider(
                Arc::clone(&anchors.store),
                Arc::new(default_provider()),
            );
            let built = verifier.with_crls([list.clone()]).build();
            built.map_err(|error| unusable(error.to_string()))?;
            let issuer = parsed.tbs_cert_list.issuer.to_string();
            let made = self.made.entry(issuer).or_default();
            *made = parsed.tbs_cert_list.this_update.to_unix_duration().max(*made);
            let next = parsed.tbs_cert_list.next_update.map(|next| next.to_unix_duration());
            self.next_update = self.next_update.into_iter().chain(next).min();
            self.lists.push(list);
        }
        Ok(())
    }

    /// Whether nothing in these lists is older than what `before` has of the same CA: an old list
    /// would let clients in whom the CA has taken back since.
    ///
    /// # Errors
    /// The first CA whose list is older.
    pub fn ensure_not_older_than(&self, before: &Self) -> Result<(), TlsFileError> {
        let older = |(issuer, made): &(&String, &Duration)| {
            before.made.get(*issuer).is_some_and(|known| *made < known)
        };
        match self.made.iter().find(older) {
            None => Ok(()),
            Some((issuer, _)) => Err(TlsFileError::CrlRollback { issuer: issuer.clone() }),
        }
    }
}

/// The first byte of every certificate and list in DER; PEM begins with a dash or with prose.
const DER_SEQUENCE: u8 = 0x30;

fn certificates(pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, TlsFileError> {
    let certificates = CertificateDer::pem_slice_iter(pem)
        .collect::<Result<Vec<_>, _>>()
        .map_err(TlsFileError::Pem)?;
    if certificates.is_empty() { Err(TlsFileError::NoCertificate) } else { Ok(certificates) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pair() -> (String, String) {
        let key = rcgen::KeyPair::generate().unwrap();
        let certificate = rcgen::CertificateParams::default().self_signed(&key).unwrap();
        (certificate.pem(), key.serialize_pem())
    }

    #[test]
    fn a_key_must_belong_to_its_certificate() {
        let (certificate, key) = pair();
        let (_, other) = pair();
        assert!(credentials(certificate.as_bytes(), key.as_bytes()).is_ok());
        let error = credentials(certificate.as_bytes(), other.as_bytes()).unwrap_err();
        assert!(matches!(error, TlsFileError::KeyMismatch), "{error}");
    }

    #[test]
    fn a_key_is_read_as_the_library_reads_it() {
        let (certificate, key) = pair();
        let both = format!("prose\n{certificate}{key}").replace('\n', "\r\n");
        for pem in [
            key.clone(),
            both,
            key.replace("PRIVATE", "RSA PRIVATE"),
            key.replace("PRIVATE", "EC PRIVATE"),
        ] {
            let expected = PrivateKeyDer::from_pem_slice(pem.as_bytes()).unwrap();
            assert_eq!(private_key_zeroized(pem.as_bytes()).unwrap(), expected);
        }
        let (half, _) = key.split_at(key.len() / 2);
        for broken in [half, "", &certificate, &key.replace('M', "!")] {
            assert_eq!(private_key_zeroized(broken.as_bytes()), None);
        }
    }

    #[test]
    fn an_empty_or_wrong_file_says_what_is_missing() {
        let (certificate, key) = pair();
        let no_certificate = credentials(key.as_bytes(), key.as_bytes()).unwrap_err();
        assert!(matches!(no_certificate, TlsFileError::NoCertificate));
        let no_key = credentials(certificate.as_bytes(), certificate.as_bytes()).unwrap_err();
        assert!(matches!(no_key, TlsFileError::PrivateKey(_)));
        assert!(matches!(trust_anchors(b"").unwrap_err(), TlsFileError::NoCertificate));
        let broken = b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
        assert!(matches!(trust_anchors(broken).unwrap_err(), TlsFileError::Anchor { .. }));
    }
}

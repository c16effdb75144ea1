//! A certificate chain and its private key out of PEM, checked once.

use std::sync::Arc;

use data_encoding::BASE64;
use rustls::client::verify_server_name;
use rustls::crypto::aws_lc_rs::sign::any_supported_type;
use rustls::pki_types::pem::{self, PemObject, SectionKind};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::server::ParsedCertificate;
use rustls::sign::{CertifiedKey, SigningKey};
use zeroize::Zeroizing;

use super::trust_anchors::{certificates, without_byte_order_mark};
use super::{FileContent, TlsFileError};

/// A certificate chain with its private key.
pub type Credentials = Arc<CertifiedKey>;

/// A certificate chain, leaf first, with its private key (PKCS#8, PKCS#1 or SEC1), both PEM.
///
/// # Errors
/// Returns an error if the PEM is broken or empty, the key is not supported, or the key does not
/// belong to the certificate.
pub fn credentials(chain: &[u8], private_key_pem: &[u8]) -> Result<Credentials, TlsFileError> {
    key_pair(certificates(chain)?, private_key(private_key_pem)?)
}

/// The private key (PKCS#8, PKCS#1 or SEC1) in `pem`.
///
/// # Errors
/// Returns an error if the PEM is broken or has no private key, or if the key is not supported.
pub fn private_key(pem: &[u8]) -> Result<Arc<dyn SigningKey>, TlsFileError> {
    any_supported_type(&*key_der(pem)?).map_err(TlsFileError::PrivateKey)
}

/// The private key in a PEM file, as DER.
///
/// # Errors
/// Returns an error if the PEM is broken or has no private key.
pub fn key_der(pem: &[u8]) -> Result<Zeroizing<PrivateKeyDer<'static>>, TlsFileError> {
    let pem = without_byte_order_mark(pem);
    let der = match private_key_zeroized(pem) {
        Some(der) => der,
        // rustls' reader accepts rarer forms (CR line ends, no padding) and names the fault in
        // others.
        None => PrivateKeyDer::from_pem_slice(pem).map_err(|source| unusable_key(pem, source))?,
    };
    Ok(Zeroizing::new(der))
}

/// A certificate chain, leaf first, with its private key.
///
/// # Errors
/// Returns an error if the leaf cannot be parsed, or if the key does not belong to it.
pub fn key_pair(
    chain: Vec<CertificateDer<'static>>,
    key: Arc<dyn SigningKey>,
) -> Result<Credentials, TlsFileError> {
    let credentials = CertifiedKey::new(chain, key);
    match credentials.keys_match() {
        Ok(()) => Ok(Arc::new(credentials)),
        Err(rustls::Error::InconsistentKeys(rustls::InconsistentKeys::KeyMismatch)) => {
            Err(TlsFileError::KeyMismatch)
        }
        Err(error @ rustls::Error::InvalidCertificate(_)) => {
            Err(TlsFileError::UnusableCertificate(error))
        }
        Err(error) => Err(TlsFileError::PrivateKey(error)),
    }
}

/// Why a file without a readable private key cannot be used.
fn unusable_key(file: &[u8], source: pem::Error) -> TlsFileError {
    let content = FileContent::new(file);
    // A key that is in a form that keygate reads is damaged.
    if content == FileContent::PrivateKey {
        TlsFileError::PrivateKeyPem(source)
    } else {
        TlsFileError::NoPrivateKey(content)
    }
}

/// The `names` that the leaf certificate is not valid for. A leading `*.` stands for any label.
pub fn uncovered_names<'a>(credentials: &Credentials, names: &'a [String]) -> Vec<&'a str> {
    let leaf = credentials.cert.first();
    let leaf = leaf.and_then(|leaf| ParsedCertificate::try_from(leaf).ok());
    let is_covered = |name: &str| {
        let any_label = name.strip_prefix("*.").map(|parent| format!("any-label.{parent}"));
        let name = ServerName::try_from(any_label.as_deref().unwrap_or(name));
        let (Ok(name), Some(leaf)) = (name, &leaf) else { return false };
        verify_server_name(leaf, &name).is_ok()
    };
    names.iter().map(String::as_str).filter(|name| !is_covered(name)).collect()
}

/// The first private key in a well-formed PEM file. Unlike rustls' reader it leaves no copy of the
/// base64 text in freed memory.
fn private_key_zeroized(pem: &[u8]) -> Option<PrivateKeyDer<'static>> {
    let mut lines = pem.split(|byte| *byte == b'\n').map(<[u8]>::trim_ascii);
    let section = lines.find_map(|line| {
        let label = line.strip_prefix(b"-----BEGIN ")?.strip_suffix(b"-----")?;
        SectionKind::try_from(label).ok().filter(|_| label.ends_with(b"PRIVATE KEY"))
    })?;
    // The capacity suffices for the whole text, because a growing buffer leaves copies behind.
    let mut text = Zeroizing::new(Vec::with_capacity(pem.len()));
    loop {
        let line = lines.next()?;
        if line.starts_with(b"-----END ") {
            break;
        }
        text.extend_from_slice(line);
    }
    let mut der = Zeroizing::new(vec![0; BASE64.decode_len(text.len()).ok()?]);
    let length = BASE64.decode_mut(&text, &mut der).ok()?;
    der.truncate(length);
    PrivateKeyDer::from_pem(section, std::mem::take(&mut *der))
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
    fn both_readers_read_the_same_key() {
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
    fn a_key_with_cr_line_ends_is_read() {
        let (certificate, key) = pair();
        let key = key.replace('\n', "\r");
        assert!(credentials(certificate.as_bytes(), key.as_bytes()).is_ok());
    }

    #[test]
    fn an_error_names_the_missing_section() {
        let (certificate, key) = pair();
        let no_certificate = credentials(key.as_bytes(), key.as_bytes()).unwrap_err();
        assert!(matches!(no_certificate, TlsFileError::NoCertificate(FileContent::PrivateKey)));
        let no_key = credentials(certificate.as_bytes(), certificate.as_bytes()).unwrap_err();
        assert!(matches!(no_key, TlsFileError::NoPrivateKey(FileContent::Certificate)));
    }
}

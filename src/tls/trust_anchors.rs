//! CA certificates out of PEM, checked once so that a verifier built from them cannot fail.

use std::sync::Arc;

use rustls::RootCertStore;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;

use super::{FileContent, TlsFileError};
use crate::spki::{self, ValidityPeriod};

/// The CAs that may issue the peer's certificate.
#[derive(Debug)]
pub struct TrustAnchors {
    /// The CAs in the form that rustls verifies with.
    pub store: Arc<RootCertStore>,
    /// The certificates as they were in the file, in the order of `store`.
    pub certificates: Vec<CertificateDer<'static>>,
    /// The validities of `certificates`, which `store` does not have.
    validities: Vec<ValidityPeriod>,
}

/// The CAs in a PEM file.
///
/// # Errors
/// Returns an error if the PEM is broken, holds no certificate, or holds one that cannot be a trust
/// anchor.
pub fn trust_anchors(pem: &[u8]) -> Result<TrustAnchors, TlsFileError> {
    TrustAnchors::new(certificates(pem)?)
}

impl TrustAnchors {
    /// The CAs with these certificates.
    ///
    /// # Errors
    /// Returns an error if there is no certificate, or one that cannot be a trust anchor.
    pub fn new(certificates: Vec<CertificateDer<'static>>) -> Result<Self, TlsFileError> {
        if certificates.is_empty() {
            return Err(TlsFileError::NoCertificate(FileContent::Empty));
        }
        let mut store = RootCertStore::empty();
        let mut validities = Vec::with_capacity(certificates.len());
        for (position, certificate) in (1..).zip(&certificates) {
            store
                .add(certificate.clone())
                .map_err(|source| TlsFileError::Anchor { position, source })?;
            let validity = spki::validity(certificate);
            validities.push(validity.map_err(|_| TlsFileError::AnchorValidity { position })?);
        }
        Ok(Self { store: Arc::new(store), certificates, validities })
    }

    /// The certificates with their validities.
    pub fn with_validity(
        &self,
    ) -> impl Iterator<Item = (&CertificateDer<'static>, ValidityPeriod)> {
        self.certificates.iter().zip(self.validities.iter().copied())
    }

    /// The validity of the CA at `index`.
    pub(super) fn validity(&self, index: usize) -> Option<ValidityPeriod> {
        self.validities.get(index).copied()
    }
}

/// The certificates in a PEM file, at least one.
///
/// # Errors
/// Returns an error if the PEM is broken or holds no certificate.
pub fn certificates(pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, TlsFileError> {
    let pem = without_byte_order_mark(pem);
    let certificates = CertificateDer::pem_slice_iter(pem)
        .collect::<Result<Vec<_>, _>>()
        .map_err(TlsFileError::Pem)?;
    if certificates.is_empty() {
        return Err(TlsFileError::NoCertificate(match FileContent::of(pem) {
            FileContent::EncryptedKey | FileContent::OpensshKey => FileContent::PrivateKey,
            content @ (FileContent::Certificate
            | FileContent::Der
            | FileContent::Empty
            | FileContent::Other
            | FileContent::Pkcs
            | FileContent::PrivateKey
            | FileContent::PublicKey
            | FileContent::Request
            | FileContent::TrustedCertificate
            | FileContent::Utf16) => content,
        }));
    }
    Ok(certificates)
}

/// `text` without the byte order mark that editors on Windows write before UTF-8.
pub(super) fn without_byte_order_mark(text: &[u8]) -> &[u8] {
    text.strip_prefix(b"\xef\xbb\xbf").unwrap_or(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_empty_file_and_a_broken_certificate_are_errors() {
        assert!(matches!(
            trust_anchors(b"").unwrap_err(),
            TlsFileError::NoCertificate(FileContent::Empty)
        ));
        assert!(matches!(
            TrustAnchors::new(Vec::new()),
            Err(TlsFileError::NoCertificate(FileContent::Empty))
        ));
        let broken = b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
        assert!(matches!(trust_anchors(broken).unwrap_err(), TlsFileError::Anchor { .. }));
    }
}

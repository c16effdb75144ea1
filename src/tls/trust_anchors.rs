//! CA certificates out of PEM, checked once so that a verifier built from them cannot fail.

use std::sync::Arc;

use rustls::RootCertStore;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;

use super::TlsFileError;
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
            return Err(TlsFileError::NoCertificate);
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
    let certificates = CertificateDer::pem_slice_iter(pem)
        .collect::<Result<Vec<_>, _>>()
        .map_err(TlsFileError::Pem)?;
    if certificates.is_empty() { Err(TlsFileError::NoCertificate) } else { Ok(certificates) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_empty_file_and_a_broken_certificate_are_errors() {
        assert!(matches!(trust_anchors(b"").unwrap_err(), TlsFileError::NoCertificate));
        assert!(matches!(TrustAnchors::new(Vec::new()), Err(TlsFileError::NoCertificate)));
        let broken = b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
        assert!(matches!(trust_anchors(broken).unwrap_err(), TlsFileError::Anchor { .. }));
    }
}

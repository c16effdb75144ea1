//! CA certificates out of PEM, checked once so that a verifier built from them cannot fail.

use std::sync::Arc;

use rustls::RootCertStore;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;

use super::TlsFileError;

/// The CAs that may issue the peer's certificate.
#[derive(Debug)]
pub struct TrustAnchors {
    /// The CAs in the form that rustls verifies with.
    pub store: Arc<RootCertStore>,
    /// The certificates as they were in the file.
    pub certificates: Vec<CertificateDer<'static>>,
}

/// The CAs in a PEM file.
///
/// # Errors
/// Returns an error if the PEM is broken, holds no certificate, or holds one that cannot be a trust
/// anchor.
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

/// The certificates in a PEM file, at least one.
pub(super) fn certificates(pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, TlsFileError> {
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
        let broken = b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
        assert!(matches!(trust_anchors(broken).unwrap_err(), TlsFileError::Anchor { .. }));
    }
}

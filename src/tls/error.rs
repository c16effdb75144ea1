//! Why a certificate, key or revocation list file cannot be used.

use rustls::pki_types::pem;
use rustls::server::VerifierBuilderError;
use x509_cert::der;

/// Why a certificate, key or revocation list file cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TlsFileError {
    /// A certificate that cannot be a trust anchor.
    #[error("certificate {position} cannot be a trust anchor: {source}")]
    Anchor {
        /// Position of the certificate in the file, counted from 1.
        position: usize,
        /// The reason that rustls gives.
        source: rustls::Error,
    },
    /// A trust anchor whose dates cannot be read.
    #[error("certificate {position} cannot be a trust anchor: its validity cannot be read")]
    AnchorValidity {
        /// Position of the certificate in the file, counted from 1.
        position: usize,
    },
    /// A revocation list that is not valid DER.
    #[error("revocation list {position} cannot be used: {source}")]
    CrlEncoding {
        /// Position of the list in the file, counted from 1.
        position: usize,
        /// The reason that the DER decoder gives.
        source: der::Error,
    },
    /// A revocation list that is older than the one in use.
    #[error(
        "the revocation list of {issuer} is older than the one in use; restart to use the older one"
    )]
    CrlRollback {
        /// Distinguished name of the CA.
        issuer: String,
    },
    /// A revocation list that rustls cannot use.
    #[error("revocation list {position} cannot be used: {source}")]
    CrlUnsupported {
        /// Position of the list in the file, counted from 1.
        position: usize,
        /// The reason that rustls gives.
        source: VerifierBuilderError,
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
    /// No section with a private key.
    #[error("no usable private key: {0}")]
    NoPrivateKey(#[source] pem::Error),
    /// The PEM framing, its base64 or the certificate in it is broken.
    #[error("broken PEM: {0}")]
    Pem(#[source] pem::Error),
    /// A private key that rustls cannot use.
    #[error("no usable private key: {0}")]
    PrivateKey(#[source] rustls::Error),
}

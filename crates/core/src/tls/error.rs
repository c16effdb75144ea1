//! Why a certificate, key or revocation list file cannot be used.

use rustls::pki_types::pem;

use super::{CrlError, IntermediateError};

use super::FileContent;
use super::explain::{pem_error, tls_error};

/// Why a certificate, key or revocation list file cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TlsFileError {
    /// A certificate that cannot be a trust anchor.
    #[error("certificate {position} cannot be a trust anchor: {}; replace it", tls_error(source))]
    Anchor {
        /// Position of the certificate in the file, counted from 1.
        position: usize,
        /// The reason that rustls gives.
        source: rustls::Error,
    },
    /// A trust anchor whose dates cannot be read.
    #[error(
        "certificate {position} cannot be a trust anchor: its validity cannot be read; replace it"
    )]
    AnchorValidity {
        /// Position of the certificate in the file, counted from 1.
        position: usize,
    },
    /// A revocation list that cannot be used.
    #[error("the list at position {position} cannot be used: {source}")]
    Crl {
        /// Position of the list in the file, counted from 1.
        position: usize,
        /// Why the list cannot be used.
        source: CrlError,
    },
    /// A section CERTIFICATE, beside revocation lists, without a certificate.
    #[error(
        "section CERTIFICATE number {position} has no certificate, and may be a revocation list, which would be ignored; correct its label to X509 CRL, or remove the section"
    )]
    CrlLabel {
        /// Position among the sections of certificates, counted from 1.
        position: usize,
    },
    /// A CA or a distribution point whose list is in no file any more.
    #[error(
        "no revocation list of {issuer}{} is left, so that its clients would be rejected; add its list, or remove the CA from client_auth.trust_anchors or client_auth.intermediates, or restart keygate if the CA divides its lists anew",
        point.as_ref().map(|point| format!(" for {point}")).unwrap_or_default()
    )]
    CrlMissing {
        /// Distinguished name of the CA.
        issuer: String,
        /// The distribution point that the list was limited to.
        point: Option<String>,
    },
    /// Data outside of the sections of a PEM file, which may be a revocation list.
    #[error(
        "line {line} has {found} outside of the PEM sections, which may be a revocation list and would be ignored; convert a list in DER with `openssl crl -inform DER`, put base64 between BEGIN X509 CRL and END X509 CRL, or remove the data"
    )]
    CrlOutside {
        /// Number of the line, counted from 1.
        line: usize,
        /// Kind of the data.
        found: &'static str,
    },
    /// Revocation lists that the reader of PEM skips.
    #[error(
        "{begun} revocation lists begin in it, and {read} can be read; put each BEGIN X509 CRL and END X509 CRL on a line of its own, with nothing before or after it"
    )]
    CrlSection {
        /// Number of lists that begin in the file.
        begun: usize,
        /// Number of lists that can be read.
        read: usize,
    },
    /// Too many lists of CAs that are none of the service.
    #[error("it has more than {allowed} lists of CAs that are none of this service; remove them")]
    CrlsOfOthers {
        /// The maximum.
        allowed: usize,
    },
    /// A certificate that cannot be an intermediate CA.
    #[error("certificate {position} cannot be an intermediate: {source}")]
    Intermediate {
        /// Position of the certificate in the file, counted from 1.
        position: usize,
        /// Why the certificate cannot be used.
        source: IntermediateError,
    },
    /// The certificate is for another key.
    #[error(
        "the private key does not belong to the certificate: their public keys differ; give the key that the certificate was made for"
    )]
    KeyMismatch,
    /// No CERTIFICATE section.
    #[error("no certificate, which begins with \"BEGIN CERTIFICATE\" in PEM: {0}")]
    NoCertificate(FileContent),
    /// No X509 CRL section, and no revocation list in DER.
    #[error("there is no revocation list in it; give PEM with \"BEGIN X509 CRL\", or DER")]
    NoCrl,
    /// No section with a private key.
    #[error("no usable private key: {0}")]
    NoPrivateKey(FileContent),
    /// The PEM framing, its base64 or the certificate in it is broken.
    #[error("broken PEM: {}; write the whole file again", pem_error(.0))]
    Pem(#[source] pem::Error),
    /// A private key that rustls cannot use.
    #[error(
        "no usable private key: it is damaged, or of another kind than RSA with 2048 to 8192 bits, ECDSA with P-256, P-384 or P-521, Ed25519, and ML-DSA without parameters; make another key"
    )]
    PrivateKey(#[source] rustls::Error),
    /// A section with a private key that is not valid PEM.
    #[error("no usable private key: {}; write the whole file again", pem_error(.0))]
    PrivateKeyPem(#[source] pem::Error),
    /// The certificate with the key's other half cannot be read.
    #[error("certificate 1 cannot be used: {}; replace it", tls_error(.0))]
    UnusableCertificate(#[source] rustls::Error),
}

//! Why a revocation list cannot be used.

use x509_cert::der::{self, oid::ObjectIdentifier};

use super::version::CrlVersion;
use crate::tls::explain::path_error;
use crate::unix_time::utc;

/// Why a revocation list cannot be used, and the remedy.
#[derive(Debug, thiserror::Error)]
pub enum CrlError {
    /// The algorithm within the signed part differs from the one outside of it.
    #[error("its two signature algorithms differ; fetch it again from the CA")]
    AlgorithmMismatch,
    /// A list of attribute certificates.
    #[error("it covers attribute certificates only; configure the list of public key certificates")]
    AttributeCertificates,
    /// A critical extension that is not implemented.
    #[error("critical extension {oid} is not supported; have the CA issue the list without it")]
    CriticalExtension {
        /// The identifier of the extension.
        oid: ObjectIdentifier,
    },
    /// A list of changes to another list.
    #[error("it is a delta list; configure the complete list of the CA")]
    Delta,
    /// An extension that occurs twice.
    #[error("extension {oid} occurs twice; fetch it again from the CA")]
    DuplicateExtension {
        /// The identifier of the extension.
        oid: ObjectIdentifier,
    },
    /// Not valid DER.
    #[error("not a revocation list in DER: {0}; fetch it again from the CA")]
    Encoding(#[from] der::Error),
    /// `nextUpdate` has passed.
    #[error(
        "the list of {issuer} has expired at {}; fetch the next one, or set expired_crl = \"accept\"",
        utc(*next_update)
    )]
    Expired {
        /// Distinguished name of the issuer.
        issuer: String,
        /// `nextUpdate`, in seconds since the Unix epoch.
        next_update: u64,
    },
    /// `thisUpdate` is in the future.
    #[error(
        "the list of {issuer} is dated {}, in the future; correct the clock of this machine or of the CA",
        utc(*this_update)
    )]
    Future {
        /// Distinguished name of the issuer.
        issuer: String,
        /// `thisUpdate`, in seconds since the Unix epoch.
        this_update: u64,
    },
    /// A list with certificates of other issuers.
    #[error("it is an indirect list, with certificates of other CAs; configure a list of each CA")]
    Indirect,
    /// A serial number that no conforming CA issues.
    #[error(
        "a serial number has more than 20 octets, or none (RFC 5280, 4.1.2.2); fetch it again from the CA"
    )]
    LongSerial,
    /// No `nextUpdate`.
    #[error("it has no nextUpdate, which RFC 5280 requires; have the CA issue it with one")]
    NoNextUpdate,
    /// The CA must not sign lists.
    #[error(
        "{issuer} must not sign revocation lists: its certificate has a key usage without cRLSign; have it issued again with cRLSign"
    )]
    NotSigner {
        /// Distinguished name of the issuer.
        issuer: String,
    },
    /// A CRL number that is negative or too large.
    #[error(
        "its CRL number is negative, or has more than 20 octets (RFC 5280, 5.2.3); fetch it again from the CA"
    )]
    Number,
    /// A list of some reasons.
    #[error("it covers some reasons for a revocation only; configure the list of all reasons")]
    OnlySomeReasons,
    /// A distribution point that is relative to the name of the issuer.
    #[error(
        "its distribution point is a name relative to the issuer; have the CA issue it with a full name"
    )]
    RelativeName,
    /// Older than a list that was in use.
    #[error(
        "the list of {issuer} ({version}) is older than the one that was in use ({known}); install the newest list of the CA, or, if the CA numbers its lists anew, see \"Revocation lists\" in docs/operations.md"
    )]
    Rollback {
        /// Distinguished name of the issuer.
        issuer: String,
        /// The version of the list.
        version: CrlVersion,
        /// The version of the newest list that was in use.
        known: CrlVersion,
    },
    /// The signature is not by the issuer.
    #[error(
        "its signature is not by {issuer}: the list is damaged or forged, or another CA has the same name; fetch it again from the CA"
    )]
    Signature {
        /// Distinguished name of the issuer.
        issuer: String,
    },
    /// A signature algorithm that is not supported.
    #[error(
        "it is signed with the unsupported algorithm {algorithm}; have the CA use RSA or ECDSA with SHA-256 or stronger, or Ed25519"
    )]
    SignatureAlgorithm {
        /// The identifier of the algorithm, in text.
        algorithm: String,
    },
    /// The issuer is not a CA of the service.
    #[error(
        "its issuer {issuer} is no CA of this service; remove the list, or add the CA to client_auth.trust_anchors or, if it is an intermediate, to client_auth.intermediates"
    )]
    UnknownIssuer {
        /// Distinguished name of the issuer.
        issuer: String,
    },
    /// A list of another version than 2.
    #[error("it has no version 2, which RFC 5280 requires; have the CA issue it with a CRL number")]
    Version,
}

/// Why a certificate in `client_auth.intermediates` cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum IntermediateError {
    /// The certificate cannot be decoded.
    #[error("not a certificate in DER: {0}; replace it")]
    Encoding(#[from] der::Error),
    /// Not the certificate of a CA.
    #[error("{subject} is no CA: its basic constraints do not say so; remove it")]
    NotCa {
        /// Distinguished name of the subject.
        subject: String,
    },
    /// No path to a trust anchor.
    #[error(
        "{subject} was not issued by a CA in client_auth.trust_anchors or by another one in this file; add its issuer, or remove it"
    )]
    UnknownIssuer {
        /// Distinguished name of the subject.
        subject: String,
    },
    /// The certificate cannot be used by webpki.
    #[error("unusable certificate: {}; replace it", path_error(.0))]
    Unusable(#[source] webpki::Error),
}

//! The class of a rejected revocation list, as metrics, logs and the status name it.

use keygate_core::tls::{CrlError, TlsFileError};

use super::error::LoadError;
use crate::metrics::labels;

labels! {
    /// The class of a rejected revocation list.
    CrlRejectionReason {
        /// The file has no list in PEM or DER.
        Encoding = "encoding",
        /// `nextUpdate` has passed.
        Expired = "expired",
        /// `thisUpdate` is in the future.
        Future = "future",
        /// The file cannot be read.
        Io = "io",
        /// The issuer is no CA of the service, must not sign lists, or has no list any more.
        Issuer = "issuer",
        /// It would reject more recent clients than `max_new_hits` allows.
        NewHits = "new_hits",
        /// The list is older than the one that was in use.
        Rollback = "rollback",
        /// The signature is not by the issuer.
        Signature = "signature",
        /// The list is of a kind that is not supported.
        Unsupported = "unsupported",
    }
}

impl CrlRejectionReason {
    /// The class of `error`, about a file with revocation lists.
    pub(super) fn of_file(error: &LoadError) -> Self {
        if let LoadError::Credentials { source, .. } = error {
            Self::of(source)
        } else if let LoadError::Waits { .. } = error {
            Self::NewHits
        } else {
            Self::Io
        }
    }

    fn of(error: &TlsFileError) -> Self {
        match error {
            TlsFileError::Crl { source, .. } => Self::of_list(source),
            TlsFileError::CrlMissing { .. } => Self::Issuer,
            TlsFileError::Anchor { .. }
            | TlsFileError::AnchorValidity { .. }
            | TlsFileError::CrlLabel { .. }
            | TlsFileError::CrlOutside { .. }
            | TlsFileError::CrlSection { .. }
            | TlsFileError::Intermediate { .. }
            | TlsFileError::KeyMismatch
            | TlsFileError::NoCertificate(_)
            | TlsFileError::NoCrl
            | TlsFileError::NoPrivateKey(_)
            | TlsFileError::Pem(_)
            | TlsFileError::PrivateKey(_)
            | TlsFileError::PrivateKeyPem(_)
            | TlsFileError::UnusableCertificate(_) => Self::Encoding,
        }
    }

    fn of_list(error: &CrlError) -> Self {
        match error {
            CrlError::AlgorithmMismatch
            | CrlError::DuplicateExtension { .. }
            | CrlError::Encoding(_)
            | CrlError::LongSerial
            | CrlError::Number => Self::Encoding,
            CrlError::Expired { .. } => Self::Expired,
            CrlError::Future { .. } => Self::Future,
            CrlError::NotSigner { .. } | CrlError::UnknownIssuer { .. } => Self::Issuer,
            CrlError::Rollback { .. } => Self::Rollback,
            CrlError::Signature { .. } => Self::Signature,
            CrlError::AttributeCertificates
            | CrlError::CriticalExtension { .. }
            | CrlError::Delta
            | CrlError::Indirect
            | CrlError::NoNextUpdate
            | CrlError::OnlySomeReasons
            | CrlError::RelativeName
            | CrlError::SignatureAlgorithm { .. }
            | CrlError::Version => Self::Unsupported,
        }
    }
}

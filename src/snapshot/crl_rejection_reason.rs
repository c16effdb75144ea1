//! The class of a rejected revocation list, as metrics, logs and the status name it.

use crate::metrics::Label;
use crate::tls::{CrlError, TlsFileError};

/// The class of a rejected revocation list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CrlRejectionReason {
    /// The file has no list in PEM or DER.
    Encoding,
    /// `nextUpdate` has passed.
    Expired,
    /// `thisUpdate` is in the future.
    Future,
    /// The file cannot be read.
    Io,
    /// The issuer is no CA of the service, must not sign lists, or has no list any more.
    Issuer,
    /// The list is older than the one that was in use.
    Rollback,
    /// The signature is not by the issuer.
    Signature,
    /// The list is of a kind that is not supported.
    Unsupported,
}

impl CrlRejectionReason {
    /// The class of `error`, from a file with revocation lists.
    pub(super) fn of(error: &TlsFileError) -> Self {
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

impl Label for CrlRejectionReason {
    const ALL: &'static [Self] = &[
        Self::Encoding,
        Self::Expired,
        Self::Future,
        Self::Io,
        Self::Issuer,
        Self::Rollback,
        Self::Signature,
        Self::Unsupported,
    ];

    fn index(self) -> usize {
        self as usize
    }

    fn as_str(self) -> &'static str {
        match self {
            Self::Encoding => "encoding",
            Self::Expired => "expired",
            Self::Future => "future",
            Self::Io => "io",
            Self::Issuer => "issuer",
            Self::Rollback => "rollback",
            Self::Signature => "signature",
            Self::Unsupported => "unsupported",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_reason_is_at_its_index() {
        let all = CrlRejectionReason::ALL;
        assert!(all.iter().enumerate().all(|(index, reason)| reason.index() == index));
    }
}

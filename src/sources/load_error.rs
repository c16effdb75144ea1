//! Errors of loading: which file cannot be used, and why.

use std::io;
use std::path::{Path, PathBuf};

use keygate_core::regular_file::explain;
use keygate_core::tls::{self, CrlError, TicketSecretsError, TlsFileError};

use super::credential_files::CRLS;
use super::failure::{Failure, ReadError};
use super::file_rejection::FileRejection;
use super::operator_decision::{GuardFile, NeedsOperator};
use super::own_key::OwnKey;
use super::rejection_reason::RejectionReason;
use crate::config::{CredentialOwner, KeyPlace, PlacedProblem};
use crate::saved_state::StateError;
use crate::shell;

/// Why the files that a configuration names cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// A file of a service cannot be used.
    #[error("{owner}: {key} {}: {source}", path.display())]
    Credentials {
        /// The service or authorizer.
        owner: CredentialOwner,
        /// Configuration key that names the file.
        key: &'static str,
        /// Path of the file.
        path: PathBuf,
        /// Why the file cannot be used.
        source: CredentialError,
    },
    /// The file of a filter or list is rejected.
    #[error("{} {name:?}: {}: {source}", file.as_str(), path.display())]
    File {
        /// The kind of the file.
        file: GuardFile,
        /// Name of the filter or list.
        name: String,
        /// Path of the file.
        path: PathBuf,
        /// Why the file is rejected.
        source: FileRejection,
    },
    /// A new configuration would reject too many recent clients.
    #[error(
        "{owner}: it would reject {} of the {recent} clients admitted recently, max_new_hits allows {allowed}: {}; correct the configuration, or raise max_new_hits with it",
        hits.0,
        hits.1
    )]
    NewHits {
        /// The service or authorizer.
        owner: CredentialOwner,
        /// Number and names of the rejected clients.
        hits: (usize, String),
        /// Number of recent clients.
        recent: usize,
        /// Limit in the configuration.
        allowed: usize,
    },
    /// The file of a filter or list does not exist, and `keygate fetch` downloads it.
    #[error(
        "{} {name:?}: {} does not exist; run `{}`, which downloads it",
        file.as_str(),
        path.display(),
        shell::keygate(&["fetch"], Some(&config.to_string_lossy()))
    )]
    NotFetched {
        /// The kind of the file.
        file: GuardFile,
        /// Name of the filter or list.
        name: String,
        /// Path of the file.
        path: PathBuf,
        /// Path of the configuration.
        config: PathBuf,
    },
    /// A key of a service or of a CA that it trusts is weak, in a filter or on a list.
    #[error(
        "{0}: its private half may be public; replace it, or set allow_compromised_own_key = true"
    )]
    OwnKey(Box<OwnKey>),
    /// The state directory cannot be used, read or written.
    #[error(transparent)]
    State(#[from] StateError),
    /// The thread that reads files cannot be started.
    #[error("cannot start the thread that reads files: {0}")]
    Thread(#[source] io::Error),
    /// rustls rejects the certificates and keys of a service.
    #[error("{owner}: TLS cannot be configured: {}", tls::tls_error(source))]
    Tls {
        /// The service or authorizer.
        owner: CredentialOwner,
        /// Configuration key of the table that names the files.
        key: &'static str,
        /// Why rustls rejects them.
        source: rustls::Error,
    },
}

/// Why a file of a service or authorizer cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum CredentialError {
    /// A certificate, key, trust anchor or CRL cannot be used.
    #[error(transparent)]
    Content(#[from] TlsFileError),
    /// The file does not exist, and has a source.
    #[error("the file does not exist; `keygate fetch` downloads it")]
    NotDownloaded(io::Error),
    /// The file cannot be read.
    #[error("{}", explain(.0))]
    Read(#[from] io::Error),
    /// The secret of a webhook cannot be used.
    #[error("not the base64 of 16 bytes or more; write the signing secret of the webhook alone")]
    Secret,
    /// A key that signs assertions cannot be used.
    #[error("{0}")]
    SigningKey(&'static str),
    /// The secrets of shared session tickets cannot be used.
    #[error(transparent)]
    TicketSecrets(#[from] TicketSecretsError),
    /// An update of CAs or CRLs waits for the decision of an operator.
    #[error(transparent)]
    Waits(#[from] NeedsOperator),
}

impl LoadError {
    /// The error of an update in whose place no other is in use until an operator accepts it.
    pub(super) fn without_file_in_use(self) -> Self {
        if let Self::Credentials { owner, key, path, source: CredentialError::Waits(waits) } = self
        {
            let source = waits.without_file_in_use().into();
            return Self::Credentials { owner, key, path, source };
        }
        self
    }

    /// Whether the file of a service at `path` is the cause.
    pub(super) fn is_about(&self, path: &Path) -> bool {
        if let Self::Credentials { path: cause, .. } = self { cause == path } else { false }
    }

    /// Whether the update waits for the decision of an operator.
    pub(super) fn waits(&self) -> bool {
        matches!(self, Self::Credentials { source: CredentialError::Waits(_), .. })
    }

    /// The error with the key of the configuration that names the file.
    #[must_use]
    pub fn placed(&self) -> PlacedProblem {
        PlacedProblem { place: self.place(), problem: self.to_string() }
    }

    /// The key of the configuration that names the file. `None` if no key does.
    fn place(&self) -> Option<KeyPlace> {
        let (array, name, key) = match self {
            Self::Credentials { owner, key, .. } | Self::Tls { owner, key, .. } => {
                (owner.table(), owner.name(), *key)
            }
            Self::NewHits { owner, .. } => {
                (owner.table(), owner.name(), "client_auth.max_new_hits")
            }
            Self::OwnKey(it) => (it.owner.table(), it.owner.name(), it.key),
            Self::File { file, name, source, .. } => (file.table(), name.as_str(), source.key()),
            Self::NotFetched { file, name, .. } => (file.table(), name.as_str(), "path"),
            Self::State(_) => return Some(KeyPlace::new("state.dir")),
            Self::Thread(_) => return None,
        };
        Some(KeyPlace::in_table(array, name, key))
    }
}

impl CredentialError {
    /// The class of the error, for metrics, logs and the status. `key` is the configuration key that
    /// names the file.
    pub(super) fn reason(&self, key: &str) -> RejectionReason {
        match self {
            Self::Content(TlsFileError::Crl { source, .. }) => reason_of_crl(source),
            Self::Content(TlsFileError::CrlMissing { .. }) => RejectionReason::Issuer,
            Self::Content(TlsFileError::KeyMismatch) => RejectionReason::Key,
            Self::Content(_) if key == CRLS => RejectionReason::Encoding,
            Self::Content(_) | Self::Secret | Self::SigningKey(_) | Self::TicketSecrets(_) => {
                RejectionReason::Content
            }
            Self::NotDownloaded(_) | Self::Read(_) => RejectionReason::Io,
            Self::Waits(_) => RejectionReason::NewHits,
        }
    }
}

impl ReadError for LoadError {
    fn failure(&self) -> Failure {
        match self {
            Self::File { source, .. } => source.failure(),
            Self::Credentials {
                source: CredentialError::NotDownloaded(source) | CredentialError::Read(source),
                ..
            }
            | Self::Thread(source) => source.failure(),
            Self::NotFetched { .. } => Failure::Read,
            Self::Credentials { .. }
            | Self::NewHits { .. }
            | Self::OwnKey(_)
            | Self::State(_)
            | Self::Tls { .. } => Failure::Content,
        }
    }
}

fn reason_of_crl(error: &CrlError) -> RejectionReason {
    match error {
        CrlError::AlgorithmMismatch
        | CrlError::DuplicateExtension { .. }
        | CrlError::Encoding(_)
        | CrlError::LongSerial
        | CrlError::Number => RejectionReason::Encoding,
        CrlError::Expired { .. } => RejectionReason::Expired,
        CrlError::Future { .. } => RejectionReason::Future,
        CrlError::NotSigner { .. } | CrlError::UnknownIssuer { .. } => RejectionReason::Issuer,
        CrlError::Rollback { .. } => RejectionReason::Rollback,
        CrlError::Signature { .. } => RejectionReason::Signature,
        CrlError::AttributeCertificates
        | CrlError::CriticalExtension { .. }
        | CrlError::Delta
        | CrlError::Indirect
        | CrlError::NoNextUpdate
        | CrlError::OnlySomeReasons
        | CrlError::RelativeName
        | CrlError::SignatureAlgorithm { .. }
        | CrlError::Version => RejectionReason::Unsupported,
    }
}

#[cfg(test)]
mod tests;

//! Errors of loading: which file cannot be used, and why.

use std::io;
use std::path::{Path, PathBuf};

use keygate_core::badkeys::BlocklistFileError;
use keygate_core::guard::ListError;
use keygate_core::pkbf::FilterError;
use keygate_core::regular_file::{explain, explain_with_remedy};
use keygate_core::signature::SignatureError;
use keygate_core::tls::{self, TlsFileError};
use keygate_core::unix_time::utc;

use super::own_key::OwnKey;
use crate::config::CredentialOwner;
use crate::config::{FilterConfig, KeyPlace, ListConfig, PlacedProblem};
use crate::saved_state::StateError;
use crate::shell;
use crate::sources::filter_rejection::{CanaryError, FilterRejection};
use crate::sources::operator_decision::NeedsOperator;

/// Why the files that a configuration names cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// A certificate, key, trust anchor or CRL cannot be used.
    #[error("{owner}: {key} {}: {source}", path.display())]
    Credentials {
        /// The service or authorizer.
        owner: CredentialOwner,
        /// Configuration key that names the file.
        key: &'static str,
        /// Path of the file.
        path: PathBuf,
        /// Why the file cannot be used.
        source: TlsFileError,
    },
    /// A filter is rejected.
    #[error("filter {name:?}: {}: {source}", path.display())]
    Filter {
        /// Name of the filter.
        name: String,
        /// Path of the file.
        path: PathBuf,
        /// Why the filter is rejected.
        source: FilterRejection,
    },
    /// A list cannot be used.
    #[error("list {name:?}: {}: {source}", path.display())]
    List {
        /// Name of the list.
        name: String,
        /// Path of the file.
        path: PathBuf,
        /// Why the list cannot be used.
        source: ListFileError,
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
        "{kind} {name:?}: {} does not exist; run `{}`, which downloads it",
        path.display(),
        shell::keygate(&["fetch"], Some(&config.to_string_lossy()))
    )]
    NotFetched {
        /// `filter` or `list`.
        kind: &'static str,
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
    /// A file of a service cannot be read.
    #[error("{owner}: {key} {}: {}", path.display(), explain(source))]
    Read {
        /// The service or authorizer.
        owner: CredentialOwner,
        /// Configuration key that names the file.
        key: &'static str,
        /// Path of the file.
        path: PathBuf,
        /// Why the file cannot be read.
        source: io::Error,
    },
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
    /// An update of CAs or CRLs waits for the decision of an operator.
    #[error("{owner}: {key} {}: {source}", path.display())]
    Waits {
        /// The service or authorizer.
        owner: CredentialOwner,
        /// Configuration key that names the file.
        key: &'static str,
        /// Path of the file.
        path: PathBuf,
        /// Why the update waits.
        source: NeedsOperator,
    },
}

impl LoadError {
    /// The error of a filter.
    pub(super) fn from_filter(
        config: &FilterConfig,
        source: FilterRejection,
        file: Option<&Path>,
    ) -> Self {
        let (name, path) = (config.name.clone(), config.path.clone());
        match (&source, &config.source, file) {
            (FilterRejection::File(FilterError::Io(error)), Some(_), Some(file))
                if error.kind() == io::ErrorKind::NotFound =>
            {
                Self::NotFetched { kind: "filter", name, path, config: file.to_owned() }
            }
            _ => Self::Filter { name, path, source },
        }
    }

    /// The error of a list.
    pub(super) fn from_list(
        config: &ListConfig,
        source: ListFileError,
        file: Option<&Path>,
    ) -> Self {
        let (name, path) = (config.name.clone(), config.path.clone());
        match (&source, &config.source, file) {
            (
                ListFileError::Blocklist(BlocklistFileError::Read(error))
                | ListFileError::Read(error),
                Some(_),
                Some(file),
            ) if error.kind() == io::ErrorKind::NotFound => {
                Self::NotFetched { kind: "list", name, path, config: file.to_owned() }
            }
            _ => Self::List { name, path, source },
        }
    }

    /// The error of an update in whose place no other is in use until an operator accepts it.
    pub(super) fn without_file_in_use(self) -> Self {
        if let Self::Waits { owner, key, path, source } = self {
            return Self::Waits { owner, key, path, source: source.without_file_in_use() };
        }
        self
    }

    /// Whether the file of a service at `path` is the cause.
    pub(super) fn is_about(&self, path: &Path) -> bool {
        let (Self::Credentials { path: cause, .. }
        | Self::Read { path: cause, .. }
        | Self::Waits { path: cause, .. }) = self
        else {
            return false;
        };
        cause == path
    }

    /// The error with the key of the configuration that names the file.
    #[must_use]
    pub fn placed(&self) -> PlacedProblem {
        PlacedProblem { place: self.place(), problem: self.to_string() }
    }

    /// The key of the configuration that names the file. `None` if no key does.
    fn place(&self) -> Option<KeyPlace> {
        let (array, name, key) = match self {
            Self::Credentials { owner, key, .. }
            | Self::Read { owner, key, .. }
            | Self::Tls { owner, key, .. }
            | Self::Waits { owner, key, .. } => (owner.table(), owner.name(), *key),
            Self::NewHits { owner, .. } => {
                (owner.table(), owner.name(), "client_auth.max_new_hits")
            }
            Self::OwnKey(it) => (it.owner.table(), it.owner.name(), it.key),
            Self::Filter { name, source, .. } => {
                let key = if source.canary_file().is_some() {
                    "canaries"
                } else if let FilterRejection::Signature(SignatureError::Keys { .. }) = source {
                    "minisign_key"
                } else {
                    "path"
                };
                ("filters", name.as_str(), key)
            }
            Self::List { name, source, .. } => {
                let key = if let ListFileError::Canary(_) = source {
                    "canaries"
                } else if let ListFileError::Signature(SignatureError::Keys { .. }) = source {
                    "minisign_key"
                } else {
                    "path"
                };
                ("lists", name.as_str(), key)
            }
            Self::NotFetched { kind, name, .. } => {
                let table = if *kind == "filter" { "filters" } else { "lists" };
                (table, name.as_str(), "path")
            }
            Self::State(_) => return Some(KeyPlace::new("state.dir")),
            Self::Thread(_) => return None,
        };
        Some(KeyPlace::in_table(array, name, key))
    }
}

/// Why a list cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ListFileError {
    /// The blocklist or its metadata cannot be used.
    #[error(transparent)]
    Blocklist(#[from] BlocklistFileError),
    /// A canary is missing, or a file of canaries cannot be used.
    #[error(transparent)]
    Canary(#[from] CanaryError),
    /// The checksum does not match or cannot be read.
    #[error(transparent)]
    Checksum(#[from] FilterError),
    /// A line is not a fingerprint.
    #[error(transparent)]
    Content(#[from] ListError),
    /// The file is empty, but the list in use has keys.
    #[error(
        "empty, and the list in use has keys ({entries}): write a comment into a list without keys, then accept it with `keygate list accept`"
    )]
    Emptied {
        /// Number of keys in use.
        entries: usize,
    },
    /// The file cannot be read.
    #[error("{}", explain_with_remedy(.0, "raise max_size, or give the path of a list"))]
    Read(#[from] io::Error),
    /// The blocklist is older than the one in use, or has no date by which it could be compared.
    #[error(
        "rollback: it {}, and the list in use is of {}: fetch it again later, or set rollback = \"allow\" to go back",
        found.map_or_else(|| "has no date".to_owned(), |found| format!("is of {}", utc(found))),
        utc(*in_use)
    )]
    Rollback {
        /// Date of the blocklist, in seconds since the Unix epoch, if it has one.
        found: Option<u64>,
        /// Date of the blocklist in use, in seconds since the Unix epoch.
        in_use: u64,
    },
    /// The signature of the list or of its metadata is missing, or is not valid.
    #[error(transparent)]
    Signature(#[from] SignatureError),
    /// The file is not UTF-8 text.
    #[error("not UTF-8 text; save it as UTF-8, or set format = \"badkeys\" for a blocklist.dat")]
    Text(#[source] std::string::FromUtf8Error),
    /// The list has fewer entries than configured.
    #[error("records: {found}, and min_records is {min}: fetch it again, or lower min_records")]
    TooFew {
        /// Number of records.
        found: usize,
        /// The minimum.
        min: usize,
    },
    /// The update waits for the decision of an operator.
    #[error(transparent)]
    Waits(#[from] NeedsOperator),
}

#[cfg(test)]
mod tests;

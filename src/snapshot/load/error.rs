//! Why there is nothing to start with: which file, and what is wrong with it.

use std::io;
use std::path::PathBuf;

use super::super::FilterRejection;
use super::{ListFileError, OwnKey};
use crate::tls::TlsFileError;

/// Why there is nothing to start with.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// rustls cannot build a client verifier.
    #[error("service {service:?}: clients cannot be verified: {source}")]
    ClientVerifier {
        /// The service's name.
        service: String,
        /// The reason that rustls gives.
        source: rustls::server::VerifierBuilderError,
    },
    /// A filter cannot be used.
    #[error("filter {name:?}: {}: {source}", path.display())]
    Filter {
        /// The filter's name.
        name: String,
        /// Its file.
        path: PathBuf,
        /// Why.
        source: FilterRejection,
    },
    /// A list cannot be used.
    #[error("list {name:?}: {}: {source}", path.display())]
    List {
        /// The list's name.
        name: String,
        /// Its file.
        path: PathBuf,
        /// Why.
        source: ListFileError,
    },
    /// A certificate, key or trust anchor cannot be used.
    #[error("service {service:?}: {what} {}: {source}", path.display())]
    Credentials {
        /// The service's name.
        service: String,
        /// The configuration key.
        what: &'static str,
        /// The file.
        path: PathBuf,
        /// Why.
        source: TlsFileError,
    },
    /// A key of our own is in a filter or on a list.
    #[error(
        "{0}: anybody may have its private half; replace it, or set allow_compromised_own_key = true"
    )]
    OwnKey(Box<OwnKey>),
    /// A file cannot be read.
    #[error("service {service:?}: {what} {}: {source}", path.display())]
    Read {
        /// The service's name.
        service: String,
        /// The configuration key.
        what: &'static str,
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// What was in use before the last restart cannot be known, or not be remembered for the next.
    #[error(
        "state {}: {source}; make the directory writable, or remove the file to forget which filters were in use",
        path.display()
    )]
    State {
        /// The state file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// rustls refuses what was loaded.
    #[error("service {service:?}: TLS cannot be configured: {source}")]
    Tls {
        /// The service's name.
        service: String,
        /// Why.
        source: rustls::Error,
    },
}

//! Errors of the state directory: which file cannot be read or written, and why.

use std::io;
use std::path::PathBuf;

use keygate_core::regular_file::cause;

use super::GuardFile;
use super::state_directory::StateDirectoryError;

/// Why the state directory cannot be used, read or written.
#[derive(Debug, thiserror::Error)]
pub enum StateError {
    /// The copy of a filter or list in use cannot be written.
    #[error(
        "{} {name:?}: it cannot be kept as {}: {}; make room for each filter twice in state.dir, because a start needs the copy if the file is rejected then",
        file.as_str(),
        path.display(),
        cause(source)
    )]
    Copy {
        /// Whether it is a filter or a list.
        file: GuardFile,
        /// Name of the filter or list.
        name: String,
        /// Path of the copy.
        path: PathBuf,
        /// Why the copy cannot be written.
        source: io::Error,
    },
    /// The copies of the CAs and CRLs in use cannot be written.
    #[error(
        "CAs and CRLs cannot be kept in {}: {}; make room for each file in state.dir, because a start needs the copy if the file is rejected then",
        directory.display(),
        cause(source)
    )]
    CredentialCopy {
        /// The state directory.
        directory: PathBuf,
        /// Why a copy cannot be written.
        source: io::Error,
    },
    /// The directory cannot be used.
    #[error("state.dir {}: {source}", path.display())]
    Directory {
        /// Path of the directory.
        path: PathBuf,
        /// Why the directory cannot be used.
        source: StateDirectoryError,
    },
    /// A state file cannot be read or written.
    #[error("state {}: {}; {}", path.display(), cause(source), remedy(source))]
    File {
        /// Path of the state file.
        path: PathBuf,
        /// Why the file cannot be read or written.
        source: io::Error,
    },
}

impl StateError {
    /// Whether a copy could not be written. The file itself is in use.
    pub(super) fn is_about_copy(&self) -> bool {
        matches!(self, Self::Copy { .. } | Self::CredentialCopy { .. })
    }
}

/// The remedy if a state file cannot be read or written.
fn remedy(error: &io::Error) -> &'static str {
    if matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded) {
        "make room in state.dir"
    } else if error.kind() == io::ErrorKind::FileTooLarge {
        "configure fewer filters or CRLs, or run several processes with a state.dir each"
    } else if error.kind() == io::ErrorKind::InvalidData {
        "restore the file from a backup, or remove it to accept older filters or CRLs"
    } else {
        "make the directory writable, or remove the file to accept older filters or CRLs"
    }
}

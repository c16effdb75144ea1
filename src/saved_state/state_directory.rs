//! Checks the directory that `state.dir` names, before anything is read from it or written to it.

use std::io;
use std::path::Path;

use keygate_core::regular_file::cause;
use tempfile::NamedTempFile;

use crate::files;

/// Why the state directory cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum StateDirectoryError {
    /// A process with another configuration file uses the directory.
    #[error(
        "process {process} with the configuration {configuration} uses the directory: give each process a directory of its own"
    )]
    InUse {
        /// Process id in the lock file.
        process: String,
        /// Path of the configuration file in the lock file.
        configuration: String,
    },
    /// The lock file cannot be locked.
    #[error(
        "the file state.lock in the directory cannot be locked: {}; use a file system with locks",
        cause(.0)
    )]
    Lock(#[source] io::Error),
    /// No file can be created in the directory; often, the directory does not exist.
    #[error(
        "no file can be created in the directory: {}; create it, or make it writable, for the user that runs keygate, for example with `install -d -m 0750 -o keygate DIRECTORY`, or with StateDirectory= in the systemd unit",
        cause(.0)
    )]
    NotWritable(#[source] io::Error),
}

/// Checks that files can be created in `directory`, by creating one and removing it.
///
/// # Errors
/// Returns an error if no file can be created, or if the directory does not respond in time.
pub(crate) fn check(directory: &Path) -> Result<(), StateDirectoryError> {
    let owned = directory.to_owned();
    // With a name, because the state files are replaced by renaming a file with a name.
    let create = move || NamedTempFile::new_in(owned)?.close();
    files::call_with(directory, create).map_err(StateDirectoryError::NotWritable)
}

//! Checks the directory that `state.dir` names, before anything is read from it or written to it.

use std::io;
use std::path::Path;

use keygate_core::regular_file::cause;

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
    /// Nothing has this path.
    #[error(
        "the directory does not exist: create it for the user that runs keygate, for example with `install -d -m 0750 -o keygate DIRECTORY`, or with StateDirectory= in the systemd unit"
    )]
    Missing,
    /// The path names a file.
    #[error("it is not a directory: give the path of one")]
    NotADirectory,
    /// No file can be created in the directory.
    #[error(
        "no file can be created in the directory: {}; make it writable for the user that runs keygate",
        cause(.0)
    )]
    NotWritable(#[source] io::Error),
    /// The directory cannot be examined.
    #[error("the directory cannot be examined: {}; correct the path or its permissions", cause(.0))]
    Unreadable(#[source] io::Error),
}

/// Checks that files can be created in `directory`, by creating one and removing it.
///
/// # Errors
/// Returns an error if the directory is missing, not a directory or does not respond in time, or if
/// no file can be created.
pub(crate) fn check(directory: &Path) -> Result<(), StateDirectoryError> {
    let owned = directory.to_owned();
    let checked = files::call_with(directory, move || Ok::<_, io::Error>(try_to_write(&owned)));
    checked.map_err(StateDirectoryError::Unreadable)?
}

fn try_to_write(directory: &Path) -> Result<(), StateDirectoryError> {
    match std::fs::metadata(directory) {
        Ok(metadata) if metadata.is_dir() => {}
        Ok(_) => return Err(StateDirectoryError::NotADirectory),
        Err(error) => {
            return Err(if error.kind() == io::ErrorKind::NotFound {
                StateDirectoryError::Missing
            } else if error.kind() == io::ErrorKind::NotADirectory {
                StateDirectoryError::NotADirectory
            } else {
                StateDirectoryError::Unreadable(error)
            });
        }
    }
    // With a name, because the state files are replaced by renaming a file with a name.
    tempfile::NamedTempFile::new_in(directory)
        .and_then(tempfile::NamedTempFile::close)
        .map_err(StateDirectoryError::NotWritable)
}

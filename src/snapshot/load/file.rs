//! Files as the loader reads them: their state on disk, and their content within the sandbox.

use std::io;
use std::path::Path;
use std::time::{Duration, SystemTime};

use crate::pkbf::FileStamp;
use crate::process::sandbox;
use crate::regular_file;

/// Minimum time since the last change of a file, 200 ms; a file that changed later is read later,
/// because its writer may not have finished.
pub(crate) const SETTLE: Duration = Duration::from_millis(200);

/// The state of a file on disk. Two equal states mean that the file has not changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FileState {
    /// The file exists.
    Present(FileStamp),
    /// The metadata of the file cannot be read; often, the file does not exist.
    Unreadable(io::ErrorKind),
}

impl FileState {
    /// The current state of the file at `path`, following symbolic links.
    pub(crate) fn of(path: &Path) -> Self {
        match FileStamp::of(path) {
            Ok(stamp) => Self::Present(stamp),
            Err(error) => Self::Unreadable(error.kind()),
        }
    }

    /// Whether the file has not changed for [`SETTLE`] before `now`.
    pub(crate) fn is_settled(&self, now: SystemTime) -> bool {
        match self {
            Self::Present(stamp) => stamp.changed_before(now, SETTLE),
            Self::Unreadable(_) => true,
        }
    }
}

/// Reads the regular file at `path` within the sandbox.
///
/// # Errors
/// Returns an error if the sandbox does not allow the file, or if it cannot be read, is not a
/// regular file, or is larger than `max_size` bytes.
pub(crate) fn read_bounded(path: &Path, max_size: u64) -> io::Result<Vec<u8>> {
    sandbox::check(path)?;
    regular_file::read(path, max_size)
}

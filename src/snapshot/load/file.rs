//! Files as the loader sees them: whether one has changed, whether its writer is done, what is in it.

use std::io;
use std::path::Path;
use std::time::SystemTime;

use super::SETTLE;
use crate::pkbf::FileStamp;
use crate::process::sandbox;
use crate::regular_file;

/// What was seen of a file when it was last examined; while it stays so, there is nothing to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum FileState {
    Present(FileStamp),
    Unreadable(io::ErrorKind),
}

impl FileState {
    pub(super) fn of(path: &Path) -> Self {
        match FileStamp::of(path) {
            Ok(stamp) => Self::Present(stamp),
            Err(error) => Self::Unreadable(error.kind()),
        }
    }

    pub(super) fn is_settled(&self, now: SystemTime) -> bool {
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
pub(super) fn read_bounded(path: &Path, max_size: u64) -> io::Result<Vec<u8>> {
    sandbox::check(path)?;
    regular_file::read(path, max_size)
}

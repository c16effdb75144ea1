//! Files as the loader sees them: whether one has changed, whether its writer is done, what is in it.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;
use std::time::SystemTime;

use super::SETTLE;
use crate::pkbf::FileStamp;
use crate::process::sandbox;

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

/// A regular file of at most `max_size` bytes.
pub(super) fn read_bounded(path: &Path, max_size: u64) -> io::Result<Vec<u8>> {
    sandbox::check(path)?;
    // ConfigChange at before it is opened: opening a pipe would wait for its writer.
    if !std::fs::metadata(path)?.is_file() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file"));
    }
    let mut content = Vec::new();
    File::open(path)?.take(max_size.saturating_add(1)).read_to_end(&mut content)?;
    if content.len() as u64 > max_size {
        let error = format!("larger than {max_size} bytes");
        return Err(io::Error::new(io::ErrorKind::InvalidData, error));
    }
    Ok(content)
}

//! The class of a rejected list update, as metrics, logs and the status name it.

use std::io;

use super::load::error::ListFileError;
use crate::badkeys::{BlocklistFileError, MetadataError};
use crate::metrics::Label;

/// The class of a rejected list update.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ListRejectionReason {
    /// The file does not match its checksum file, or the SHA-256 in its metadata.
    Checksum,
    /// The file or its metadata are not of the format.
    Content,
    /// A file cannot be read.
    Io,
    /// The list is older than the one in use, or has no date in place of a list with one.
    Rollback,
    /// The list lacks too many of the entries in use, or has fewer than `min_records`.
    Shrunk,
    /// A signature is missing, or is not valid for its file and a key of `minisign_key`.
    Signature,
    /// The file is larger than `max_size`.
    Size,
}

impl ListRejectionReason {
    /// The class of `error`.
    pub(super) fn of(error: &ListFileError) -> Self {
        match error {
            ListFileError::Blocklist(error) => Self::of_blocklist(error),
            ListFileError::Checksum(_) => Self::Checksum,
            ListFileError::Content(_) | ListFileError::Text(_) => Self::Content,
            ListFileError::Emptied { .. }
            | ListFileError::Shrunk { .. }
            | ListFileError::TooFew { .. } => Self::Shrunk,
            ListFileError::Read(error) => Self::of_read(error),
            ListFileError::Rollback { .. } => Self::Rollback,
            ListFileError::Signature(_) => Self::Signature,
        }
    }

    fn of_blocklist(error: &BlocklistFileError) -> Self {
        match error {
            BlocklistFileError::Checksum(_) | BlocklistFileError::Digest { .. } => Self::Checksum,
            BlocklistFileError::Content(_) => Self::Content,
            BlocklistFileError::Metadata { source: MetadataError::Read(error), .. }
            | BlocklistFileError::Read(error) => Self::of_read(error),
            BlocklistFileError::Metadata { .. } => Self::Content,
        }
    }

    /// The class of an error of [`crate::regular_file::read`].
    fn of_read(error: &io::Error) -> Self {
        if error.kind() == io::ErrorKind::InvalidData { Self::Size } else { Self::Io }
    }
}

impl Label for ListRejectionReason {
    const ALL: &'static [Self] = &[
        Self::Checksum,
        Self::Content,
        Self::Io,
        Self::Rollback,
        Self::Shrunk,
        Self::Signature,
        Self::Size,
    ];

    fn index(self) -> usize {
        self as usize
    }

    fn as_str(self) -> &'static str {
        match self {
            Self::Checksum => "checksum",
            Self::Content => "content",
            Self::Io => "io",
            Self::Rollback => "rollback",
            Self::Shrunk => "shrunk",
            Self::Signature => "signature",
            Self::Size => "size",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_reason_is_at_its_index() {
        let all = ListRejectionReason::ALL;
        assert!(all.iter().enumerate().all(|(index, reason)| reason.index() == index));
    }
}

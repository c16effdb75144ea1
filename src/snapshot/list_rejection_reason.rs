//! The class of a rejected list update, as metrics, logs and the status name it.

use std::io;

use keygate_core::badkeys::{BlocklistFileError, MetadataError};

use super::load::error::ListFileError;
use crate::metrics::labels;

labels! {
    /// The class of a rejected list update.
    ListRejectionReason {
        /// A canary key is missing.
        Canary = "canary",
        /// The file does not match its checksum file, or the SHA-256 in its metadata.
        Checksum = "checksum",
        /// The file or its metadata are not of the format.
        Content = "content",
        /// A file cannot be read.
        Io = "io",
        /// More of the recent clients would be rejected than `max_new_hits` allows.
        NewHits = "new_hits",
        /// The list is older than the one in use, or has no date in place of a list with one.
        Rollback = "rollback",
        /// The list has half of the entries in use or fewer, or fewer than `min_records`.
        Shrunk = "shrunk",
        /// A signature is missing, or is not valid for its file and a key of `minisign_key`.
        Signature = "signature",
        /// The file is larger than `max_size`.
        Size = "size",
    }
}

impl ListRejectionReason {
    /// The class of `error`.
    pub(super) fn of(error: &ListFileError) -> Self {
        match error {
            ListFileError::Blocklist(error) => Self::of_blocklist(error),
            ListFileError::Checksum(_) => Self::Checksum,
            ListFileError::Content(_) | ListFileError::Text(_) => Self::Content,
            ListFileError::Canary(_) => Self::Canary,
            ListFileError::Emptied { .. } | ListFileError::TooFew { .. } => Self::Shrunk,
            ListFileError::Waits(waits) if waits.is_shrunk() => Self::Shrunk,
            ListFileError::Waits(_) => Self::NewHits,
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

    /// The class of an error of [`keygate_core::regular_file::read`].
    fn of_read(error: &io::Error) -> Self {
        if error.kind() == io::ErrorKind::InvalidData { Self::Size } else { Self::Io }
    }
}

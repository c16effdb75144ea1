//! The class of a rejected list update, as metrics, logs and the status name it.

use std::io;

use keygate_core::badkeys::{BlocklistFileError, MetadataError};

use super::error::ListFileError;
use super::failure::FileRejection;
use super::operator_decision::NeedsOperator;
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

impl FileRejection for ListFileError {
    type Reason = ListRejectionReason;

    fn reason(&self) -> ListRejectionReason {
        match self {
            Self::Blocklist(error) => reason_of_blocklist(error),
            Self::Checksum(_) => ListRejectionReason::Checksum,
            Self::Content(_) | Self::Text(_) => ListRejectionReason::Content,
            Self::Canary(_) => ListRejectionReason::Canary,
            Self::Emptied { .. } | Self::TooFew { .. } => ListRejectionReason::Shrunk,
            Self::Waits(waits) if waits.is_shrunk() => ListRejectionReason::Shrunk,
            Self::Waits(_) => ListRejectionReason::NewHits,
            Self::Read(error) => reason_of_read(error),
            Self::Rollback { .. } => ListRejectionReason::Rollback,
            Self::Signature(_) => ListRejectionReason::Signature,
        }
    }

    fn waits(&self) -> Option<&NeedsOperator> {
        if let Self::Waits(waits) = self { Some(waits) } else { None }
    }

    fn without_file_in_use(self) -> Self {
        if let Self::Waits(waits) = self { waits.without_file_in_use().into() } else { self }
    }
}

fn reason_of_blocklist(error: &BlocklistFileError) -> ListRejectionReason {
    match error {
        BlocklistFileError::Checksum(_) | BlocklistFileError::Digest { .. } => {
            ListRejectionReason::Checksum
        }
        BlocklistFileError::Metadata { source: MetadataError::Read(error), .. }
        | BlocklistFileError::Read(error) => reason_of_read(error),
        BlocklistFileError::Content(_) | BlocklistFileError::Metadata { .. } => {
            ListRejectionReason::Content
        }
    }
}

/// The class of an error of [`keygate_core::regular_file::read`].
fn reason_of_read(error: &io::Error) -> ListRejectionReason {
    if error.kind() == io::ErrorKind::InvalidData {
        ListRejectionReason::Size
    } else {
        ListRejectionReason::Io
    }
}

//! Why the file of a filter or list is rejected, and what the operator can do about it.

use std::io;
use std::path::{Path, PathBuf};

use keygate_core::badkeys::{BlocklistFileError, MetadataError};
use keygate_core::guard::ListError;
use keygate_core::pkbf::{FilterError, Plausibility};
use keygate_core::regular_file::{explain, explain_with_remedy};
use keygate_core::signature::SignatureError;
use keygate_core::spki::InputError;
use keygate_core::unix_time::utc;

use super::failure::{Failure, ReadError};
use super::operator_decision::{GuardFile, NeedsOperator};
use super::rejection_reason::RejectionReason;

/// Why the file of a filter or list is rejected.
#[derive(Debug, thiserror::Error)]
pub enum FileRejection {
    /// The blocklist or its metadata cannot be used.
    #[error(transparent)]
    Blocklist(#[from] BlocklistFileError),
    /// A canary is missing, or a file of canaries cannot be used.
    #[error(transparent)]
    Canary(#[from] CanaryError),
    /// A line of a list is not a fingerprint.
    #[error(transparent)]
    Content(#[from] ListError),
    /// The list is empty, but the list in use has keys.
    #[error(
        "empty, and the list in use has keys ({entries}): write a comment into a list without keys, then accept it with `keygate list accept`"
    )]
    Emptied {
        /// Number of keys in use.
        entries: usize,
    },
    /// The filter cannot be used, or the checksum of a list does not match or cannot be read.
    #[error(transparent)]
    File(#[from] FilterError),
    /// The date in the header of a filter is more than one day in the future.
    #[error(
        "dated {}, more than one day in the future: a clock is wrong, or the date is forged; correct the clock, or fetch the filter again",
        utc(*.updated)
    )]
    Future {
        /// Last change according to the header, in seconds since the Unix epoch.
        updated: u64,
    },
    /// The blocklist is older than the one in use, or has no date by which it could be compared.
    #[error(
        "rollback: it {}, and the list in use is of {}: fetch it again later, or set rollback = \"allow\" to go back",
        found.map_or_else(|| "has no date".to_owned(), |found| format!("is of {}", utc(found))),
        utc(*in_use)
    )]
    OlderBlocklist {
        /// Date of the blocklist, in seconds since the Unix epoch, if it has one.
        found: Option<u64>,
        /// Date of the blocklist in use, in seconds since the Unix epoch.
        in_use: u64,
    },
    /// The filter is older than the newest one that was in use.
    #[error(
        "rollback: revision {revision} of {} is older than revision {known_revision} of {} that was in use; publish it with a later date, or set rollback = \"allow\"",
        utc(*.updated),
        utc(*.known_updated)
    )]
    OlderFilter {
        /// Revision in the header.
        revision: u32,
        /// Last change according to the header, in seconds since the Unix epoch.
        updated: u64,
        /// Revision of the newest filter that was in use.
        known_revision: u32,
        /// Last change of the newest filter that was in use, in seconds since the Unix epoch.
        known_updated: u64,
    },
    /// The header does not explain the number of bits that are set.
    #[error("implausible: {0}; fetch the filter again, or set implausible = \"warn\"")]
    Plausibility(Plausibility),
    /// More random keys are hits than the header explains.
    #[error(
        "{hits} of {keys} random keys are hits, the header allows a rate of {rate:.1e}: the filter would reject clients at random; fetch the filter again"
    )]
    RandomHits {
        /// Number of random keys that were hits.
        hits: usize,
        /// Number of random keys that were looked up.
        keys: usize,
        /// Highest false-positive rate that the header allows.
        rate: f64,
    },
    /// The list cannot be read.
    #[error("{}", explain_with_remedy(.0, "raise max_size, or give the path of a list"))]
    Read(#[from] io::Error),
    /// A signature is missing, or is not valid.
    #[error(transparent)]
    Signature(#[from] SignatureError),
    /// The list is not UTF-8 text.
    #[error("not UTF-8 text; save it as UTF-8, or set format = \"badkeys\" for a blocklist.dat")]
    Text(#[source] std::string::FromUtf8Error),
    /// The list has fewer entries than configured.
    #[error("records: {found}, and min_records is {min}: fetch it again, or lower min_records")]
    TooFew {
        /// Number of records.
        found: usize,
        /// The minimum.
        min: usize,
    },
    /// The update waits for the decision of an operator.
    #[error(transparent)]
    Waits(#[from] NeedsOperator),
}

/// Why the canaries of a filter or list reject an update.
#[derive(Debug, thiserror::Error)]
pub enum CanaryError {
    /// A file of canaries cannot be used.
    #[error("canaries in {}: {source}", path.display())]
    File {
        /// Path of the file of canaries, as configured.
        path: PathBuf,
        /// Why the file cannot be used.
        source: CanaryFileError,
    },
    /// A canary key is missing.
    #[error(
        "the canary {fingerprint} from {} is not in the {file}: keys were lost, or it is another list; fetch the {file} again, or correct canaries",
        path.display(),
        file = .file.as_str()
    )]
    Missing {
        /// The kind of the file that lacks the key.
        file: GuardFile,
        /// Path of the file of canaries, as configured.
        path: PathBuf,
        /// Fingerprint of the canary key, in hex.
        fingerprint: String,
    },
}

/// Why a file of canaries cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum CanaryFileError {
    /// The file is not text, and holds no usable key.
    #[error("{0}; give certificates or public keys that the filter must have")]
    Key(InputError),
    /// A line of the file holds no usable key.
    #[error("line {line}: {source}; give certificates or public keys that the filter must have")]
    Line {
        /// Line number, counted from 1.
        line: u64,
        /// Why the line holds no usable key.
        source: InputError,
    },
    /// The file cannot be read.
    #[error("{}", explain(.0))]
    Read(#[from] io::Error),
}

impl FileRejection {
    /// The class of the rejection, for metrics, logs and the status.
    pub(super) fn reason(&self) -> RejectionReason {
        match self {
            Self::Blocklist(error) => reason_of_blocklist(error),
            Self::Canary(_) | Self::RandomHits { .. } => RejectionReason::Canary,
            Self::Content(_) | Self::Text(_) => RejectionReason::Content,
            Self::Emptied { .. } | Self::TooFew { .. } => RejectionReason::Shrunk,
            Self::File(error) => reason_of_file(error),
            Self::Future { .. } => RejectionReason::Future,
            Self::OlderBlocklist { .. } | Self::OlderFilter { .. } => RejectionReason::Rollback,
            Self::Plausibility(_) => RejectionReason::Plausibility,
            Self::Read(error) => reason_of_read(error),
            Self::Signature(_) => RejectionReason::Signature,
            Self::Waits(waits) if waits.is_shrunk() => RejectionReason::Shrunk,
            Self::Waits(_) => RejectionReason::NewHits,
        }
    }

    /// The configuration key, in the table of the filter or list, that names the rejected file.
    pub(super) fn key(&self) -> &'static str {
        if self.canary_file().is_some() {
            "canaries"
        } else if let Self::Signature(SignatureError::Keys { .. }) = self {
            "minisign_key"
        } else {
            "path"
        }
    }

    /// The path of the file of canaries because of which the file is rejected, as configured.
    pub(super) fn canary_file(&self) -> Option<&Path> {
        let Self::Canary(CanaryError::File { path, .. } | CanaryError::Missing { path, .. }) = self
        else {
            return None;
        };
        Some(path)
    }

    /// Whether the file does not exist.
    pub(super) fn is_missing(&self) -> bool {
        let (Self::Blocklist(BlocklistFileError::Read(error))
        | Self::File(FilterError::Io(error))
        | Self::Read(error)) = self
        else {
            return false;
        };
        error.kind() == io::ErrorKind::NotFound
    }

    /// Why the update needs the operator; `None` if it does not.
    pub(super) fn waits(&self) -> Option<&NeedsOperator> {
        if let Self::Waits(waits) = self { Some(waits) } else { None }
    }

    /// The date of an update that is dated in the future, in seconds since the Unix epoch.
    pub(super) fn future(&self) -> Option<u64> {
        if let Self::Future { updated } = self { Some(*updated) } else { None }
    }

    /// The rejection of a file in whose place no other is in use until an operator accepts it.
    pub(super) fn without_file_in_use(self) -> Self {
        if let Self::Waits(waits) = self { waits.without_file_in_use().into() } else { self }
    }
}

impl ReadError for FileRejection {
    fn failure(&self) -> Failure {
        match self {
            Self::Blocklist(source) => source.failure(),
            Self::Canary(CanaryError::File { source: CanaryFileError::Read(source), .. })
            | Self::Read(source) => source.failure(),
            Self::File(source) => source.failure(),
            Self::Signature(source) => source.failure(),
            Self::Canary(_)
            | Self::Content(_)
            | Self::Emptied { .. }
            | Self::Future { .. }
            | Self::OlderBlocklist { .. }
            | Self::OlderFilter { .. }
            | Self::Plausibility(_)
            | Self::RandomHits { .. }
            | Self::Text(_)
            | Self::TooFew { .. }
            | Self::Waits(_) => Failure::Content,
        }
    }
}

fn reason_of_file(error: &FilterError) -> RejectionReason {
    match error {
        FilterError::BadMarker { .. } => RejectionReason::Marker,
        FilterError::Checksum { .. } | FilterError::ChecksumFile { .. } => {
            RejectionReason::Checksum
        }
        FilterError::HashCountZero | FilterError::HashLengthOutOfRange { .. } => {
            RejectionReason::Range
        }
        FilterError::TooLarge { .. }
        | FilterError::TooShort { .. }
        | FilterError::WrongLength { .. } => RejectionReason::Size,
        FilterError::BeingWritten
        | FilterError::Io(_)
        | FilterError::NoParameters { .. }
        | FilterError::OutOfMemory { .. } => RejectionReason::Io,
    }
}

fn reason_of_blocklist(error: &BlocklistFileError) -> RejectionReason {
    match error {
        BlocklistFileError::Checksum(_) | BlocklistFileError::Digest { .. } => {
            RejectionReason::Checksum
        }
        BlocklistFileError::Metadata { source: MetadataError::Read(error), .. }
        | BlocklistFileError::Read(error) => reason_of_read(error),
        BlocklistFileError::Content(_) | BlocklistFileError::Metadata { .. } => {
            RejectionReason::Content
        }
    }
}

/// The class of an error of [`keygate_core::regular_file::read`].
fn reason_of_read(error: &io::Error) -> RejectionReason {
    if error.kind() == io::ErrorKind::InvalidData {
        RejectionReason::Size
    } else {
        RejectionReason::Io
    }
}

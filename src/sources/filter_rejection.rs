//! Why a filter update is rejected, and what the operator can do about it.

use std::io;
use std::path::{Path, PathBuf};

use keygate_core::pkbf::{FilterError, Plausibility};
use keygate_core::regular_file::explain;
use keygate_core::signature::SignatureError;
use keygate_core::spki::InputError;
use keygate_core::unix_time::utc;

use super::failure::FileRejection;
use super::operator_decision::{GuardFile, NeedsOperator};
use super::rejection_reason::RejectionReason;

/// Why a filter update is rejected.
#[derive(Debug, thiserror::Error)]
pub enum FilterRejection {
    /// A canary is missing, or a file of canaries cannot be used.
    #[error(transparent)]
    Canary(#[from] CanaryError),
    /// The file itself cannot be used.
    #[error(transparent)]
    File(#[from] FilterError),
    /// The date in the header is more than one day in the future.
    #[error(
        "dated {}, more than one day in the future: a clock is wrong, or the date is forged; correct the clock, or fetch the filter again",
        utc(*.updated)
    )]
    Future {
        /// Last change according to the header, in seconds since the Unix epoch.
        updated: u64,
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
    /// The filter is older than the newest one that was in use.
    #[error(
        "rollback: revision {revision} of {} is older than revision {known_revision} of {} that was in use; publish it with a later date, or set rollback = \"allow\"",
        utc(*.updated),
        utc(*.known_updated)
    )]
    Rollback {
        /// Revision in the header.
        revision: u32,
        /// Last change according to the header, in seconds since the Unix epoch.
        updated: u64,
        /// Revision of the newest filter that was in use.
        known_revision: u32,
        /// Last change of the newest filter that was in use, in seconds since the Unix epoch.
        known_updated: u64,
    },
    /// The signature is missing, or is not valid.
    #[error(transparent)]
    Signature(#[from] SignatureError),
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

impl FilterRejection {
    /// The path of the file of canaries because of which the filter is rejected, as configured.
    pub(super) fn canary_file(&self) -> Option<&Path> {
        match self {
            Self::Canary(CanaryError::File { path, .. } | CanaryError::Missing { path, .. }) => {
                Some(path)
            }
            Self::File(_)
            | Self::Future { .. }
            | Self::Plausibility(_)
            | Self::RandomHits { .. }
            | Self::Rollback { .. }
            | Self::Signature(_)
            | Self::Waits(_) => None,
        }
    }
}

impl FileRejection for FilterRejection {
    type Reason = RejectionReason;

    fn reason(&self) -> RejectionReason {
        match self {
            Self::Canary(_) | Self::RandomHits { .. } => RejectionReason::Canary,
            Self::File(error) => reason_of(error),
            Self::Future { .. } => RejectionReason::Future,
            Self::Plausibility(_) => RejectionReason::Plausibility,
            Self::Rollback { .. } => RejectionReason::Rollback,
            Self::Signature(_) => RejectionReason::Signature,
            Self::Waits(waits) if waits.is_shrunk() => RejectionReason::Shrunk,
            Self::Waits(_) => RejectionReason::NewHits,
        }
    }

    fn waits(&self) -> Option<&NeedsOperator> {
        if let Self::Waits(waits) = self { Some(waits) } else { None }
    }

    fn future(&self) -> Option<u64> {
        if let Self::Future { updated } = self { Some(*updated) } else { None }
    }

    fn without_file_in_use(self) -> Self {
        if let Self::Waits(waits) = self { waits.without_file_in_use().into() } else { self }
    }
}

fn reason_of(error: &FilterError) -> RejectionReason {
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

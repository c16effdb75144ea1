//! Why a filter file is not put to use, and what the operator can do about it.

use std::path::PathBuf;

use super::RejectionReason;
use crate::pkbf::{FilterError, Plausibility};

/// Why a filter file is not put to use.
#[derive(Debug, thiserror::Error)]
pub enum FilterRejection {
    /// A file of canaries cannot be read, or has no key.
    #[error("canaries in {}: {problem}", path.display())]
    CanaryFile {
        /// The file that the configuration names.
        path: PathBuf,
        /// What is wrong with it.
        problem: String,
    },
    /// A key that must be in the filter is not.
    #[error(
        "the canary {fingerprint} from {} is not in it: keys were lost, or it is another list",
        path.display()
    )]
    CanaryMissing {
        /// The file that the configuration names.
        path: PathBuf,
        /// The fingerprint of the key.
        fingerprint: String,
    },
    /// The file itself cannot be used.
    #[error(transparent)]
    File(#[from] FilterError),
    /// It was changed at a time that has not come yet.
    #[error(
        "it says that it was changed at {updated} (Unix time), more than a day from now: a clock is wrong, or the date is forged"
    )]
    Future {
        /// The header's time, in seconds since the Unix epoch.
        updated: u64,
    },
    /// It would refuse more of the clients seen lately than it may.
    #[error(
        "it would refuse {new_hits} of the clients that were admitted lately, max_new_hits allows {allowed}: look at it, then let it through with `keygate filter accept`"
    )]
    NewHits {
        /// How many distinct keys.
        new_hits: usize,
        /// The configured limit.
        allowed: usize,
    },
    /// Its own numbers cannot explain the bits that are set.
    #[error("implausible: {0}")]
    Plausibility(Plausibility),
    /// Too many keys that cannot be in it are hits.
    #[error(
        "{hits} of {tried} random keys are hits, the header's numbers allow a rate of {rate:.1e}: it would refuse clients at random"
    )]
    RandomHits {
        /// How many random keys were hits.
        hits: usize,
        /// Of how many.
        tried: usize,
        /// The highest rate that the header's numbers allow.
        rate: f64,
    },
    /// It is older than the one before.
    #[error(
        "rollback: it is revision {revision} of {updated} (Unix time), older than revision {known_revision} of {known_updated} that was in use; publish it anew, or set rollback = \"allow\""
    )]
    Rollback {
        /// The revision in its header.
        revision: u32,
        /// The time in its header, in seconds since the Unix epoch.
        updated: u64,
        /// The revision before.
        known_revision: u32,
        /// The time of the one before.
        known_updated: u64,
    },
}

impl FilterRejection {
    /// The word for it in metrics, logs and the status.
    #[must_use]
    pub fn reason(&self) -> RejectionReason {
        match self {
            Self::CanaryFile { .. } | Self::CanaryMissing { .. } | Self::RandomHits { .. } => {
                RejectionReason::Canary
            }
            Self::File(error) => of_file(error),
            Self::Future { .. } => RejectionReason::Future,
            Self::NewHits { .. } => RejectionReason::NewHits,
            Self::Plausibility(_) => RejectionReason::Plausibility,
            Self::Rollback { .. } => RejectionReason::Rollback,
        }
    }
}

fn of_file(error: &FilterError) -> RejectionReason {
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

//! The class of a loading error: whether a later attempt can succeed with unchanged files.

use std::io;

use keygate_core::badkeys::{BlocklistFileError, MetadataError};
use keygate_core::pkbf::{ChecksumFileError, FilterError};
use keygate_core::signature::{SignatureError, SignatureFileError};

use super::error::{ListFileError, LoadError};
use super::load_errors::LoadErrors;
use super::operator_decision::NeedsOperator;
use super::reconfigure_error::ReconfigureError;
use crate::config::ConfigError;
use crate::metrics::Label;
use crate::sources::filter_rejection::{CanaryError, CanaryFileError, FilterRejection};

/// Why files could not be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Failure {
    /// The writer of a file is not done.
    BeingWritten,
    /// The content is wrong. It is read again when a file changes.
    Content,
    /// A file could not be read, for example because no descriptor was left. The next look tries
    /// again.
    Read,
}

/// An error of reading files.
pub(crate) trait ReadError: std::error::Error {
    /// Why the files could not be used.
    fn failure(&self) -> Failure;
}

/// Why a filter or a list is rejected.
pub(crate) trait FileRejection: ReadError + From<NeedsOperator> {
    type Reason: Label;

    /// The class of the rejection, for metrics, logs and the status.
    fn reason(&self) -> Self::Reason;

    /// Why the update needs the operator; `None` if it does not.
    fn waits(&self) -> Option<&NeedsOperator>;

    /// Whether the update waits for the decision of an operator.
    fn needs_operator(&self) -> bool {
        self.waits().is_some_and(NeedsOperator::can_be_accepted)
    }

    /// The date of an update that is dated in the future, in seconds since the Unix epoch.
    fn future(&self) -> Option<u64> {
        None
    }

    /// The rejection of a file in whose place no other is in use until an operator accepts it.
    fn without_file_in_use(self) -> Self;
}

impl ReadError for io::Error {
    fn failure(&self) -> Failure {
        let kind = self.kind();
        if matches!(kind, io::ErrorKind::InvalidData | io::ErrorKind::InvalidInput) {
            Failure::Content
        } else if matches!(kind, io::ErrorKind::ResourceBusy | io::ErrorKind::WouldBlock) {
            Failure::BeingWritten // changed during the read, or under a lease (fcntl, F_SETLEASE)
        } else {
            Failure::Read
        }
    }
}

impl ReadError for FilterError {
    fn failure(&self) -> Failure {
        match self {
            Self::BeingWritten => Failure::BeingWritten,
            Self::Io(source) | Self::ChecksumFile { source: ChecksumFileError::Io(source), .. } => {
                source.failure()
            }
            Self::OutOfMemory { .. } => Failure::Read,
            Self::BadMarker { .. }
            | Self::Checksum { .. }
            | Self::ChecksumFile { .. }
            | Self::HashCountZero
            | Self::HashLengthOutOfRange { .. }
            | Self::NoParameters { .. }
            | Self::TooLarge { .. }
            | Self::TooShort { .. }
            | Self::WrongLength { .. } => Failure::Content,
        }
    }
}

impl ReadError for FilterRejection {
    fn failure(&self) -> Failure {
        match self {
            Self::Canary(source) => source.failure(),
            Self::File(source) => source.failure(),
            Self::Signature(source) => source.failure(),
            Self::Future { .. }
            | Self::Plausibility(_)
            | Self::RandomHits { .. }
            | Self::Rollback { .. }
            | Self::Waits(_) => Failure::Content,
        }
    }
}

impl ReadError for CanaryError {
    fn failure(&self) -> Failure {
        match self {
            Self::File { source: CanaryFileError::Read(source), .. } => source.failure(),
            Self::File { .. } | Self::Missing { .. } => Failure::Content,
        }
    }
}

impl ReadError for SignatureError {
    fn failure(&self) -> Failure {
        match self {
            Self::Keys { source: SignatureFileError::Read(source), .. }
            | Self::Unusable { source: SignatureFileError::Read(source), .. } => source.failure(),
            Self::Invalid { .. }
            | Self::Keys { .. }
            | Self::Missing { .. }
            | Self::NotKept { .. }
            | Self::OtherKey { .. }
            | Self::Unusable { .. } => Failure::Content,
        }
    }
}

impl ReadError for BlocklistFileError {
    fn failure(&self) -> Failure {
        match self {
            Self::Checksum(source) => source.failure(),
            Self::Metadata { source: MetadataError::Read(source), .. } | Self::Read(source) => {
                source.failure()
            }
            Self::Content(_) | Self::Digest { .. } | Self::Metadata { .. } => Failure::Content,
        }
    }
}

impl ReadError for ListFileError {
    fn failure(&self) -> Failure {
        match self {
            Self::Blocklist(source) => source.failure(),
            Self::Canary(source) => source.failure(),
            Self::Checksum(source) => source.failure(),
            Self::Read(source) => source.failure(),
            Self::Signature(source) => source.failure(),
            Self::Content(_)
            | Self::Emptied { .. }
            | Self::Rollback { .. }
            | Self::Text(_)
            | Self::TooFew { .. }
            | Self::Waits(_) => Failure::Content,
        }
    }
}

impl ReadError for LoadError {
    fn failure(&self) -> Failure {
        match self {
            Self::Filter { source, .. } => source.failure(),
            Self::List { source, .. } => source.failure(),
            Self::Read { source, .. } | Self::Thread(source) => source.failure(),
            Self::NotFetched { .. } => Failure::Read,
            Self::Credentials { .. }
            | Self::NewHits { .. }
            | Self::OwnKey(_)
            | Self::State(_)
            | Self::Tls { .. }
            | Self::Waits { .. } => Failure::Content,
        }
    }
}

/// Waits for a writer, and retries reading, although other files are wrong. The errors of all files
/// are then known.
impl ReadError for LoadErrors {
    fn failure(&self) -> Failure {
        let is = |failure| self.iter().any(|error| error.failure() == failure);
        let retried = [Failure::BeingWritten, Failure::Read];
        retried.into_iter().find(|failure| is(*failure)).unwrap_or(Failure::Content)
    }
}

impl ReadError for ReconfigureError {
    fn failure(&self) -> Failure {
        match self {
            Self::Config(ConfigError::Read { source, .. }) => source.failure(),
            Self::Load(source) => source.failure(),
            Self::Config(ConfigError::Invalid { .. }) | Self::Prepare(_) | Self::Sandbox(_) => {
                Failure::Content
            }
        }
    }
}

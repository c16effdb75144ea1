//! The class of a loading error: whether a later attempt can succeed with unchanged files.

use std::io;

use keygate_core::badkeys::{BlocklistFileError, MetadataError};
use keygate_core::pkbf::{ChecksumFileError, FilterError};
use keygate_core::signature::{SignatureError, SignatureFileError};

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

//! Why a filter cannot be used: the value found, its place, and the remedy.

use std::io;
use std::path::PathBuf;

use super::{HEADER_SIZE, MAX_HASH_LENGTH, MIN_HASH_LENGTH};
use crate::regular_file::{FileSize, explain};

/// Why a file is not a usable filter.
#[derive(Debug, thiserror::Error)]
pub enum FilterError {
    /// The file does not begin with the marker of the format.
    #[error(
        "not a pkbfv1 filter: the file begins with {found}, a filter with \"pkbfv1\"; give the path of a filter"
    )]
    BadMarker {
        /// The first bytes, escaped.
        found: String,
    },
    /// The file changed while it was read, or its writer holds the lock.
    #[error("the file is being written to; it is read again when the writer is done")]
    BeingWritten,
    /// The file does not match its checksum file.
    #[error(
        "its SHA-256 is {found}, but {} has {expected}: one of the two is damaged or outdated; fetch both again",
        sidecar.display()
    )]
    Checksum {
        /// The checksum file.
        sidecar: PathBuf,
        /// The checksum in that file, in hex.
        expected: String,
        /// The checksum of the filter, in hex.
        found: String,
    },
    /// The checksum file cannot be read or has no checksum.
    #[error(
        "{}: {source}; write it with sha256sum, or remove it to go without a checksum",
        sidecar.display()
    )]
    ChecksumFile {
        /// The checksum file.
        sidecar: PathBuf,
        /// Why there is no checksum.
        source: ChecksumFileError,
    },
    /// `k` is 0, so that every key would be a hit.
    #[error("hash count is 0 (header offset 22), at least 1 is needed; fetch the file again")]
    HashCountZero,
    /// `L` is out of range.
    #[error(
        "hash length is {found} (header offset 23), a filter has {MIN_HASH_LENGTH} to {MAX_HASH_LENGTH}; fetch the file again"
    )]
    HashLengthOutOfRange {
        /// `L` in the header.
        found: u8,
    },
    /// The file cannot be read or written.
    #[error("{}", explain(.0))]
    Io(#[from] io::Error),
    /// No parameters of the format satisfy the request.
    #[error(
        "no filter has {entries} entries at a false-positive rate of {rate}: entries must be at least 1, the rate between 0 and 1"
    )]
    NoParameters {
        /// Requested number of entries.
        entries: u64,
        /// Requested false-positive rate.
        rate: f64,
    },
    /// The bit field does not fit into memory.
    #[error(
        "cannot allocate {} for the bit field; give the process more memory, or use a smaller filter",
        FileSize(*bytes)
    )]
    OutOfMemory {
        /// Size of the bit field, in bytes.
        bytes: u64,
    },
    /// The file is larger than the configured maximum.
    #[error(
        "the file is {} long, max_size allows {}; raise max_size, or give the path of a filter",
        FileSize(*found),
        FileSize(*allowed)
    )]
    TooLarge {
        /// Size of the file, in bytes.
        found: u64,
        /// The maximum, in bytes.
        allowed: u64,
    },
    /// The file ends within the header.
    #[error(
        "the file is {found} bytes long, the header alone has {HEADER_SIZE}; fetch the file again"
    )]
    TooShort {
        /// Size of the file, in bytes.
        found: u64,
    },
    /// The length of the file does not match its header.
    #[error(
        "the file is {found} bytes long, its header (hash length {hash_length}) requires {expected}; fetch the file again"
    )]
    WrongLength {
        /// Size of the file, in bytes.
        found: u64,
        /// Size that the header requires, in bytes.
        expected: u64,
        /// `L` in the header.
        hash_length: u8,
    },
}

/// Why a checksum file has no checksum for its filter.
#[derive(Debug, thiserror::Error)]
pub enum ChecksumFileError {
    /// The path is a symbolic link that leads to no file.
    #[error("it is a link to a missing file")]
    Dangling,
    /// The file has no line.
    #[error("it is empty")]
    Empty,
    /// The file cannot be read.
    #[error("{}", explain(.0))]
    Io(#[from] io::Error),
    /// The line for the filter has no SHA-256 in hex.
    #[error("it does not have the 64 hex digits of a SHA-256")]
    NoDigest,
    /// The file has several lines, and none is for the filter.
    #[error("none of its {lines} lines names the filter")]
    NotListed {
        /// Number of lines.
        lines: usize,
    },
}

//! Why a filter cannot be used: what was found where, and what to do.

use std::path::PathBuf;

use super::{HEADER_SIZE, MAX_HASH_LENGTH, MIN_HASH_LENGTH};

/// Why a file is not a usable filter.
#[derive(Debug, thiserror::Error)]
pub enum FilterError {
    /// The file does not begin as a filter does.
    #[error("not a pkbfv1 filter: the file begins with {found}, expected \"pkbfv1\"")]
    BadMarker {
        /// The first bytes, escaped.
        found: String,
    },
    /// The file was written to while it was read, or is locked by its writer.
    #[error("the file is being written to; it is read again when the writer is done")]
    BeingWritten,
    /// The file is not the one that the checksum beside it speaks of.
    #[error(
        "its SHA-256 is {found}, {} says {expected}: one of the two is damaged or not the newest; fetch both again",
        sidecar.display()
    )]
    Checksum {
        /// The file with the checksum.
        sidecar: PathBuf,
        /// The checksum in it, in hex.
        expected: String,
        /// That of the filter, in hex.
        found: String,
    },
    /// The file that should hold its checksum holds none.
    #[error(
        "{}: {problem}; write it with sha256sum, or remove it to go without a checksum",
        sidecar.display()
    )]
    ChecksumFile {
        /// The file with the checksum.
        sidecar: PathBuf,
        /// What is wrong with it.
        problem: String,
    },
    /// `k` is 0: every key would be a hit.
    #[error("hash count is 0 (header offset 22), at least 1 is needed")]
    HashCountZero,
    /// `L` is not a size that a filter can have.
    #[error(
        "hash length is {found} (header offset 23), a filter has {MIN_HASH_LENGTH} to {MAX_HASH_LENGTH}"
    )]
    HashLengthOutOfRange {
        /// What the header says.
        found: u8,
    },
    /// The file could not be read or written.
    #[error("{0}")]
    Io(#[from] std::io::Error),
    /// No parameters of the format give what was asked for.
    #[error(
        "no filter has {entries} entries at a false-positive rate of {rate}: entries must be at least 1, the rate between 0 and 1"
    )]
    NoParameters {
        /// Entries asked for.
        entries: u64,
        /// Rate asked for.
        rate: f64,
    },
    /// The bit field does not fit into memory.
    #[error("cannot allocate {bytes} bytes for the bit field")]
    OutOfMemory {
        /// Bytes asked for.
        bytes: u64,
    },
    /// The file is larger than the operator allows.
    #[error("the file is {found} bytes long, max_size allows {allowed}")]
    TooLarge {
        /// Size of the file in bytes.
        found: u64,
        /// The limit in bytes.
        allowed: u64,
    },
    /// The file ends within the header.
    #[error("the file is {found} bytes long, the header alone has {HEADER_SIZE}")]
    TooShort {
        /// Size of the file in bytes.
        found: u64,
    },
    /// The file's length is not what its header says.
    #[error(
        "the file is {found} bytes long, its header (hash length {hash_length}) says {expected}"
    )]
    WrongLength {
        /// Size of the file in bytes.
        found: u64,
        /// Size that the header asks for, in bytes.
        expected: u64,
        /// `L` in the header.
        hash_length: u8,
    },
}

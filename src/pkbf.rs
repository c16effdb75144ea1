//! The `pkbfv1` filter: which public keys are probably compromised.
//!
//! A [`Filter`] that has been read is only asked; replacing it is the business of
//! [`crate::snapshot`]. Nothing here knows about TLS or policy. It answers exactly for the bytes
//! it is given, as the reference implementation does: other encodings of the same key are the
//! business of [`crate::spki`]. Format: <https://pwnedkeys.com/filter.html>
//!
//! ```
//! use keygate::pkbf::{Filter, Parameters};
//!
//! let mut filter = Filter::new(Parameters::for_entries(1000, 0.01)?)?;
//! filter.insert(b"the DER of a SubjectPublicKeyInfo");
//! assert!(filter.contains(b"the DER of a SubjectPublicKeyInfo"));
//! assert!(!filter.contains(b"the DER of another one"));
//! # Ok::<(), keygate::pkbf::FilterError>(())
//! ```

mod file;
mod header;
mod sizing;

use smallvec::SmallVec;
use xxhash_rust::xxh64::xxh64;

pub use file::{FileStamp, FilterFile, read, write_atomically};
pub use header::{HEADER_SIZE, Header, MARKER, MAX_HASH_LENGTH, MIN_HASH_LENGTH};
pub use sizing::{Parameters, Plausibility};

/// A `pkbfv1` filter in memory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Filter {
    header: Header,
    /// The bit field, `2^L / 8` bytes. Bit 0 of a byte is its most significant bit.
    bits: Vec<u8>,
    set_bits: u64,
}

impl Filter {
    /// An empty filter: revision 0, no entries, no bit set.
    ///
    /// # Errors
    /// A parameter out of range, or a bit field that does not fit into memory.
    pub fn new(parameters: Parameters) -> Result<Self, FilterError> {
        let header = Header::empty(parameters)?;
        let mut bits = allocate(header.data_size())?;
        bits.resize(data_size_in_memory(header.data_size())?, 0);
        Ok(Self { header, bits, set_bits: 0 })
    }

    /// Reads a whole file that is in memory already.
    ///
    /// # Errors
    /// Too short, not `pkbfv1`, a parameter out of range, or data that is not `2^L / 8` bytes long.
    pub fn parse(file: &[u8]) -> Result<Self, FilterError> {
        let (header, data) = Header::parse(file)?;
        let mut bits = allocate(header.data_size())?;
        bits.extend_from_slice(data);
        let set_bits = count_ones(&bits);
        Ok(Self { header, bits, set_bits })
    }

    /// Whether the key with this SubjectPublicKeyInfo (DER) is probably in the set; `false` is
    /// certain.
    #[must_use]
    pub fn contains(&self, spki: &[u8]) -> bool {
        self.contains_hash(KeyHash::of(spki))
    }

    /// [`Filter::contains`] for a key that has been hashed already: several filters share one hash.
    #[must_use]
    pub fn contains_hash(&self, hash: KeyHash) -> bool {
        self.positions(hash).all(|position| self.is_set(position))
    }

    /// The place of the first of `hashes` that is probably in the set.
    ///
    /// The first bits of all of them are read before any is looked at, so that in a filter larger
    /// than the caches their misses overlap instead of following one another.
    #[must_use]
    pub fn find(&self, hashes: &[KeyHash]) -> Option<usize> {
        let first_bits = |hash: &KeyHash| {
            self.positions(*hash).take(FIRST_BITS).fold(true, |set, at| set & self.is_set(at))
        };
        let candidates: SmallVec<[bool; 8]> = hashes.iter().map(first_bits).collect();
        candidates
            .iter()
            .zip(hashes)
            .position(|(candidate, hash)| *candidate && self.contains_hash(*hash))
    }

    fn is_set(&self, position: u64) -> bool {
        let (byte, mask) = locate(position);
        self.bits.get(byte).is_some_and(|bits| bits & mask != 0)
    }

    /// Adds the key with this SubjectPublicKeyInfo (DER). Returns whether it was new: like the
    /// reference implementation, an entry that tests positive already is not counted again.
    pub fn insert(&mut self, spki: &[u8]) -> bool {
        let mut newly_set = 0;
        for position in self.positions(KeyHash::of(spki)) {
            let (byte, mask) = locate(position);
            if let Some(bits) = self.bits.get_mut(byte)
                && *bits & mask == 0
            {
                *bits |= mask;
                newly_set += 1;
            }
        }
        self.set_bits += newly_set;
        if newly_set > 0 {
            self.header.entry_count = self.header.entry_count.saturating_add(1);
        }
        newly_set > 0
    }

    /// Marks the end of a run of additions: one revision more, changed at `updated_at` (seconds
    /// since the Unix epoch).
    pub fn stamp(&mut self, updated_at: u64) {
        self.header.revision = self.header.revision.saturating_add(1);
        self.header.updated_at = updated_at;
    }

    /// The header, as it is or would be in the file.
    #[must_use]
    pub fn header(&self) -> &Header {
        &self.header
    }

    /// How many bits of the bit field are set.
    #[must_use]
    pub fn set_bits(&self) -> u64 {
        self.set_bits
    }

    /// The share of the bit field that is set, 0 to 1.
    #[must_use]
    pub fn fill_ratio(&self) -> f64 {
        sizing::ratio(self.set_bits, self.header.bit_count())
    }

    /// The probability that a key which was never added tests positive, by the header's numbers.
    #[must_use]
    pub fn false_positive_ratio(&self) -> f64 {
        self.header.parameters().false_positive_ratio(self.header.entry_count.into())
    }

    /// Whether the header's numbers can explain the bits that are set.
    #[must_use]
    pub fn plausibility(&self) -> Plausibility {
        Plausibility::of(&self.header, self.set_bits)
    }

    /// The whole file: header, then bit field.
    pub fn to_parts(&self) -> ([u8; HEADER_SIZE], &[u8]) {
        (self.header.to_bytes(), &self.bits)
    }

    /// The `k` bit positions of a key, in the order of the format's formula
    /// `f_i = h1 + i·h2 + (i³ − i)/6 mod 2^L`, computed by its differences.
    fn positions(&self, KeyHash { h1, h2 }: KeyHash) -> impl Iterator<Item = u64> + use<> {
        let mask = self.header.bit_count() - 1;
        let mut position = h1;
        let mut step = h2;
        (1..=u64::from(self.header.hash_count)).map(move |next| {
            let current = position & mask;
            position = position.wrapping_add(step);
            step = step.wrapping_add(next);
            current
        })
    }
}

/// The two hashes of a key from which a filter of any size derives its bit positions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KeyHash {
    /// XXH64 with seed 0.
    h1: u64,
    /// XXH64 with seed 1, made odd.
    h2: u64,
}

impl KeyHash {
    /// The hash of a SubjectPublicKeyInfo (DER).
    #[must_use]
    pub fn of(spki: &[u8]) -> Self {
        Self { h1: xxh64(spki, 0), h2: xxh64(spki, 1) | 1 }
    }
}

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

/// How many bits of each key [`Filter::find`] reads at once: in a filter that is half full, one key
/// in sixteen passes them by chance.
const FIRST_BITS: usize = 4;

fn locate(position: u64) -> (usize, u8) {
    // A position that usize cannot hold belongs to a filter that memory cannot hold.
    let byte = usize::try_from(position >> 3).unwrap_or(usize::MAX);
    (byte, 0x80 >> (position & 7))
}

fn data_size_in_memory(bytes: u64) -> Result<usize, FilterError> {
    usize::try_from(bytes).map_err(|_| FilterError::OutOfMemory { bytes })
}

/// An empty vector with room for exactly the bit field.
fn allocate(bytes: u64) -> Result<Vec<u8>, FilterError> {
    let mut bits = Vec::new();
    bits.try_reserve_exact(data_size_in_memory(bytes)?)
        .map_err(|_| FilterError::OutOfMemory { bytes })?;
    Ok(bits)
}

fn count_ones(bytes: &[u8]) -> u64 {
    let (words, rest) = bytes.as_chunks::<8>();
    let in_words: u64 =
        words.iter().map(|word| u64::from(u64::from_ne_bytes(*word).count_ones())).sum();
    in_words + rest.iter().map(|byte| u64::from(byte.count_ones())).sum::<u64>()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn small() -> Filter {
        Filter::new(Parameters::new(3, 14).unwrap()).unwrap()
    }

    #[test]
    fn a_new_filter_contains_nothing_and_counts_nothing() {
        let filter = small();
        assert!(!filter.contains(b"key"));
        assert_eq!((filter.set_bits(), filter.header().entry_count), (0, 0));
        assert_eq!(filter.to_parts().1.len(), 1 << 11);
    }

    #[test]
    fn an_entry_counts_once_and_the_file_parses_to_the_same_filter() {
        let mut filter = small();
        assert!(filter.insert(b"key"));
        assert!(!filter.insert(b"key"));
        filter.stamp(1_700_000_000);
        assert_eq!(filter.header().entry_count, 1);
        assert_eq!(filter.header().revision, 1);

        let (header, bits) = filter.to_parts();
        let parsed = Filter::parse(&[&header[..], bits].concat()).unwrap();
        assert_eq!(parsed, filter);
        assert!(parsed.contains(b"key"));
    }

    #[test]
    fn bit_zero_of_a_byte_is_its_most_significant_bit() {
        assert_eq!(locate(0), (0, 0x80));
        assert_eq!(locate(7), (0, 0x01));
        assert_eq!(locate(8), (1, 0x80));
    }

    #[test]
    fn ones_are_counted_across_the_word_boundary() {
        assert_eq!(count_ones(&[0xff; 9]), 72);
        assert_eq!(count_ones(&[]), 0);
    }
}

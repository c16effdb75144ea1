//! The `pkbfv1` filter: which public keys are probably compromised.
//!
//! A lookup covers exactly the bytes it is given, as in the reference implementation.
//! [`crate::spki`] derives the other encodings of a key. A running proxy replaces filters as a
//! whole. Nothing here depends on TLS or on a policy. Format: <https://pwnedkeys.com/filter.html>
//!
//! A filter is built in memory and written as one file:
//!
//! ```
//! use keygate_core::pkbf::{self, Filter, Overwrite, Parameters};
//! # let directory = tempfile::tempdir()?;
//! # let path = directory.path().join("lost.pkbf");
//!
//! let mut filter = Filter::new(Parameters::for_entries(1000, 0.01)?)?;
//! filter.insert(b"the DER of a SubjectPublicKeyInfo");
//! filter.stamp(1_790_000_000);
//! pkbf::create(&filter, &path, Overwrite::Never)?;
//!
//! let file = pkbf::read(&path, 1 << 20)?; // at most 1 MiB
//! assert!(file.filter.contains(b"the DER of a SubjectPublicKeyInfo"));
//! assert!(!file.filter.contains(b"the DER of another one"));
//! assert!(file.filter.plausibility().is_plausible());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! A file that other processes read is changed under its lock and replaced as a whole:
//!
//! ```
//! use keygate_core::pkbf::{self, FilterUpdate};
//! # use keygate_core::pkbf::{Filter, Overwrite, Parameters};
//! # let directory = tempfile::tempdir()?;
//! # let path = directory.path().join("lost.pkbf");
//! # pkbf::create(&Filter::new(Parameters::new(20, 16)?)?, &path, Overwrite::Never)?;
//!
//! let mut update = FilterUpdate::begin(&path)?;
//! update.filter.insert(b"another SubjectPublicKeyInfo");
//! update.filter.stamp(1_790_000_060);
//! update.commit()?;
//! assert_eq!(pkbf::read(&path, 1 << 20)?.filter.header().entry_count, 1);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod bits;
mod checksum;
mod error;
mod file;
mod header;
mod plausibility;
mod sizing;
mod sparse;
mod summary;
mod update;

use aws_lc_rs::digest;
use xxhash_rust::xxh64::xxh64;

pub use checksum::{check_sidecar, sidecar_of};
pub use error::{ChecksumFileError, FilterError};
pub use file::{FileStamp, FilterFile, read, read_unlocked};
pub use header::{HEADER_SIZE, Header, MARKER, MAX_HASH_LENGTH, MIN_HASH_LENGTH};
pub use plausibility::Plausibility;
pub use sizing::Parameters;
pub use sparse::{MissingBits, open_sparse};
pub use summary::FilterSummary;
pub use update::{FilterUpdate, Overwrite, create};

use self::bits::{Bits, count_ones};

/// A `pkbfv1` filter in memory.
#[derive(Debug, PartialEq, Eq)]
pub struct Filter {
    header: Header,
    bits: Bits,
    set_bits: u64,
}

impl Filter {
    /// An empty filter: revision 0, no entries, no bit set.
    ///
    /// # Errors
    /// Returns an error if a parameter is out of range or the bit field does not fit into memory.
    pub fn new(parameters: Parameters) -> Result<Self, FilterError> {
        let header = Header::empty(parameters)?;
        Ok(Self { header, bits: Bits::zeroed(header.data_size())?, set_bits: 0 })
    }

    /// Parses the content of a filter file.
    ///
    /// # Errors
    /// Returns an error if `file` is too short, is not `pkbfv1`, has a parameter out of range, or
    /// has data that is not `2^L / 8` bytes long.
    pub fn parse(file: &[u8]) -> Result<Self, FilterError> {
        let (header, data) = Header::parse(file)?;
        let mut bits = Bits::zeroed(header.data_size())?;
        bits.copy_from_slice(data); // `Header::parse` checked the length of `data`
        let set_bits = count_ones(&bits);
        Ok(Self { header, bits, set_bits })
    }

    /// Whether the key with this SubjectPublicKeyInfo (DER) is probably in the filter. There are no
    /// false negatives.
    #[must_use]
    pub fn contains(&self, spki: &[u8]) -> bool {
        self.contains_hash(KeyHash::from_spki(spki))
    }

    /// [`Filter::contains`] for a key that is already hashed. Several filters can share one hash.
    #[must_use]
    pub fn contains_hash(&self, hash: KeyHash) -> bool {
        self.positions(hash).all(|position| self.is_set(position))
    }

    /// Whether the first bits of the key are set. They are all read before one is tested, so that
    /// the cache misses overlap with each other and with the work that follows the call.
    #[must_use]
    pub fn may_contain(&self, hash: KeyHash) -> bool {
        self.positions(hash).take(FIRST_BITS).fold(true, |set, at| set & self.is_set(at))
    }

    fn is_set(&self, position: u64) -> bool {
        let (byte, mask) = locate(position);
        self.bits.get(byte).is_some_and(|bits| bits & mask != 0)
    }

    /// Adds the key with this SubjectPublicKeyInfo (DER). Returns whether the key was new. Like the
    /// reference implementation, a key that already tests positive is not counted again.
    pub fn insert(&mut self, spki: &[u8]) -> bool {
        let mut newly_set = 0;
        for position in self.positions(KeyHash::from_spki(spki)) {
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

    /// Completes a run of additions: increments the revision and sets the time of the last change,
    /// in seconds since the Unix epoch.
    pub fn stamp(&mut self, updated_at: u64) {
        self.stamp_as(self.header.revision.saturating_add(1), updated_at);
    }

    /// [`Filter::stamp`] with a revision that the publisher of the filter chooses.
    pub fn stamp_as(&mut self, revision: u32, updated_at: u64) {
        self.header.revision = revision;
        self.header.updated_at = updated_at;
    }

    /// The header of the file.
    #[must_use]
    pub fn header(&self) -> &Header {
        &self.header
    }

    /// The number of bits that are set.
    #[must_use]
    pub fn set_bits(&self) -> u64 {
        self.set_bits
    }

    /// The fraction of the bits that are set, 0 to 1.
    #[must_use]
    pub fn fill_ratio(&self) -> f64 {
        sizing::ratio(self.set_bits, self.header.bit_count())
    }

    /// The probability that a key that was never added tests positive, calculated from the header.
    #[must_use]
    pub fn false_positive_ratio(&self) -> f64 {
        Parameters::from_header(&self.header).false_positive_ratio(self.header.entry_count.into())
    }

    /// An upper bound of the false-positive rate that chance can produce with this header. It is
    /// far above [`Filter::false_positive_ratio`] only in filters of a few bits.
    #[must_use]
    pub fn false_positive_bound(&self) -> f64 {
        plausibility::false_positive_bound(&self.header)
    }

    /// Whether the header explains the number of bits that are set.
    #[must_use]
    pub fn plausibility(&self) -> Plausibility {
        Plausibility::new(&self.header, self.set_bits)
    }

    /// The number of entries: the header's if it explains the bits, else the smallest number
    /// that sets as many bits.
    #[must_use]
    pub fn explained_entries(&self) -> u64 {
        if self.plausibility().is_plausible() {
            self.header.entry_count.into()
        } else {
            self.set_bits.div_ceil(u64::from(self.header.hash_count).max(1))
        }
    }

    /// The number of bits that are set in one filter only: in `self`, then in `other`. `None` if
    /// the filters differ in size.
    #[must_use]
    pub fn difference(&self, other: &Self) -> Option<(u64, u64)> {
        (self.bits.len() == other.bits.len()).then(|| {
            let pairs = self.bits.iter().zip(other.bits.iter());
            pairs.fold((0, 0), |(left, right), (a, b)| {
                (left + u64::from((a & !b).count_ones()), right + u64::from((b & !a).count_ones()))
            })
        })
    }

    /// SHA-256 of the whole file: header, then bit field.
    #[must_use]
    pub fn sha256(&self) -> [u8; 32] {
        let (header, bits) = self.to_parts();
        let mut context = digest::Context::new(&digest::SHA256);
        context.update(&header);
        context.update(bits);
        context.finish().as_ref().first_chunk().copied().unwrap_or_default() // a SHA-256 has 32 bytes
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

/// The two hashes of a key. A filter of any size derives its bit positions from them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct KeyHash {
    /// XXH64 with seed 0.
    h1: u64,
    /// XXH64 with seed 1, made odd.
    h2: u64,
}

impl KeyHash {
    /// The hash of a SubjectPublicKeyInfo (DER).
    #[must_use]
    pub fn from_spki(spki: &[u8]) -> Self {
        Self { h1: xxh64(spki, 0), h2: xxh64(spki, 1) | 1 }
    }
}

/// Number of bits of each key that [`Filter::may_contain`] reads. In a filter that is half full,
/// one key in sixteen has them all set by chance.
const FIRST_BITS: usize = 4;

fn locate(position: u64) -> (usize, u8) {
    // A filter with a position beyond usize does not fit into memory.
    let byte = usize::try_from(position >> 3).unwrap_or(usize::MAX);
    (byte, 0x80 >> (position & 7))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn small() -> Filter {
        Filter::new(Parameters::new(3, 14).unwrap()).unwrap()
    }

    #[test]
    fn a_new_filter_is_empty() {
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
    fn the_difference_is_counted_in_both_directions() {
        let (mut one, mut other) = (small(), small());
        one.insert(b"a");
        other.insert(b"a");
        assert_eq!(one.difference(&other), Some((0, 0)));
        other.insert(b"b");
        let more = other.set_bits() - one.set_bits();
        assert_eq!(one.difference(&other), Some((0, more)));
        assert_eq!(other.difference(&one), Some((more, 0)));
        let larger = Filter::new(Parameters::new(3, 15).unwrap()).unwrap();
        assert_eq!(one.difference(&larger), None);
    }
}

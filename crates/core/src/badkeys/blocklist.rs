//! The records of a blocklist, and the look-up in them.

use std::cmp::Ordering;
use std::fmt;

use aws_lc_rs::digest::{SHA256, digest};

/// Size of a record, in bytes.
pub const RECORD_SIZE: usize = HASH_SIZE + 1;

/// Size of the hash of a record, in bytes: the start of a SHA-256.
const HASH_SIZE: usize = 15;

/// The first bytes of an xz file.
pub const XZ_MAGIC: &[u8] = b"\xfd7zXZ\0";

/// Number of records of a bucket, log2, if the hashes are as evenly spread as SHA-256 digests. A
/// bucket of 16 records is 256 bytes.
const BUCKET_BITS: u32 = 4;

/// Maximum number of buckets, log2. The index takes 4 bytes for each: 64 MiB.
const MAX_INDEX_BITS: u32 = 24;

/// A sorted list of keys, each with the number of the collection that it was found in.
///
/// The file stays in memory as it was read, with an index over the first bits of the hashes: 16
/// bytes a record, and a quarter of a byte for the index. A look-up searches one bucket, and
/// allocates nothing. In a file whose hashes are not evenly spread, a bucket may hold every record;
/// the binary search then takes up to 32 steps.
#[derive(Clone, PartialEq, Eq)]
pub struct Blocklist {
    /// Whole records, ascending by hash. No two have the same hash.
    content: Vec<u8>,
    /// Number of the first record of each bucket; the last entry is the number of records.
    starts: Box<[u32]>,
    /// Number of first bits of a hash that select its bucket.
    index_bits: u32,
}

/// Why a file is not a usable blocklist.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum BlocklistError {
    /// The file is not unpacked.
    #[error("it is compressed with {0}: unpack it with `{0} -d`")]
    Compressed(&'static str),
    /// The file has no record.
    #[error("it is empty, and a blocklist has at least one record: fetch it again")]
    Empty,
    /// The size is no multiple of a record's.
    #[error(
        "its size is {found} bytes, which is not a multiple of 16: it is truncated, or no blocklist.dat; fetch it again"
    )]
    Length {
        /// The size, in bytes.
        found: usize,
    },
    /// The file has more records than an index can count.
    #[error("it has {found} records, and the maximum is {}: split it into several lists", u32::MAX)]
    TooMany {
        /// Number of records.
        found: usize,
    },
    /// A record is not in its place, or has the hash of the record before it.
    #[error(
        "record {record} (offset {offset}) does not sort after the record before it: it is no blocklist.dat, or it is damaged; fetch it again"
    )]
    Unsorted {
        /// Number of the record, counted from 0.
        record: usize,
        /// Offset of the record, in bytes.
        offset: usize,
    },
}

/// A record of a blocklist.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Record([u8; RECORD_SIZE]);

impl Record {
    /// The first 15 bytes of the SHA-256 of the number of a key.
    #[must_use]
    pub fn hash(&self) -> &[u8] {
        self.0.split_last().map(|(_, hash)| hash).unwrap_or_default()
    }

    /// The number of the collection.
    #[must_use]
    pub fn id(&self) -> u8 {
        let [.., id] = self.0;
        id
    }
}

impl Blocklist {
    /// Checks `content`, the whole file, and builds the index.
    ///
    /// # Errors
    /// Returns an error if the size is not a multiple of 16 or 0, or if the records are not
    /// strictly ascending by hash.
    pub fn parse(content: Vec<u8>) -> Result<Self, BlocklistError> {
        for (magic, program) in [(XZ_MAGIC, "xz"), (&b"\x1f\x8b\x08"[..], "gzip")] {
            if content.starts_with(magic) {
                return Err(BlocklistError::Compressed(program));
            }
        }
        let (records, rest) = content.as_chunks::<RECORD_SIZE>();
        if !rest.is_empty() {
            return Err(BlocklistError::Length { found: content.len() });
        }
        if records.is_empty() {
            return Err(BlocklistError::Empty);
        }
        let too_many = |_| BlocklistError::TooMany { found: records.len() };
        let count = u32::try_from(records.len()).map_err(too_many)?;
        let index_bits = count.ilog2().saturating_sub(BUCKET_BITS).min(MAX_INDEX_BITS);
        let mut starts = Vec::with_capacity((1 << index_bits) + 1);
        let mut before: Option<u128> = None;
        for (number, record) in (0..count).zip(records) {
            let hash = hash_of(record);
            match before {
                Some(before) if before >= hash => {
                    let record = usize::try_from(number).unwrap_or(usize::MAX);
                    let offset = record.saturating_mul(RECORD_SIZE);
                    return Err(BlocklistError::Unsorted { record, offset });
                }
                Some(_) | None => before = Some(hash),
            }
            let bucket = bucket_of(record, index_bits);
            // The buckets that end in front of this record, and its own.
            while starts.len() <= bucket {
                starts.push(number);
            }
        }
        starts.resize((1 << index_bits) + 1, count);
        Ok(Self { content, starts: starts.into(), index_bits })
    }

    /// The number of the collection that has the key whose number has this SHA-256; `None` if the
    /// key is not on the list.
    #[must_use]
    pub fn find(&self, sha256: &[u8; 32]) -> Option<u8> {
        let record: &[u8; RECORD_SIZE] = sha256.first_chunk()?;
        let bucket = bucket_of(record, self.index_bits);
        let start = usize::try_from(*self.starts.get(bucket)?).ok()?;
        let end = usize::try_from(*self.starts.get(bucket + 1)?).ok()?;
        let bucket = self.records().get(start..end)?;
        let hash = hash_of(record);
        let found = bucket.binary_search_by_key(&hash, hash_of).ok()?;
        bucket.get(found).map(|[.., id]| *id)
    }

    /// Number of records.
    #[must_use]
    pub fn len(&self) -> usize {
        self.records().len()
    }

    /// Whether there is no record, which no list has.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.content.is_empty()
    }

    /// The records, ascending by hash.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = Record> {
        self.records().iter().copied().map(Record)
    }

    /// The number of records whose hash only this list has, and the number of those whose hash only
    /// `other` has.
    #[must_use]
    pub fn difference(&self, other: &Self) -> (usize, usize) {
        let (mut ours, mut others) = (self.records(), other.records());
        let mut common = 0;
        while let ([our, our_rest @ ..], [their, their_rest @ ..]) = (ours, others) {
            match hash_of(our).cmp(&hash_of(their)) {
                Ordering::Less => ours = our_rest,
                Ordering::Equal => {
                    common += 1;
                    (ours, others) = (our_rest, their_rest);
                }
                Ordering::Greater => others = their_rest,
            }
        }
        (self.len() - common, other.len() - common)
    }

    /// The file as it was read.
    #[must_use]
    pub fn content(&self) -> &[u8] {
        &self.content
    }

    /// SHA-256 of the file.
    #[must_use]
    pub fn sha256(&self) -> [u8; 32] {
        digest(&SHA256, &self.content).as_ref().try_into().unwrap_or_default()
    }

    fn records(&self) -> &[[u8; RECORD_SIZE]] {
        self.content.as_chunks().0
    }
}

impl fmt::Debug for Blocklist {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (records, index_bits) = (self.len(), self.index_bits);
        formatter
            .debug_struct("Blocklist")
            .field("records", &records)
            .field("index_bits", &index_bits)
            .finish_non_exhaustive()
    }
}

/// The hash of a record as a number, which sorts like its bytes.
fn hash_of(record: &[u8; RECORD_SIZE]) -> u128 {
    u128::from_be_bytes(*record) >> 8
}

/// The bucket of a hash: its first `index_bits` bits.
fn bucket_of(record: &[u8; RECORD_SIZE], index_bits: u32) -> usize {
    let [first, second, third, fourth, ..] = *record;
    let start = u64::from(u32::from_be_bytes([first, second, third, fourth]));
    usize::try_from(start >> (32 - index_bits)).unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    fn sha256(key: u64) -> [u8; 32] {
        digest(&SHA256, &key.to_be_bytes()).as_ref().try_into().unwrap()
    }

    /// A file with `keys`, each in the collection of its last byte.
    fn file(keys: impl Iterator<Item = u64>) -> Vec<u8> {
        let records: BTreeMap<_, _> = keys
            .map(|key| (*sha256(key).first_chunk::<HASH_SIZE>().unwrap(), key.to_be_bytes()[7]))
            .collect();
        records.into_iter().flat_map(|(hash, id)| [&hash[..], &[id]].concat()).collect()
    }

    #[test]
    fn every_key_of_a_list_of_any_length_is_found_and_no_other() {
        for count in [1, 2, 15, 16, 17, 31, 32, 33, 1000, 20_000] {
            let list = Blocklist::parse(file(0..count)).unwrap();
            assert_eq!(list.len() as u64, count);
            assert_eq!(list.iter().len() as u64, count);
            for key in 0..count {
                assert_eq!(list.find(&sha256(key)), Some(key.to_be_bytes()[7]), "{key}");
            }
            assert!((count..count + 1000).all(|key| list.find(&sha256(key)).is_none()));
        }
    }

    #[test]
    fn hashes_that_are_not_evenly_spread_are_found() {
        let hash = |start: &[u8]| {
            let mut sha256 = [0; 32];
            sha256[..start.len()].copy_from_slice(start);
            sha256
        };
        let mut starts: Vec<_> = (0..=255_u8).map(|byte| [0, 0, 0, 0, byte]).collect();
        starts.extend((0..=255).map(|byte| [0xff, 0xff, 0xff, 0xff, byte]));
        let record = |start: &[u8; 5]| [&hash(start)[..HASH_SIZE], &[start[4]]].concat();
        let content: Vec<u8> = starts.iter().flat_map(record).collect();
        let list = Blocklist::parse(content).unwrap();
        for start in &starts {
            assert_eq!(list.find(&hash(start)), Some(start[4]));
        }
        assert_eq!(list.find(&hash(&[0, 0, 0, 1])), None);
        assert_eq!(list.find(&hash(&[0x80])), None);
        let mut last = [0xff; 32];
        assert_eq!(list.find(&last), None);
        last[..HASH_SIZE].copy_from_slice(&hash(&starts[511])[..HASH_SIZE]);
        assert_eq!(list.find(&last), Some(255), "the bytes after the hash do not count");
    }

    #[test]
    fn the_error_names_the_place_of_what_is_wrong() {
        let good = file(0..100);
        let problem = |content: &[u8]| Blocklist::parse(content.to_vec()).unwrap_err().to_string();
        assert!(problem(b"").contains("it is empty"));
        for length in (1..good.len()).filter(|length| length % RECORD_SIZE != 0) {
            let text = problem(&good[..length]);
            assert!(
                text.contains(&format!("its size is {length} bytes, which is not a")),
                "{text}"
            );
        }
        for length in (RECORD_SIZE..good.len()).step_by(RECORD_SIZE) {
            assert!(Blocklist::parse(good[..length].to_vec()).is_ok(), "a shorter list");
        }
        let swap = |one: usize, other: usize| {
            let mut records = good.as_chunks::<RECORD_SIZE>().0.to_vec();
            records.swap(one, other);
            problem(records.as_flattened())
        };
        assert!(swap(41, 42).contains("record 42 (offset 672) does not sort after"));
        assert!(swap(0, 99).contains("record 1 (offset 16) does not sort after"));
        let repeated = |id: u8| {
            let mut twice = good[..RECORD_SIZE].to_vec();
            twice.extend_from_slice(&good);
            twice[RECORD_SIZE - 1] = id;
            problem(&twice)
        };
        for id in [0, 255, good[RECORD_SIZE - 1]] {
            assert!(repeated(id).contains("record 1 (offset 16) does not sort after"));
        }
        assert!(problem(b"\xfd7zXZ\0\0\x04").contains("unpack it with `xz -d`"));
        assert!(problem(b"\x1f\x8b\x08\0\0\0").contains("unpack it with `gzip -d`"));
    }

    #[test]
    fn the_difference_counts_the_records_of_one_list_only() {
        let list = |keys| Blocklist::parse(file(keys)).unwrap();
        let (one, other) = (list(0..100), list(70..300));
        assert_eq!(one.difference(&other), (70, 200));
        assert_eq!(other.difference(&one), (200, 70));
        assert_eq!(one.difference(&one), (0, 0));
        assert_eq!(one.difference(&list(100..101)), (100, 1));
    }

    #[test]
    fn the_sha256_is_that_of_the_file() {
        let content = file(0..3);
        let list = Blocklist::parse(content.clone()).unwrap();
        assert_eq!(list.sha256()[..], *digest(&SHA256, &content).as_ref());
        assert_eq!(list.content(), content);
        assert_eq!(format!("{list:?}"), "Blocklist { records: 3, index_bits: 0, .. }");
    }
}

//! The header of a filter file: 24 bytes before the bit field, checked before use.

use super::{FilterError, Parameters};

/// The first bytes of a filter file.
pub const MARKER: [u8; 6] = *b"pkbfv1";
/// Size of the header, in bytes.
pub const HEADER_SIZE: usize = 24;
/// Minimum of `L`: one byte of bits.
pub const MIN_HASH_LENGTH: u8 = 3;
/// Maximum of `L`, so that the length of the file fits into 64 bits.
pub const MAX_HASH_LENGTH: u8 = 63;

/// The 24-byte header of a `pkbfv1` file. Integers are big-endian.
///
/// Source: <https://pwnedkeys.com/filter.html>, "File Header".
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Header {
    /// Revision that the publisher sets to order updates.
    pub revision: u32,
    /// Time of the last change to the filter data, in seconds since the Unix epoch; 0 if there was
    /// none.
    pub updated_at: u64,
    /// Number of entries added. A key that already tested positive is not counted again.
    pub entry_count: u32,
    /// `k`, the number of bits set for each entry; at least 1.
    pub hash_count: u8,
    /// `L`, log2 of the filter size in bits: [`MIN_HASH_LENGTH`] to [`MAX_HASH_LENGTH`].
    pub hash_length: u8,
}

impl Header {
    /// The header of an empty filter.
    ///
    /// # Errors
    /// Returns an error if a parameter is out of range.
    pub fn empty(parameters: Parameters) -> Result<Self, FilterError> {
        let header = Self {
            revision: 0,
            updated_at: 0,
            entry_count: 0,
            hash_count: parameters.hash_count(),
            hash_length: parameters.hash_length(),
        };
        header.check_ranges()?;
        Ok(header)
    }

    /// Splits `file` into its header and the filter data that follows.
    ///
    /// # Errors
    /// Returns an error if `file` is too short, is not `pkbfv1`, has a parameter out of range, or
    /// has data that is not `2^L / 8` bytes long.
    pub fn parse(file: &[u8]) -> Result<(Self, &[u8]), FilterError> {
        let found = u64::try_from(file.len()).unwrap_or(u64::MAX);
        let Some((header, data)) = file.split_first_chunk::<HEADER_SIZE>() else {
            return Err(too_short(file, found));
        };
        Ok((Self::from_bytes(header, found)?, data))
    }

    /// Reads the header of a file that is `file_size` bytes long.
    ///
    /// # Errors
    /// Returns an error if the marker is not `pkbfv1`, a parameter is out of range, or `file_size`
    /// does not match the parameters.
    pub fn from_bytes(bytes: &[u8; HEADER_SIZE], file_size: u64) -> Result<Self, FilterError> {
        let mut rest = bytes.as_slice();
        if take(&mut rest) != MARKER {
            return Err(bad_marker(bytes));
        }
        let header = Self {
            revision: u32::from_be_bytes(take(&mut rest)), // fields in file order
            updated_at: u64::from_be_bytes(take(&mut rest)),
            entry_count: u32::from_be_bytes(take(&mut rest)),
            hash_count: u8::from_be_bytes(take(&mut rest)),
            hash_length: u8::from_be_bytes(take(&mut rest)),
        };
        header.check_ranges()?;
        header.check_length(file_size)?;
        Ok(header)
    }

    /// The bytes of the header in the file.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; HEADER_SIZE] {
        let mut bytes = [0; HEADER_SIZE];
        let fields = MARKER
            .into_iter()
            .chain(self.revision.to_be_bytes())
            .chain(self.updated_at.to_be_bytes())
            .chain(self.entry_count.to_be_bytes())
            .chain([self.hash_count, self.hash_length]);
        bytes.iter_mut().zip(fields).for_each(|(byte, value)| *byte = value);
        bytes
    }

    /// `m`, the size of the bit field in bits.
    #[must_use]
    pub fn bit_count(&self) -> u64 {
        1 << self.hash_length
    }

    /// The size of the bit field in bytes.
    #[must_use]
    pub fn data_size(&self) -> u64 {
        self.bit_count() / 8
    }

    fn check_ranges(&self) -> Result<(), FilterError> {
        if self.hash_count == 0 {
            return Err(FilterError::HashCountZero);
        }
        if !(MIN_HASH_LENGTH..=MAX_HASH_LENGTH).contains(&self.hash_length) {
            return Err(FilterError::HashLengthOutOfRange { found: self.hash_length });
        }
        Ok(())
    }

    fn check_length(&self, found: u64) -> Result<(), FilterError> {
        let expected = self.data_size() + HEADER_SIZE as u64;
        if found != expected {
            return Err(FilterError::WrongLength {
                found,
                expected,
                hash_length: self.hash_length,
            });
        }
        Ok(())
    }
}

/// The error for a file that is shorter than a header. A wrong marker takes precedence over the
/// length, because it shows that the file has another format.
pub(super) fn too_short(file: &[u8], found: u64) -> FilterError {
    if file.iter().zip(MARKER).all(|(byte, expected)| *byte == expected) {
        FilterError::TooShort { found }
    } else {
        bad_marker(file)
    }
}

fn bad_marker(file: &[u8]) -> FilterError {
    let marker: Vec<u8> = file.iter().copied().take(MARKER.len()).collect();
    FilterError::BadMarker { found: format!("\"{}\"", marker.escape_ascii()) }
}

/// Takes the next `N` bytes of a header.
fn take<const N: usize>(rest: &mut &[u8]) -> [u8; N] {
    match rest.split_first_chunk::<N>() {
        Some((field, tail)) => {
            *rest = tail;
            *field
        }
        None => [0; N], // unreachable: the fields take exactly `HEADER_SIZE` bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(hash_count: u8, hash_length: u8, data: usize) -> Vec<u8> {
        let mut file = b"pkbfv1\0\0\0\x07\0\0\0\0\x65\x53\xf1\0\0\0\0\x05".to_vec();
        file.extend([hash_count, hash_length]);
        file.resize(file.len() + data, 0);
        file
    }

    #[test]
    fn fields_are_read_in_file_order_and_written_back() {
        let bytes = file(2, 4, 2);
        let (header, data) = Header::parse(&bytes).unwrap();
        assert_eq!(header.revision, 7);
        assert_eq!(header.updated_at, 0x6553_f100);
        assert_eq!(header.entry_count, 5);
        assert_eq!((header.hash_count, header.hash_length), (2, 4));
        assert_eq!(data.len(), 2);
        assert_eq!(header.to_bytes(), bytes[..HEADER_SIZE]);
    }

    #[test]
    fn an_error_names_the_parameter_that_is_out_of_range() {
        let error = |k, l, data| Header::parse(&file(k, l, data)).unwrap_err().to_string();
        assert!(error(0, 4, 2).contains("hash count is 0"));
        assert!(error(1, 2, 0).contains("hash length is 2"));
        assert!(error(1, 255, 0).contains("hash length is 255"));
        assert!(error(1, 64, 0).contains("hash length is 64"));
        assert!(error(1, 63, 0).contains("requires 1152921504606847000"));
        assert!(error(1, 4, 1).contains("25 bytes long, its header (hash length 4) requires 26"));
        assert!(error(1, 4, 3).contains("27 bytes long, its header (hash length 4) requires 26"));
    }

    #[test]
    fn every_truncation_is_an_error() {
        let whole = file(3, 6, 8);
        for length in 0..whole.len() {
            assert!(Header::parse(&whole[..length]).is_err(), "{length} bytes were accepted");
        }
        assert!(matches!(Header::parse(b"").unwrap_err(), FilterError::TooShort { found: 0 }));
        assert!(matches!(
            Header::parse(b"pkbfv1").unwrap_err(),
            FilterError::TooShort { found: 6 }
        ));
    }

    #[test]
    fn an_error_shows_the_wrong_marker() {
        let error = Header::parse(b"PK\x03\x04 and so on, a zip file").unwrap_err();
        assert!(error.to_string().contains(r#""PK\x03\x04 a""#), "{error}");
        assert!(matches!(Header::parse(b"PK").unwrap_err(), FilterError::BadMarker { .. }));
    }
}

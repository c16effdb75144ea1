//! Reads only those bits of a filter file that some keys need.
//!
//! A query of a few keys in a filter of 512 MiB then reads some hundred bytes.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use super::bits::Bits;
use super::file::{read_from, read_header, tolerate};
use super::{FileStamp, Filter, FilterError, HEADER_SIZE, KeyHash, checksum, locate};
use crate::regular_file;

/// Size of the largest bit field that is read as a whole at once, in bytes.
const MAX_WHOLE_SIZE: u64 = 1 << 20;
/// Bytes of the bit field for each byte that is read alone. After more reads, the whole file is
/// read, because that takes less time.
const BYTES_PER_READ: u64 = 4096;

/// The file of a [`Filter`] that lacks bits.
#[derive(Debug)]
pub struct MissingBits {
    /// The open file; `None` once the filter has all bits.
    file: Option<File>,
    path: PathBuf,
    /// Number of bytes that are read alone.
    reads_left: u64,
}

/// Opens the filter at `path`. [`MissingBits::fetch`] must be called for a key before it is looked
/// up in the filter. Number of set bits and plausibility are the same as for an empty filter.
///
/// A small filter is read as a whole. If there is a checksum file ([`super::sidecar_of`]), the
/// filter is read as a whole and must match it.
///
/// # Errors
/// Returns the errors of [`super::read_unlocked`].
pub fn open_sparse(path: &Path) -> Result<(Filter, MissingBits), FilterError> {
    let mut file = regular_file::open(path)?;
    tolerate(file.lock_shared())?;
    let size = file.metadata()?.len();
    let header = read_header(&mut file, size)?;
    if header.data_size() <= MAX_WHOLE_SIZE || checksum::has_sidecar(path) {
        let filter = read_whole(&mut file, path)?;
        return Ok((filter, MissingBits { file: None, path: path.to_owned(), reads_left: 0 }));
    }
    tolerate(file.unlock())?;
    let filter = Filter { header, bits: Bits::sparse(header.data_size())?, set_bits: 0 };
    let reads_left = header.data_size() / BYTES_PER_READ;
    Ok((filter, MissingBits { file: Some(file), path: path.to_owned(), reads_left }))
}

impl MissingBits {
    /// Whether no bits are missing.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.file.is_none()
    }

    /// Reads the bits of the key with this SubjectPublicKeyInfo (DER) into `filter`, which is the
    /// one that this was opened with.
    ///
    /// # Errors
    /// Returns an error if the file cannot be read, has another size than before, or changes during
    /// the read.
    pub fn fetch(&mut self, filter: &mut Filter, spki: &[u8]) -> Result<(), FilterError> {
        let Some(file) = &mut self.file else { return Ok(()) };
        tolerate(file.lock_shared())?;
        let before = FileStamp::from_metadata(&file.metadata()?);
        if before.size() != filter.header.data_size() + HEADER_SIZE as u64 {
            return Err(FilterError::BeingWritten);
        }
        let hash_count = u64::from(filter.header.hash_count);
        let Some(reads_left) = self.reads_left.checked_sub(hash_count) else {
            *filter = read_whole(file, &self.path)?;
            self.file = None;
            return Ok(());
        };
        self.reads_left = reads_left;
        for position in filter.positions(KeyHash::from_spki(spki)) {
            let (index, _) = locate(position);
            if let Some(byte) = filter.bits.get_mut(index) {
                let offset = HEADER_SIZE as u64 + (position >> 3);
                file.read_exact_at(std::slice::from_mut(byte), offset)?;
            }
        }
        let after = FileStamp::from_metadata(&file.metadata()?);
        tolerate(file.unlock())?;
        if after.is_unchanged(&before) { Ok(()) } else { Err(FilterError::BeingWritten) }
    }
}

fn read_whole(file: &mut File, path: &Path) -> Result<Filter, FilterError> {
    std::io::Seek::rewind(file)?;
    Ok(read_from(file, path, u64::MAX)?.filter)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pkbf::{self, Overwrite, Parameters, create};

    /// A filter of 2 MiB with the keys 0 to 999, and its file.
    fn filter(directory: &Path) -> (Filter, PathBuf) {
        let mut filter = Filter::new(Parameters::new(7, 24).unwrap()).unwrap();
        (0..1000_u32).for_each(|key| _ = filter.insert(&key.to_be_bytes()));
        let path = directory.join("a.pkbf");
        create(&filter, &path, Overwrite::Never).unwrap();
        (filter, path)
    }

    #[test]
    fn each_key_has_the_verdict_of_the_whole_filter_before_and_after_it_is_read() {
        let directory = tempfile::tempdir().unwrap();
        let (whole, path) = filter(directory.path());
        let (mut sparse, mut missing) = open_sparse(&path).unwrap();
        assert_eq!(sparse.header(), whole.header());
        assert!(!sparse.contains(&0_u32.to_be_bytes()), "no bit has been read");
        for key in 0..2000_u32 {
            missing.fetch(&mut sparse, &key.to_be_bytes()).unwrap();
            assert_eq!(
                sparse.contains(&key.to_be_bytes()),
                whole.contains(&key.to_be_bytes()),
                "{key}"
            );
            assert_eq!(missing.file.is_some(), key < 512 / 7, "512 reads, then the whole file");
        }
        assert_eq!(sparse, whole);
    }

    #[test]
    fn a_change_of_the_file_is_read_and_a_file_that_shrinks_is_an_error() {
        let directory = tempfile::tempdir().unwrap();
        let (mut whole, path) = filter(directory.path());
        let (mut sparse, mut missing) = open_sparse(&path).unwrap();
        missing.fetch(&mut sparse, b"new").unwrap();
        assert!(!sparse.contains(b"new"));
        whole.insert(b"new");
        let (header, bits) = whole.to_parts();
        // In place, as the reference implementation writes.
        std::fs::write(&path, [&header[..], bits].concat()).unwrap();
        missing.fetch(&mut sparse, b"new").unwrap();
        assert!(sparse.contains(b"new"));
        File::options().write(true).open(&path).unwrap().set_len(1 << 20).unwrap();
        assert!(matches!(missing.fetch(&mut sparse, b"new"), Err(FilterError::BeingWritten)));
    }

    #[test]
    fn a_filter_with_a_checksum_file_is_checked_as_a_whole() {
        let directory = tempfile::tempdir().unwrap();
        let (whole, path) = filter(directory.path());
        let digest = data_encoding::HEXLOWER.encode(&whole.sha256());
        let sidecar = pkbf::sidecar_of(&path);
        std::fs::write(&sidecar, format!("{digest}  a.pkbf\n")).unwrap();
        assert_eq!(open_sparse(&path).unwrap().0, whole);
        std::fs::write(&sidecar, format!("{}  a.pkbf\n", "0".repeat(64))).unwrap();
        assert!(matches!(open_sparse(&path), Err(FilterError::Checksum { .. })));
        std::fs::remove_file(&sidecar).unwrap();
        std::os::unix::fs::symlink("missing", &sidecar).unwrap();
        assert!(matches!(open_sparse(&path), Err(FilterError::ChecksumFile { .. })));
    }
}

//! Reads filter files into memory as a whole.
//!
//! Files are never mapped. The reference implementation edits files in place, and a mapped file
//! that shrinks raises SIGBUS in the process that reads it.

use std::fs::{File, Metadata, TryLockError};
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::OnceLock;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use super::bits::{Bits, count_ones};
use super::header::too_short;
use super::{Filter, FilterError, HEADER_SIZE, Header, checksum};
use crate::regular_file;

/// Size of one read, in bytes. Its bits are counted while they are in the cache.
const CHUNK_SIZE: usize = 256 << 10;

/// A filter with the state of the file it was read from.
#[derive(Debug)]
pub struct FilterFile {
    /// The filter.
    pub filter: Filter,
    /// The state of the file when it was read.
    pub stamp: FileStamp,
    sha256: OnceLock<[u8; 32]>,
}

impl FilterFile {
    /// SHA-256 of the whole file. Computed on the first call, because hashing takes longer than
    /// reading.
    #[must_use]
    pub fn sha256(&self) -> &[u8; 32] {
        self.sha256.get_or_init(|| self.filter.sha256())
    }
}

/// File system metadata that changes when a file is replaced or written to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FileStamp {
    device: u64,
    inode: u64,
    size: u64,
    modified: (i64, i64),
    changed: (i64, i64),
}

impl FileStamp {
    /// The stamp of the file at `path`, symbolic links followed.
    ///
    /// # Errors
    /// Returns an error if the metadata of the file cannot be read.
    pub fn read(path: &Path) -> io::Result<Self> {
        Ok(Self::from_metadata(&std::fs::metadata(path)?))
    }

    /// Size of the file, in bytes.
    #[must_use]
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Whether both stamps are of one file, changed or not.
    #[must_use]
    pub fn is_same_file(&self, other: &Self) -> bool {
        (self.device, self.inode) == (other.device, other.inode)
    }

    /// Whether the content has not changed between the stamps of one open file. The name of the
    /// file may have.
    pub(super) fn is_unchanged(&self, other: &Self) -> bool {
        (self.size, self.modified) == (other.size, other.modified)
    }

    /// Whether the file was last changed at least `age` before `now`. Returns true if the time of
    /// the change is in the future, which the clock of a file server can cause.
    #[must_use]
    pub fn changed_before(&self, now: SystemTime, age: Duration) -> bool {
        let (seconds, nanoseconds) = self.changed;
        let since_epoch = now.duration_since(UNIX_EPOCH).unwrap_or_default();
        let changed = Duration::new(
            u64::try_from(seconds).unwrap_or_default(),
            u32::try_from(nanoseconds).unwrap_or_default(),
        );
        since_epoch.checked_sub(changed).is_none_or(|elapsed| elapsed >= age)
    }

    pub(super) fn from_metadata(metadata: &Metadata) -> Self {
        Self {
            device: metadata.dev(),
            inode: metadata.ino(),
            size: metadata.size(),
            modified: (metadata.mtime(), metadata.mtime_nsec()),
            changed: (metadata.ctime(), metadata.ctime_nsec()),
        }
    }
}

/// Reads the filter at `path` under the shared lock that the reference implementation honours.
///
/// Size, marker, ranges and length are checked before any allocation. If there is a checksum file
/// ([`super::sidecar_of`]), the filter must match it.
///
/// # Errors
/// Returns an error if the file cannot be read, is larger than `max_size` bytes, is not a valid
/// filter, does not match its checksum, is locked by its writer, or changes during the read.
pub fn read(path: &Path, max_size: u64) -> Result<FilterFile, FilterError> {
    let mut file = regular_file::open(path)?;
    match file.try_lock_shared() {
        Err(TryLockError::WouldBlock) => return Err(FilterError::BeingWritten),
        Err(TryLockError::Error(error)) => tolerate(Err(error))?,
        Ok(()) => {}
    }
    read_from(&mut file, path, max_size)
}

/// Like [`read`], but waits while a writer holds the lock.
///
/// # Errors
/// Returns the errors of [`read`].
pub fn read_unlocked(path: &Path, max_size: u64) -> Result<FilterFile, FilterError> {
    let mut file = regular_file::open(path)?;
    tolerate(file.lock_shared())?;
    read_from(&mut file, path, max_size)
}

/// The result of locking, but success on a file system without locks.
pub(super) fn tolerate(locked: io::Result<()>) -> io::Result<()> {
    locked.or_else(
        |error| {
            if error.kind() == io::ErrorKind::Unsupported { Ok(()) } else { Err(error) }
        },
    )
}

/// Reads `file`, which was opened at `path` and is locked.
pub(super) fn read_from(
    file: &mut File,
    path: &Path,
    max_size: u64,
) -> Result<FilterFile, FilterError> {
    let before = file.metadata()?;
    if before.len() > max_size {
        return Err(FilterError::TooLarge { found: before.len(), allowed: max_size });
    }
    let header = read_header(file, before.len())?;
    let (bits, set_bits) = read_bits(file, &header)?;
    let stamp = FileStamp::from_metadata(&before);
    if FileStamp::from_metadata(&file.metadata()?) != stamp {
        return Err(FilterError::BeingWritten);
    }
    let filter = Filter { header, bits, set_bits };
    let file = FilterFile { filter, stamp, sha256: OnceLock::new() };
    checksum::check_sidecar(path, || *file.sha256())?;
    Ok(file)
}

pub(super) fn read_header(file: &mut File, file_size: u64) -> Result<Header, FilterError> {
    let mut start = Vec::with_capacity(HEADER_SIZE);
    file.take(HEADER_SIZE as u64).read_to_end(&mut start)?;
    match start.first_chunk::<HEADER_SIZE>() {
        Some(header) => Header::from_bytes(header, file_size),
        None => Err(too_short(&start, file_size)),
    }
}

/// Reads the bit field into its final place and counts the bits that are set, in one pass.
fn read_bits(file: &mut File, header: &Header) -> Result<(Bits, u64), FilterError> {
    let mut bits = Bits::zeroed(header.data_size())?;
    let mut set_bits = 0;
    for chunk in bits.chunks_mut(CHUNK_SIZE) {
        file.read_exact(chunk).map_err(|error| {
            let shrunk = error.kind() == io::ErrorKind::UnexpectedEof; // the length was checked before
            if shrunk { FilterError::BeingWritten } else { FilterError::Io(error) }
        })?;
        set_bits += count_ones(chunk);
    }
    Ok((bits, set_bits))
}

#[cfg(test)]
mod tests {
    use aws_lc_rs::digest;

    use super::*;
    use crate::pkbf::{Overwrite, Parameters, create};

    fn filter() -> Filter {
        let mut filter = Filter::new(Parameters::new(5, 12).unwrap()).unwrap();
        filter.insert(b"key");
        filter
    }

    #[test]
    fn a_written_filter_is_read_back_with_its_digest_and_count() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("a.pkbf");
        create(&filter(), &path, Overwrite::Never).unwrap();

        let read = read(&path, 1 << 20).unwrap();
        assert_eq!(read.filter, filter());
        assert_eq!(read.stamp, FileStamp::read(&path).unwrap());
        let whole = std::fs::read(&path).unwrap();
        assert_eq!(read.sha256(), digest::digest(&digest::SHA256, &whole).as_ref());
        assert_eq!(
            std::fs::read_dir(directory.path()).unwrap().count(),
            1,
            "no temporary file is left"
        );
    }

    #[test]
    fn a_file_over_the_maximum_size_is_rejected_before_it_is_read() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("a.pkbf");
        create(&filter(), &path, Overwrite::Never).unwrap();
        let error = read(&path, 100).unwrap_err();
        assert!(matches!(error, FilterError::TooLarge { found: 536, allowed: 100 }), "{error}");
    }

    #[test]
    fn a_file_locked_by_its_writer_is_not_read() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("a.pkbf");
        create(&filter(), &path, Overwrite::Never).unwrap();
        let writer = File::open(&path).unwrap();
        writer.lock().unwrap();
        assert!(matches!(read(&path, 1 << 20).unwrap_err(), FilterError::BeingWritten));
        writer.unlock().unwrap();
        assert!(read(&path, 1 << 20).is_ok());
    }

    /// The writer takes no lock, so that a read can mix old and new bytes.
    #[test]
    fn a_file_that_changes_while_it_is_read_is_an_error() {
        use std::os::unix::fs::FileExt;
        use std::sync::atomic::{AtomicBool, Ordering};

        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("a.pkbf");
        let large = Filter::new(Parameters::new(5, 28).unwrap()).unwrap();
        create(&large, &path, Overwrite::Never).unwrap();
        let writer = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
        let stop = AtomicBool::new(false);
        let deadline = SystemTime::now() + Duration::from_secs(60);
        let is_detected = std::thread::scope(|scope| {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    writer.write_all_at(b"x", 1000).unwrap();
                    std::thread::sleep(Duration::from_millis(1)); // a read takes longer
                }
            });
            // Repeated, because a read that overlaps no write succeeds.
            let mut reads = std::iter::repeat_with(|| read(&path, u64::MAX));
            let is_detected = reads
                .by_ref()
                .take_while(|_| SystemTime::now() < deadline)
                .any(|read| matches!(read, Err(FilterError::BeingWritten)));
            stop.store(true, Ordering::Relaxed);
            is_detected
        });
        assert!(is_detected);
    }

    #[test]
    fn a_directory_is_an_error() {
        let directory = tempfile::tempdir().unwrap();
        assert!(matches!(read(directory.path(), 1 << 20).unwrap_err(), FilterError::Io(_)));
    }
}

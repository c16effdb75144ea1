//! Filter files, read whole into memory.
//!
//! Never a mapping: the reference implementation edits files in place, and a file that shrinks
//! under a mapping kills the process that reads it.

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

/// Bytes read at a time: they are counted while they are still in the cache.
const CHUNK_SIZE: usize = 256 << 10;

/// A filter as it was in a file.
#[derive(Debug)]
pub struct FilterFile {
    /// The filter.
    pub filter: Filter,
    /// What the file system said of the file that was read.
    pub stamp: FileStamp,
    sha256: OnceLock<[u8; 32]>,
}

impl FilterFile {
    /// SHA-256 of the whole file. Computed when it is first asked for: it takes longer than reading.
    #[must_use]
    pub fn sha256(&self) -> &[u8; 32] {
        self.sha256.get_or_init(|| self.filter.sha256())
    }
}

/// What changes when a file is replaced or written to.
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
    /// There is no such file, or it may not be looked at.
    pub fn of(path: &Path) -> io::Result<Self> {
        Ok(Self::from_metadata(&std::fs::metadata(path)?))
    }

    /// Whether the file was last changed at least `age` before `now`. One that seems to be changed
    /// in the future (a file system with a clock of its own) counts as settled.
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

    fn from_metadata(metadata: &Metadata) -> Self {
        Self {
            device: metadata.dev(),
            inode: metadata.ino(),
            size: metadata.size(),
            modified: (metadata.mtime(), metadata.mtime_nsec()),
            changed: (metadata.ctime(), metadata.ctime_nsec()),
        }
    }
}

/// Reads the filter at `path`, holding the shared lock that the reference implementation honours.
///
/// Everything that can be checked is checked before anything is allocated: size, marker, ranges,
/// length. A checksum beside the file ([`super::sidecar_of`]) must match.
///
/// # Errors
/// The file cannot be read, is larger than `max_size` bytes, is not a usable filter, does not match
/// its checksum, or is being written to: locked by its writer, or changed between the beginning and
/// the end of the read.
pub fn read(path: &Path, max_size: u64) -> Result<FilterFile, FilterError> {
    let mut file = regular_file::open(path)?;
    match file.try_lock_shared() {
        Err(TryLockError::WouldBlock) => return Err(FilterError::BeingWritten),
        Err(TryLockError::Error(error)) => tolerate(Err(error))?,
        Ok(()) => {}
    }
    read_from(&mut file, path, max_size)
}

/// The same, but waits until no writer holds the lock.
///
/// # Errors
/// As [`read`].
pub fn read_unlocked(path: &Path, max_size: u64) -> Result<FilterFile, FilterError> {
    let mut file = regular_file::open(path)?;
    tolerate(file.lock_shared())?;
    read_from(&mut file, path, max_size)
}

/// The outcome of a lock, except that a file system without locks has no writer that honours them.
pub(super) fn tolerate(locked: io::Result<()>) -> io::Result<()> {
    locked.or_else(
        |error| {
            if error.kind() == io::ErrorKind::Unsupported { Ok(()) } else { Err(error) }
        },
    )
}

/// Reads `file`, which is locked and was opened at `path`.
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

fn read_header(file: &mut File, file_size: u64) -> Result<Header, FilterError> {
    let mut start = Vec::with_capacity(HEADER_SIZE);
    file.take(HEADER_SIZE as u64).read_to_end(&mut start)?;
    match start.first_chunk::<HEADER_SIZE>() {
        Some(header) => Header::from_bytes(header, file_size),
        None => Err(too_short(&start, file_size)),
    }
}

/// The bit field and how many of its bits are set: one pass, straight to where it stays.
fn read_bits(file: &mut File, header: &Header) -> Result<(Bits, u64), FilterError> {
    let mut bits = Bits::zeroed(header.data_size())?;
    let mut set_bits = 0;
    for chunk in bits.chunks_mut(CHUNK_SIZE) {
        file.read_exact(chunk).map_err(|error| {
            let shrunk = error.kind() == io::ErrorKind::UnexpectedEof; // it was long enough a moment ago
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
        assert_eq!(read.stamp, FileStamp::of(&path).unwrap());
        let whole = std::fs::read(&path).unwrap();
        assert_eq!(read.sha256(), digest::digest(&digest::SHA256, &whole).as_ref());
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 1, "nothing is left over");
    }

    #[test]
    fn a_file_over_the_limit_is_refused_before_it_is_read() {
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

    /// A writer without a lock: what was read is a mixture of before and after.
    #[test]
    fn a_file_that_changes_while_it_is_read_is_not_taken_for_a_filter() {
        use std::os::unix::fs::FileExt;
        use std::sync::atomic::{AtomicBool, Ordering};

        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("a.pkbf");
        let large = Filter::new(Parameters::new(5, 28).unwrap()).unwrap();
        create(&large, &path, Overwrite::Never).unwrap();
        let writer = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
        let stop = AtomicBool::new(false);
        let deadline = SystemTime::now() + Duration::from_secs(60);
        let is_noticed = std::thread::scope(|scope| {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    writer.write_all_at(b"x", 1000).unwrap();
                }
            });
            // A read that begins and ends while the writer has no processor sees nothing.
            let mut reads = std::iter::repeat_with(|| read(&path, u64::MAX));
            let is_noticed = reads
                .by_ref()
                .take_while(|_| SystemTime::now() < deadline)
                .any(|read| matches!(read, Err(FilterError::BeingWritten)));
            stop.store(true, Ordering::Relaxed);
            is_noticed
        });
        assert!(is_noticed);
    }

    #[test]
    fn a_directory_is_not_a_filter() {
        let directory = tempfile::tempdir().unwrap();
        assert!(matches!(read(directory.path(), 1 << 20).unwrap_err(), FilterError::Io(_)));
    }
}

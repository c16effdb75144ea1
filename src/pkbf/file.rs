//! Filter files: read whole into memory, written beside the target and renamed over it.
//!
//! Never a mapping: the reference implementation edits files in place, and a file that shrinks
//! under a mapping kills the process that reads it.

use std::fs::{File, Metadata, TryLockError};
use std::io::{self, Read, Write};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use aws_lc_rs::digest;

use super::header::too_short;
use super::{Filter, FilterError, HEADER_SIZE, Header, allocate, count_ones};

/// Bytes read at a time: they are counted and hashed while they are still in the cache.
const CHUNK_SIZE: u64 = 1 << 20;

/// A filter as it was in a file.
#[derive(Debug)]
pub struct FilterFile {
    /// The filter.
    pub filter: Filter,
    /// SHA-256 of the whole file.
    pub sha256: [u8; 32],
    /// What the file system said of the file that was read.
    pub stamp: FileStamp,
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
/// length.
///
/// # Errors
/// The file cannot be read, is larger than `max_size` bytes, is not a usable filter, or is being
/// written to: locked by its writer, or changed between the beginning and the end of the read.
pub fn read(path: &Path, max_size: u64) -> Result<FilterFile, FilterError> {
    // Looked at before it is opened: opening a pipe would wait for its writer.
    if !std::fs::metadata(path)?.is_file() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file").into());
    }
    let mut file = File::open(path)?;
    match file.try_lock_shared() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => return Err(FilterError::BeingWritten),
        // A file system without locks has no writer that honours them.
        Err(TryLockError::Error(error)) if error.kind() == io::ErrorKind::Unsupported => {}
        Err(TryLockError::Error(error)) => return Err(error.into()),
    }
    let before = file.metadata()?;
    if before.len() > max_size {
        return Err(FilterError::TooLarge { found: before.len(), allowed: max_size });
    }

    let mut digest = digest::Context::new(&digest::SHA256);
    let header = read_header(&mut file, before.len(), &mut digest)?;
    let (bits, set_bits) = read_bits(&mut file, &header, &mut digest)?;

    let stamp = FileStamp::from_metadata(&before);
    if FileStamp::from_metadata(&file.metadata()?) != stamp {
        return Err(FilterError::BeingWritten);
    }
    let mut sha256 = [0; 32];
    sha256.iter_mut().zip(digest.finish().as_ref()).for_each(|(byte, value)| *byte = *value);
    Ok(FilterFile { filter: Filter { header, bits, set_bits }, sha256, stamp })
}

fn read_header(
    file: &mut File,
    file_size: u64,
    digest: &mut digest::Context,
) -> Result<Header, FilterError> {
    let mut start = Vec::with_capacity(HEADER_SIZE);
    file.take(HEADER_SIZE as u64).read_to_end(&mut start)?;
    digest.update(&start);
    match start.first_chunk::<HEADER_SIZE>() {
        Some(header) => Header::from_bytes(header, file_size),
        None => Err(too_short(&start, file_size)),
    }
}

/// The bit field and how many of its bits are set.
fn read_bits(
    file: &mut File,
    header: &Header,
    digest: &mut digest::Context,
) -> Result<(Vec<u8>, u64), FilterError> {
    let mut bits = allocate(header.data_size())?;
    let mut set_bits = 0;
    let mut remaining = header.data_size();
    while remaining > 0 {
        let start = bits.len();
        let read = file.take(remaining.min(CHUNK_SIZE)).read_to_end(&mut bits)?;
        if read == 0 {
            return Err(FilterError::BeingWritten); // it was long enough a moment ago
        }
        let chunk = bits.get(start..).unwrap_or_default();
        set_bits += count_ones(chunk);
        digest.update(chunk);
        remaining = remaining.saturating_sub(chunk.len() as u64);
    }
    Ok((bits, set_bits))
}

/// Writes `filter` to `path`: to a temporary file beside it, synced, then renamed over it, so that
/// a crash leaves the old file or the new one.
///
/// # Errors
/// The directory or the file cannot be written.
pub fn write_atomically(filter: &Filter, path: &Path) -> io::Result<()> {
    let directory = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    let mut file = tempfile::Builder::new()
        .prefix(".pkbf-")
        .permissions(std::os::unix::fs::PermissionsExt::from_mode(0o644))
        .tempfile_in(directory)?;
    let (header, bits) = filter.to_parts();
    file.write_all(&header)?;
    file.write_all(bits)?;
    file.as_file().sync_all()?;
    file.persist(path).map_err(|error| error.error)?;
    File::open(directory)?.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pkbf::Parameters;

    fn filter() -> Filter {
        let mut filter = Filter::new(Parameters::new(5, 12).unwrap()).unwrap();
        filter.insert(b"key");
        filter
    }

    #[test]
    fn a_written_filter_is_read_back_with_its_digest_and_count() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("a.pkbf");
        write_atomically(&filter(), &path).unwrap();

        let read = read(&path, 1 << 20).unwrap();
        assert_eq!(read.filter, filter());
        assert_eq!(read.stamp, FileStamp::of(&path).unwrap());
        let whole = std::fs::read(&path).unwrap();
        assert_eq!(read.sha256, digest::digest(&digest::SHA256, &whole).as_ref());
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 1, "nothing is left over");
    }

    #[test]
    fn a_file_over_the_limit_is_refused_before_it_is_read() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("a.pkbf");
        write_atomically(&filter(), &path).unwrap();
        let error = read(&path, 100).unwrap_err();
        assert!(matches!(error, FilterError::TooLarge { found: 536, allowed: 100 }), "{error}");
    }

    #[test]
    fn a_file_locked_by_its_writer_is_not_read() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("a.pkbf");
        write_atomically(&filter(), &path).unwrap();
        let writer = File::open(&path).unwrap();
        writer.lock().unwrap();
        assert!(matches!(read(&path, 1 << 20).unwrap_err(), FilterError::BeingWritten));
        writer.unlock().unwrap();
        assert!(read(&path, 1 << 20).is_ok());
    }

    #[test]
    fn a_directory_is_not_a_filter() {
        let directory = tempfile::tempdir().unwrap();
        assert!(matches!(read(directory.path(), 1 << 20).unwrap_err(), FilterError::Io(_)));
    }
}

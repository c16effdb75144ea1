//! Creates and changes filter files.
//!
//! A file is written beside its target, synced, and renamed over it. A crash therefore leaves the
//! old file or the new one. Its checksum file has the checksums of both in between. A crash may
//! leave temporary files; the next update of the same filter removes them.

use std::ffi::{OsStr, OsString};
use std::fs::{File, Metadata};
use std::io::{self, Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt, fchown};
use std::path::{Path, PathBuf};

use aws_lc_rs::digest;
use tempfile::NamedTempFile;

use super::checksum::{check_sidecar, line, sidecar_of};
use super::file::{read_from, tolerate};
use super::{Filter, FilterError};
use crate::regular_file::{self, directory_of};

/// Whether an existing file may be replaced.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Overwrite {
    /// An existing file is replaced.
    Always,
    /// An existing file is an error.
    Never,
}

/// Writes `filter` to a file at `path`. Updates the checksum file if there is one.
///
/// # Errors
/// Returns an error if the directory or the file cannot be written, or if the file exists and
/// `overwrite` is [`Overwrite::Never`] ([`io::ErrorKind::AlreadyExists`]).
pub fn create(filter: &Filter, path: &Path, overwrite: Overwrite) -> io::Result<()> {
    match overwrite {
        Overwrite::Always if path.try_exists()? => {
            let (file, path) = locked(path)?;
            remove_leftovers(&path);
            let checksums = checksum_files([path.as_path()])?;
            let old = if checksums.is_empty() { None } else { Some(sha256_of(file)?) };
            replace(filter, &path, stage(filter, &path)?, &checksums, old)
        }
        Overwrite::Always => {
            replace(filter, path, stage(filter, path)?, &checksum_files([path])?, None)
        }
        Overwrite::Never => {
            let file = stage(filter, path)?;
            file.persist_noclobber(path).map_err(|error| error.error)?;
            File::open(directory_of(path))?.sync_all()
        }
    }
}

/// A change to a filter file, under its exclusive lock. The file changes only with
/// [`FilterUpdate::commit`].
#[derive(Debug)]
pub struct FilterUpdate {
    /// The content of the file. Add keys to it, then call [`Filter::stamp`].
    pub filter: Filter,
    path: PathBuf,
    metadata: Metadata,
    checksums: Vec<ChecksumFile>,
    /// SHA-256 of the file before the change; `None` without a checksum file.
    old: Option<[u8; 32]>,
    /// Holds the lock.
    _locked: File,
}

impl FilterUpdate {
    /// Waits for the exclusive lock on the file at `path`, following symbolic links, and reads it.
    ///
    /// # Errors
    /// Returns an error if the file cannot be read, is not a valid filter, or does not match its
    /// checksum.
    pub fn begin(path: &Path) -> Result<Self, FilterError> {
        let named = path;
        let (mut file, path) = locked(named)?;
        let metadata = file.metadata()?;
        let read = read_from(&mut file, &path, u64::MAX)?;
        // Readers that use the link look for the checksum file beside the link.
        if named.file_name() != path.file_name() || named.parent() != path.parent() {
            check_sidecar(named, || *read.sha256())?;
        }
        let checksums = checksum_files([path.as_path(), named])?;
        let old = if checksums.is_empty() { None } else { Some(*read.sha256()) };
        remove_leftovers(&path);
        Ok(Self { filter: read.filter, path, metadata, checksums, old, _locked: file })
    }

    /// Replaces the file and keeps its mode and owner. Updates the checksum file if there is one.
    ///
    /// # Errors
    /// Returns an error if the directory or the file cannot be written. The old file then stays.
    pub fn commit(self) -> io::Result<()> {
        let file = stage(&self.filter, &self.path)?;
        let old = self.metadata;
        let staged = file.as_file().metadata()?;
        if (staged.uid(), staged.gid()) != (old.uid(), old.gid()) {
            fchown(file.as_file(), Some(old.uid()), Some(old.gid()))?;
        }
        file.as_file().set_permissions(old.permissions())?;
        replace(&self.filter, &self.path, file, &self.checksums, self.old)
    }
}

/// Waits for the exclusive lock on the file at `path`, following symbolic links. Returns the file
/// and its path without links.
fn locked(path: &Path) -> io::Result<(File, PathBuf)> {
    let path = path.canonicalize()?;
    loop {
        let file = regular_file::open(&path)?;
        tolerate(file.lock())?;
        let (locked, present) = (file.metadata()?, std::fs::metadata(&path)?);
        // The previous holder of the lock may have replaced the file. Then open the new one.
        if (present.dev(), present.ino()) == (locked.dev(), locked.ino()) {
            return Ok((file, path));
        }
    }
}

/// A checksum file to be written with the filter.
#[derive(Debug)]
struct ChecksumFile {
    /// Path of the checksum file without symbolic links.
    path: PathBuf,
    /// Path of the filter beside it.
    filter: PathBuf,
}

/// The checksum files that exist beside these paths of one filter.
fn checksum_files<'a>(
    filters: impl IntoIterator<Item = &'a Path>,
) -> io::Result<Vec<ChecksumFile>> {
    let mut found: Vec<ChecksumFile> = Vec::new();
    for filter in filters {
        let sidecar = sidecar_of(filter);
        if sidecar.symlink_metadata().is_err() {
            continue;
        }
        let path = sidecar.canonicalize().map_err(|error| {
            io::Error::new(error.kind(), format!("{}: {error}", sidecar.display()))
        })?;
        if found.iter().all(|known| known.path != path) {
            found.push(ChecksumFile { path, filter: filter.to_owned() });
        }
    }
    Ok(found)
}

impl ChecksumFile {
    /// Replaces the file by one with a line for each of `sums`.
    fn write(&self, sums: &[[u8; 32]]) -> io::Result<()> {
        let mut staged = temporary(&self.path)?;
        for sum in sums {
            staged.write_all(line(&self.filter, sum).as_bytes())?;
        }
        staged.as_file().sync_all()?;
        staged.persist(&self.path).map_err(|error| error.error)?;
        File::open(directory_of(&self.path))?.sync_all()
    }
}

/// SHA-256 of a file that may be anything.
fn sha256_of(mut file: File) -> io::Result<[u8; 32]> {
    let mut context = digest::Context::new(&digest::SHA256);
    let mut buffer = vec![0; 64 << 10];
    loop {
        let read = file.read(&mut buffer)?;
        let Some(chunk) = buffer.get(..read).filter(|chunk| !chunk.is_empty()) else { break };
        context.update(chunk);
    }
    Ok(context.finish().as_ref().first_chunk().copied().unwrap_or_default()) // it has 32 bytes
}

/// Writes the whole filter to a temporary file beside `path` and syncs it.
fn stage(filter: &Filter, path: &Path) -> io::Result<NamedTempFile> {
    let mut file = temporary(path)?;
    let (header, bits) = filter.to_parts();
    file.write_all(&header)?;
    file.write_all(bits)?;
    file.as_file().sync_all()?;
    Ok(file)
}

/// A temporary file beside `path`, which [`remove_leftovers`] of the same path removes.
fn temporary(path: &Path) -> io::Result<NamedTempFile> {
    tempfile::Builder::new()
        .prefix(&temporary_prefix(path))
        .rand_bytes(RANDOM_CHARACTERS)
        .permissions(PermissionsExt::from_mode(0o644))
        .tempfile_in(directory_of(path))
}

/// Number of random characters at the end of the name of a temporary file.
const RANDOM_CHARACTERS: usize = 6;

/// The start of the names of temporary files. It has the name of the file, because updates of other
/// files in the directory may be in progress.
fn temporary_prefix(path: &Path) -> OsString {
    let mut prefix = OsString::from(".pkbf-");
    prefix.push(path.file_name().unwrap_or_default());
    prefix.push(".");
    prefix
}

/// Removes temporary files of the filter at `path` and of its checksum file, which updates left
/// when they were killed. The caller holds the lock of the filter, so that no update is in
/// progress.
fn remove_leftovers(path: &Path) {
    let prefixes = [temporary_prefix(path), temporary_prefix(&sidecar_of(path))];
    let is_leftover = |name: &OsStr| {
        prefixes.iter().any(|prefix| {
            let random = name.as_bytes().strip_prefix(prefix.as_bytes());
            random.is_some_and(|random| {
                random.len() == RANDOM_CHARACTERS && random.iter().all(u8::is_ascii_alphanumeric)
            })
        })
    };
    let Ok(entries) = std::fs::read_dir(directory_of(path)) else { return };
    for entry in entries.flatten().filter(|entry| is_leftover(&entry.file_name())) {
        let _ = std::fs::remove_file(entry.path()); // the update reports a directory it cannot write
    }
}

/// Renames the staged `file` over `path`. `old` is the SHA-256 of the file that it replaces.
///
/// The checksum files have both checksums before the filter changes, and the new one alone
/// afterwards. Readers accept either, so that every step leaves a usable pair.
fn replace(
    filter: &Filter,
    path: &Path,
    file: NamedTempFile,
    checksums: &[ChecksumFile],
    old: Option<[u8; 32]>,
) -> io::Result<()> {
    if checksums.is_empty() {
        file.persist(path).map_err(|error| error.error)?;
        return File::open(directory_of(path))?.sync_all();
    }
    let new = filter.sha256();
    let both: Vec<_> = old.into_iter().chain([new]).collect();
    checksums.iter().try_for_each(|checksum| checksum.write(&both))?;
    file.persist(path).map_err(|error| error.error)?;
    File::open(directory_of(path))?.sync_all()?;
    checksums.iter().try_for_each(|checksum| checksum.write(&[new]))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pkbf::{Parameters, read};

    fn filter(key: &[u8]) -> Filter {
        let mut filter = Filter::new(Parameters::new(5, 12).unwrap()).unwrap();
        filter.insert(key);
        filter
    }

    fn names(directory: &Path) -> Vec<String> {
        let entries = std::fs::read_dir(directory).unwrap();
        let mut names: Vec<_> =
            entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    #[test]
    fn an_existing_file_is_replaced_only_on_request() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("a.pkbf");
        create(&filter(b"one"), &path, Overwrite::Never).unwrap();
        let error = create(&filter(b"two"), &path, Overwrite::Never).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::AlreadyExists);
        assert_eq!(read(&path, 1 << 20).unwrap().filter, filter(b"one"));
        create(&filter(b"two"), &path, Overwrite::Always).unwrap();
        assert_eq!(read(&path, 1 << 20).unwrap().filter, filter(b"two"));
        assert_eq!(names(directory.path()), ["a.pkbf"], "no temporary file is left");
    }

    #[test]
    fn an_update_keeps_mode_and_checksum_and_follows_links() {
        let directory = tempfile::tempdir().unwrap();
        let (path, link) = (directory.path().join("a.pkbf"), directory.path().join("link"));
        create(&filter(b"one"), &path, Overwrite::Never).unwrap();
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o600)).unwrap();
        let sum = line(&path, &filter(b"one").sha256());
        std::fs::write(sidecar_of(&path), sum).unwrap();
        std::os::unix::fs::symlink("a.pkbf", &link).unwrap();

        let mut update = FilterUpdate::begin(&link).unwrap();
        assert!(update.filter.insert(b"two"));
        update.commit().unwrap();

        let changed = read(&path, 1 << 20).unwrap();
        assert!(changed.filter.contains(b"two"));
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert!(std::fs::symlink_metadata(&link).unwrap().is_symlink());
        let sum = std::fs::read_to_string(sidecar_of(&path)).unwrap();
        assert_eq!(sum, line(&path, changed.sha256()));
        assert_eq!(names(directory.path()), ["a.pkbf", "a.pkbf.sha256", "link"]);
    }

    #[test]
    fn an_update_through_a_link_writes_the_checksum_file_beside_the_link_as_well() {
        let directory = tempfile::tempdir().unwrap();
        let (path, link) = (directory.path().join("a.pkbf"), directory.path().join("link"));
        create(&filter(b"one"), &path, Overwrite::Never).unwrap();
        std::os::unix::fs::symlink("a.pkbf", &link).unwrap();
        for path in [&path, &link] {
            std::fs::write(sidecar_of(path), line(path, &filter(b"one").sha256())).unwrap();
        }
        let mut update = FilterUpdate::begin(&link).unwrap();
        update.filter.insert(b"two");
        update.commit().unwrap();
        for path in [&path, &link] {
            let sum = std::fs::read_to_string(sidecar_of(path)).unwrap();
            assert_eq!(sum, line(path, read(path, 1 << 20).unwrap().sha256()));
        }
        create(&filter(b"three"), &path, Overwrite::Always).unwrap();
        assert_eq!(read(&path, 1 << 20).unwrap().filter, filter(b"three"));

        std::fs::write(sidecar_of(&link), line(&link, &[0; 32])).unwrap();
        let error = FilterUpdate::begin(&link).unwrap_err();
        assert!(matches!(error, FilterError::Checksum { .. }), "{error}");
    }

    #[test]
    fn only_leftovers_of_the_same_filter_are_removed() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("a");
        create(&filter(b"one"), &path, Overwrite::Never).unwrap();
        let others = [".pkbf-a.b.abcdef", ".pkbf-a.abcdefg", ".pkbf-b.abcdef", "a.pkbf-a.abcdef"];
        let own = [".pkbf-a.abcdef", ".pkbf-a.sha256.012345"];
        for name in others.iter().chain(&own) {
            std::fs::write(directory.path().join(name), "").unwrap();
        }
        FilterUpdate::begin(&path).unwrap();
        let mut left = vec!["a".to_owned()];
        left.extend(others.map(str::to_owned));
        left.sort();
        assert_eq!(names(directory.path()), left);
    }

    #[test]
    fn a_dropped_update_changes_nothing() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("a.pkbf");
        create(&filter(b"one"), &path, Overwrite::Never).unwrap();
        let mut update = FilterUpdate::begin(&path).unwrap();
        update.filter.insert(b"two");
        drop(update);
        assert_eq!(read(&path, 1 << 20).unwrap().filter, filter(b"one"));
        assert_eq!(names(directory.path()), ["a.pkbf"]);
    }

    #[test]
    fn an_update_waits_for_the_previous_one_and_adds_to_its_result() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("a.pkbf");
        create(&filter(b"one"), &path, Overwrite::Never).unwrap();
        let mut first = FilterUpdate::begin(&path).unwrap();
        let second = std::thread::scope(|scope| {
            let second = scope.spawn(|| FilterUpdate::begin(&path));
            first.filter.insert(b"two");
            first.commit().unwrap();
            second.join().unwrap().unwrap()
        });
        assert!(second.filter.contains(b"one") && second.filter.contains(b"two"));
    }

    #[test]
    fn a_file_that_does_not_match_its_checksum_cannot_be_updated() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("a.pkbf");
        create(&filter(b"one"), &path, Overwrite::Never).unwrap();
        std::fs::write(sidecar_of(&path), line(&path, &[0; 32])).unwrap();
        let error = FilterUpdate::begin(&path).unwrap_err();
        assert!(matches!(error, FilterError::Checksum { .. }), "{error}");
    }
}

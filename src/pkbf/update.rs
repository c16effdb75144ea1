//! Creates and changes filter files.
//!
//! A file is written beside its target, synced, and renamed over it. A crash therefore leaves the
//! old file or the new one.

use std::fs::{File, Metadata};
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt, fchown};
use std::path::{Path, PathBuf};

use tempfile::NamedTempFile;

use super::checksum::{line, sidecar_of};
use super::file::{read_from, tolerate};
use super::{Filter, FilterError};
use crate::regular_file;

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
    let file = stage(filter, path)?;
    match overwrite {
        Overwrite::Always => replace(filter, path, file),
        Overwrite::Never => {
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
        let path = path.canonicalize()?;
        loop {
            let mut file = regular_file::open(&path)?;
            tolerate(file.lock())?;
            let metadata = file.metadata()?;
            let present = std::fs::metadata(&path)?;
            // The previous holder of the lock may have replaced the file. Then open the new one.
            if (present.dev(), present.ino()) == (metadata.dev(), metadata.ino()) {
                let filter = read_from(&mut file, &path, u64::MAX)?.filter;
                return Ok(Self { filter, path, metadata, _locked: file });
            }
        }
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
        replace(&self.filter, &self.path, file)
    }
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

fn temporary(path: &Path) -> io::Result<NamedTempFile> {
    tempfile::Builder::new()
        .prefix(".pkbf-")
        .permissions(PermissionsExt::from_mode(0o644))
        .tempfile_in(directory_of(path))
}

/// Renames the staged `file` over `path`, and a new checksum file over the old one. Both are staged
/// first, so that a process that watches the directory sees the two renames together.
fn replace(filter: &Filter, path: &Path, file: NamedTempFile) -> io::Result<()> {
    let sidecar = sidecar_of(path);
    let checksum = if sidecar.exists() {
        let mut staged = temporary(path)?;
        staged.write_all(line(path, &filter.sha256()).as_bytes())?;
        staged.as_file().sync_all()?;
        Some(staged)
    } else {
        None
    };
    file.persist(path).map_err(|error| error.error)?;
    if let Some(checksum) = checksum {
        checksum.persist(sidecar).map_err(|error| error.error)?;
    }
    File::open(directory_of(path))?.sync_all()
}

fn directory_of(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    }
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

//! The directory beside a file in which its next version is prepared: `.NAME.fetch`.
//!
//! It is on the file system of the file, so that a rename replaces the file. Its lock keeps other
//! processes away.

use std::fs::{self, DirBuilder, File, OpenOptions, Permissions, TryLockError};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use rustix::process::geteuid;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::download::{PartialFile, Validators};
use super::error::FetchError;
use super::outcome::FetchCounts;
use crate::regular_file;

/// Maximum size of a record, in bytes; a larger one is not read.
const MAX_RECORD: u64 = 64 << 10;
/// User id of root.
const ROOT: u32 = 0;
/// Flag of opens in the work directory. A symbolic link in it is an error.
pub(super) const NO_LINK: i32 = libc::O_NOFOLLOW;

/// The locked directory in which the next version of one file is prepared.
pub(super) struct WorkDirectory {
    path: PathBuf,
    /// Holds the lock.
    _lock: File,
}

/// What is known of a file from earlier runs.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct FetchState {
    /// The version in use, if it was fetched.
    pub(super) installed: Option<Installed>,
    /// Numbers for the metrics.
    pub(super) counts: FetchCounts,
}

/// A version that was put in use.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Installed {
    /// The URL of the configuration.
    pub(super) url: String,
    pub(super) validators: Validators,
    /// The files as they were put in use.
    pub(super) files: Vec<FileMark>,
}

/// The state of a file on disk. A mark differs if the file was changed or replaced since.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct FileMark {
    path: PathBuf,
    inode: u64,
    size: u64,
    modified: (i64, i64),
}

impl FileMark {
    pub(super) fn of(path: &Path) -> io::Result<Self> {
        let metadata = fs::symlink_metadata(path)?;
        Ok(Self {
            path: path.to_owned(),
            inode: metadata.ino(),
            size: metadata.len(),
            modified: (metadata.mtime(), metadata.mtime_nsec()),
        })
    }
}

impl Installed {
    /// Whether this version, of `url`, is still in use with these files.
    pub(super) fn is_in_use(&self, url: &str, files: &[PathBuf]) -> bool {
        let has_all = files.iter().all(|file| self.files.iter().any(|mark| mark.path == *file));
        let is_unchanged = |mark: &FileMark| FileMark::of(&mark.path).is_ok_and(|it| it == *mark);
        self.url == url && has_all && self.files.iter().all(is_unchanged)
    }
}

impl WorkDirectory {
    /// Creates and locks the work directory of the file at `target`.
    ///
    /// # Errors
    /// Returns an error if `target` is not a regular file, if another process has the lock, or if
    /// the directory cannot be written.
    pub(super) fn open(target: &Path) -> Result<Self, FetchError> {
        match fs::symlink_metadata(target) {
            Ok(metadata) if !metadata.is_file() => {
                return Err(FetchError::NotRegular { path: target.to_owned() });
            }
            Ok(_) | Err(_) => {}
        }
        check_owner_of_parent(target)?;
        let path = path_of(target);
        let failed = |source| FetchError::Io { path: path.clone(), source };
        match DirBuilder::new().mode(0o700).create(&path) {
            Err(error) if error.kind() != ErrorKind::AlreadyExists => return Err(failed(error)),
            Ok(()) | Err(_) => {}
        }
        let metadata = fs::symlink_metadata(&path).map_err(failed)?;
        if !metadata.is_dir() {
            return Err(failed(ErrorKind::NotADirectory.into()));
        }
        let user = geteuid().as_raw();
        if metadata.uid() != user {
            return Err(FetchError::ForeignDirectory { path, owner: metadata.uid(), user });
        }
        if metadata.mode() & 0o077 != 0 {
            fs::set_permissions(&path, Permissions::from_mode(0o700)).map_err(failed)?;
        }
        let lock = path.join("lock");
        let mut options = OpenOptions::new();
        options.write(true).create(true).truncate(false).mode(0o600).custom_flags(NO_LINK);
        let file = options.open(&lock).map_err(failed)?;
        match file.try_lock() {
            Ok(()) => Ok(Self { path, _lock: file }),
            Err(TryLockError::WouldBlock) => Err(FetchError::Busy { path: lock }),
            Err(TryLockError::Error(error)) => Err(failed(error)),
        }
    }

    /// What is known from earlier runs; nothing if the record cannot be read.
    pub(super) fn state(&self) -> FetchState {
        read_json(&self.state_path()).unwrap_or_default()
    }

    /// Keeps `state` for later runs.
    pub(super) fn save(&self, state: &FetchState) -> Result<(), FetchError> {
        let path = self.state_path();
        write_json(&path, state).map_err(|source| FetchError::Io { path, source })
    }

    fn state_path(&self) -> PathBuf {
        self.path.join("state.json")
    }

    /// The file that is being downloaded.
    pub(super) fn part(&self) -> PartialFile {
        PartialFile::in_directory(&self.path)
    }

    /// The directory of the next version.
    pub(super) fn next(&self) -> PathBuf {
        self.path.join("next")
    }
}

/// Rejects, for root, a directory of another user, who could put links in place of files that are
/// written.
fn check_owner_of_parent(target: &Path) -> Result<(), FetchError> {
    let path = directory_of(target).to_owned();
    let user = geteuid().as_raw();
    if user != ROOT {
        return Ok(());
    }
    match fs::metadata(&path) {
        Ok(metadata) if metadata.uid() != ROOT => {
            Err(FetchError::ForeignDirectory { path, owner: metadata.uid(), user })
        }
        Ok(_) => Ok(()),
        Err(source) => Err(FetchError::Io { path, source }),
    }
}

/// The path of the work directory of the file at `target`.
fn path_of(target: &Path) -> PathBuf {
    let mut name = std::ffi::OsString::from(".");
    name.push(target.file_name().unwrap_or_default());
    name.push(".fetch");
    target.with_file_name(name)
}

/// What is known of the file at `target` from earlier runs, without the lock.
pub(super) fn state_of(target: &Path) -> FetchState {
    read_json(&path_of(target).join("state.json")).unwrap_or_default()
}

/// The record in the file at `path`; `None` if there is none, or if it is damaged.
pub(super) fn read_json<T: DeserializeOwned>(path: &Path) -> Option<T> {
    serde_json::from_slice(&regular_file::read(path, MAX_RECORD).ok()?).ok()
}

/// Replaces the record in the file at `path`.
pub(super) fn write_json(path: &Path, value: &impl Serialize) -> io::Result<()> {
    let content = serde_json::to_vec(value)?;
    let mut staged = tempfile::Builder::new().prefix(".record-").tempfile_in(directory_of(path))?;
    staged.write_all(&content)?;
    staged.as_file().sync_all()?;
    staged.persist(path).map_err(|error| error.error)?;
    Ok(())
}

/// The directory of the file at `path`.
pub(super) fn directory_of(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    }
}

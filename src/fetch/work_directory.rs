//! The directory beside a file in which its next version is prepared: `.NAME.fetch`.
//!
//! The directory is on the file system of the file, so that a rename replaces the file. A lock in
//! it keeps other processes away.

use std::fs::{self, DirBuilder, File, OpenOptions, Permissions, TryLockError};
use std::io::ErrorKind;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use keygate_core::regular_file::directory_of;
use rustix::process::geteuid;

use super::download::PartialFile;
use super::error::FetchError;
use super::record::{NO_LINK, read_json, write_json};
use super::state::FetchState;

/// Name of the record of earlier runs.
const STATE: &str = "state.json";
/// User id of root.
const ROOT: u32 = 0;

/// The locked directory in which the next version of one file is prepared.
pub(super) struct WorkDirectory {
    path: PathBuf,
    /// Holds the lock.
    _lock: File,
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
                return Err(FetchError::NotRegular(target.to_owned()));
            }
            Ok(_) | Err(_) => {}
        }
        create_parent(target)?;
        let path = work_path(target);
        let failed = FetchError::io(&path);
        match DirBuilder::new().mode(0o700).create(&path) {
            Err(error) if error.kind() != ErrorKind::AlreadyExists => return Err(failed(error)),
            Ok(()) | Err(_) => {}
        }
        let metadata = fs::symlink_metadata(&path).map_err(&failed)?;
        if !metadata.is_dir() {
            return Err(failed(ErrorKind::NotADirectory.into()));
        }
        let user = geteuid().as_raw();
        if metadata.uid() != user {
            return Err(FetchError::ForeignDirectory { path, owner: metadata.uid(), user });
        }
        if metadata.mode() & 0o077 != 0 {
            fs::set_permissions(&path, Permissions::from_mode(0o700)).map_err(&failed)?;
        }
        let lock = path.join("lock");
        let mut options = OpenOptions::new();
        options.write(true).create(true).truncate(false).mode(0o600).custom_flags(NO_LINK);
        let file = options.open(&lock).map_err(&failed)?;
        match file.try_lock() {
            Ok(()) => Ok(Self { path, _lock: file }),
            Err(TryLockError::WouldBlock) => Err(FetchError::Busy(lock)),
            Err(TryLockError::Error(error)) => Err(failed(error)),
        }
    }

    /// The record of earlier runs; empty if it cannot be read.
    pub(super) fn state(&self) -> FetchState {
        read_json(&self.state_path()).unwrap_or_default()
    }

    /// Replaces the record of earlier runs.
    pub(super) fn save(&self, state: &FetchState) -> Result<(), FetchError> {
        let path = self.state_path();
        write_json(&path, state).map_err(FetchError::io(&path))
    }

    fn state_path(&self) -> PathBuf {
        self.path.join(STATE)
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

/// Creates the directory of `target`.
///
/// # Errors
/// Returns an error if root runs in the directory of another user. Links of the owner could redirect
/// the writes of root, and the owner could not write to a directory that root creates.
fn create_parent(target: &Path) -> Result<(), FetchError> {
    let directory = directory_of(target);
    let failed = FetchError::io(directory);
    let user = geteuid().as_raw();
    if user == ROOT {
        let path = directory.ancestors().find(|path| path.exists()).unwrap_or(Path::new("."));
        let owner = fs::metadata(path).map_err(&failed)?.uid();
        if owner != ROOT {
            return Err(FetchError::ForeignDirectory { path: path.to_owned(), owner, user });
        }
    }
    fs::create_dir_all(directory).map_err(&failed)
}

/// The path of the work directory of the file at `target`.
fn work_path(target: &Path) -> PathBuf {
    let mut name = std::ffi::OsString::from(".");
    name.push(target.file_name().unwrap_or_default());
    name.push(".fetch");
    target.with_file_name(name)
}

/// The part of a download of the file at `target`, without the lock.
pub(super) fn unlocked_part(target: &Path) -> PartialFile {
    PartialFile::in_directory(&work_path(target))
}

/// The record of earlier runs for the file at `target`, without the lock.
pub(super) fn unlocked_state(target: &Path) -> FetchState {
    read_json(&work_path(target).join(STATE)).unwrap_or_default()
}

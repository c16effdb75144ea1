//! The record of earlier runs for a file: which version was put in use, and numbers for the
//! metrics.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::download::Validators;
use super::outcome::FetchCounts;
use super::record::SourceId;

/// Record of the earlier runs for a file.
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
    pub(super) source: SourceId,
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
    /// Whether this version is of `source`, and is still in use with these files.
    pub(super) fn is_in_use(&self, source: &SourceId, files: &[PathBuf]) -> bool {
        let has_all = files.iter().all(|file| self.files.iter().any(|mark| mark.path == *file));
        let is_unchanged = |mark: &FileMark| FileMark::of(&mark.path).is_ok_and(|it| it == *mark);
        self.source == *source && has_all && self.files.iter().all(is_unchanged)
    }
}

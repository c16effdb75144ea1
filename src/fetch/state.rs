//! The record of earlier runs for a file: which version was put in use, and numbers for the
//! metrics.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use keygate_core::unix_time;
use serde::{Deserialize, Serialize};

use super::download::Validators;
use super::error::FetchError;
use super::outcome::FetchedFile;
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
    pub(super) fn read(path: &Path) -> io::Result<Self> {
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
        let is_unchanged = |mark: &FileMark| FileMark::read(&mark.path).is_ok_and(|it| it == *mark);
        self.source == *source && has_all && self.files.iter().all(is_unchanged)
    }
}

/// Numbers about the runs for one file, for the metrics. Times are seconds since the Unix epoch; 0
/// before the first time.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct FetchCounts {
    /// End of the last run without an error.
    pub last_success: u64,
    /// End of the last run that installed a new version.
    pub last_installed: u64,
    /// Number of runs that ended with an error.
    pub failures: u64,
    /// Number of runs that installed a new version.
    pub installed: u64,
    /// Whether the metadata of a blocklist name its format deprecated.
    pub is_deprecated: bool,
}

impl FetchCounts {
    pub(super) fn record(&mut self, outcome: &Result<FetchedFile, FetchError>) {
        let Ok(file) = outcome else {
            self.failures = self.failures.saturating_add(1);
            return;
        };
        let now = unix_time::now();
        if file.is_new {
            self.last_installed = now;
            self.installed = self.installed.saturating_add(1);
        }
        self.last_success = now;
        self.is_deprecated = file.deprecation.is_some();
    }
}

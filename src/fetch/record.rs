//! The records in a work directory, and the source that they name.
//!
//! A record that is damaged, or of another source, is not used. The next run then begins anew.

use std::io;
use std::path::{Path, PathBuf};

use keygate_core::regular_file;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::config::{FetchConfig, SourceUrl};
use crate::files;

/// Maximum size of a record, in bytes, 64 KiB; a larger one is not read.
const MAX_RECORD: u64 = 64 << 10;
/// Flag of opens in the work directory. A symbolic link in it is an error.
pub(super) const NO_LINK: i32 = libc::O_NOFOLLOW;

/// The identity of a source: its URL, and the CAs that authenticate it. After a change of either,
/// bytes of the earlier source are neither continued nor installed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct SourceId {
    url: String,
    trust_anchors: Option<PathBuf>,
}

impl SourceId {
    /// The file at `url`, with the CAs of `config`.
    pub(super) fn new(url: &SourceUrl, config: &FetchConfig) -> Self {
        Self { url: url.to_string(), trust_anchors: config.trust_anchors.clone() }
    }
}

/// The record in the file at `path`; `None` if there is none, or if it is damaged.
pub(super) fn read_json<T: DeserializeOwned>(path: &Path) -> Option<T> {
    serde_json::from_slice(&regular_file::read(path, MAX_RECORD).ok()?).ok()
}

/// Replaces the record in the file at `path`.
pub(super) fn write_json(path: &Path, value: &impl Serialize) -> io::Result<()> {
    files::replace(path, ".record-", &[&serde_json::to_vec(value)?])
}

//! The outcome of fetching one file.

use super::error::FetchError;

/// A file that is in use after a run.
#[derive(Debug, Default)]
pub struct FetchedFile {
    /// Whether a new version is in use. Otherwise the source has the version in use.
    pub is_new: bool,
    /// Number of entries; `None` if the file was not read, because it is unchanged.
    pub entries: Option<u64>,
    /// Number of bytes that were downloaded.
    pub bytes: u64,
    /// Number of bytes that an earlier run had downloaded.
    pub resumed: u64,
    /// The text of `deprecated` in the metadata of a blocklist, which may be empty.
    pub deprecation: Option<String>,
    /// Why the sources before the one with this file were not used.
    pub errors: Vec<FetchError>,
}

//! An exact list, and how its updates are treated.

use std::path::PathBuf;
use std::time::Duration;

use super::{FetchConfig, Rollback};

/// An exact list of keys.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListConfig {
    /// Unique name of 1 to 64 letters, digits, `.`, `_` and `-`.
    pub name: String,
    /// Path of the file.
    pub path: PathBuf,
    /// Maximum size of the file, in bytes; a larger file is rejected. Default: 16 MiB, more than
    /// two hundred thousand fingerprints; for a blocklist 256 MiB, four times the published one.
    pub max_size: u64,
    /// The format of the file. Default: fingerprints.
    pub format: ListFormat,
    /// Minimum number of entries; a file with fewer is rejected. Default: 0.
    pub min_records: usize,
    /// How to treat a file that lost half of the entries in use or more. Default: it waits for the
    /// operator.
    pub shrink: Shrink,
    /// Files with keys that must be on the list.
    pub canaries: Vec<PathBuf>,
    /// Maximum number of recent clients that an update may newly reject. An update above it waits
    /// for `keygate list accept`. `None` sets no maximum.
    pub max_new_hits: Option<usize>,
    /// Where `keygate fetch` downloads the file; `None` downloads none.
    pub source: Option<FetchConfig>,
    /// File with the minisign keys, one of which must have signed the file and the metadata beside
    /// it. `None` needs no signature.
    pub minisign_key: Option<PathBuf>,
}

/// The format of an exact list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ListFormat {
    /// A `blocklist.dat` of badkeys, with the settings of its updates.
    Badkeys(BlocklistConfig),
    /// A text with one digest of a key a line.
    Fingerprints,
}

impl ListFormat {
    /// The name of the format in the configuration.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Badkeys(_) => "badkeys",
            Self::Fingerprints => "fingerprints",
        }
    }
}

/// How updates of a blocklist are treated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BlocklistConfig {
    /// Age from which the list is reported as stale, by the date in its metadata; `None` reports
    /// none.
    pub max_age: Option<Duration>,
    /// How to treat a file that is older than the list in use, by the dates in their metadata.
    /// Default: reject.
    pub rollback: Rollback,
}

impl Default for BlocklistConfig {
    fn default() -> Self {
        Self { max_age: None, rollback: Rollback::Refuse }
    }
}

/// How to treat a list that lost half of the entries in use or more.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Shrink {
    /// The file is activated.
    Allow,
    /// The file waits for the operator.
    Refuse,
}

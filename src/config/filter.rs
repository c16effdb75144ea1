//! A filter, and how its updates are treated.

use std::path::PathBuf;
use std::time::Duration;

use keygate_core::spki::RsaExponents;

use super::FetchConfig;

/// A filter file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FilterConfig {
    /// Unique name of 1 to 64 letters, digits, `.`, `_` and `-`.
    pub name: String,
    /// Path of the file.
    pub path: PathBuf,
    /// Maximum size of the file, in bytes; a larger file is rejected. Default: 2^33 bits and the
    /// header.
    pub max_size: u64,
    /// Age from which the filter is reported as stale; `None` reports none.
    pub max_age: Option<Duration>,
    /// How to treat a file that is older than the previous one. Default: reject.
    pub rollback: Rollback,
    /// How to treat a file whose header does not explain its bits. Default: reject.
    pub implausible: Implausible,
    /// Files with keys that must be in the filter.
    pub canaries: Vec<PathBuf>,
    /// Maximum number of recent clients that an update may newly reject. An update above it waits
    /// for `keygate filter accept`. `None` sets no maximum.
    pub max_new_hits: Option<usize>,
    /// Public exponents with which the modulus of an RSA key is looked up, besides the presented
    /// one. Default: 3 and 65537. Each adds the false-positive rate of the filter once more.
    pub related_exponents: RsaExponents,
    /// Where `keygate fetch` downloads the file; `None` downloads none.
    pub source: Option<FetchConfig>,
    /// File with the minisign keys, one of which must have signed the file. `None` needs no
    /// signature.
    pub minisign_key: Option<PathBuf>,
}

/// How to treat a filter or blocklist that is older than the previous one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Rollback {
    /// The file is activated.
    Allow,
    /// The file is rejected.
    Refuse,
}

/// How to treat a filter file whose header does not explain its bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Implausible {
    /// The file is rejected.
    Refuse,
    /// The file is activated, and a warning is logged.
    Warn,
}

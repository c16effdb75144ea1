//! An exact list, and how its updates are treated.

use std::path::PathBuf;
use std::time::Duration;

use super::check::Name;
use super::keys::{table, words};
use super::units::{Positive, SizeText};
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

table! {
    /// A list as it is written.
    pub(super) struct RawList r#"An array of tables, any number: `[[lists]]`. Exact lists of keys ([lists](lists.md)). The keys `max_age` and `rollback` are for `format = "badkeys"` only."# {
        pub(super) name: String as Name => AtOnce
            "Name in logs, metrics and `Client-Key-Status`.",
        pub(super) path: PathBuf => AtOnce
            "The file. No other list or filter has the same one, and no other blocklist the same directory, because of `badkeysdata.json`. A file with the same name and the suffix `.sha256` is checked if it exists.",
        pub(super) format: RawListFormat = "fingerprints" => AtOnce
            "`badkeys`: a `blocklist.dat`; `badkeysdata.json` beside it is read if it exists. `fingerprints`: a text with one key a line: the SHA-256 of its SubjectPublicKeyInfo in hex or base64, or `rsa-modulus:` or `ec-x:` and a SHA-256, or a [product of primes](lists.md#products-of-shared-primes); comments after `#`.",
        pub(super) max_size: u64 as SizeText = "256MiB" => AtOnce
            r#"Maximum file size. A larger file is rejected. For `format = "fingerprints"` the default is 16 MiB."#,
        pub(super) min_records: usize = 0 => AtOnce
            "Minimum number of entries. A file with fewer is rejected.",
        pub(super) max_age: Option<Duration> as Option<Positive> => AtOnce
            "Age, by the date in `badkeysdata.json`, above which the list is reported as stale. A list without a date, or with one in the future, is stale as well.",
        pub(super) rollback: Rollback = "refuse" => AtOnce
            "Handling of a file that is older than the list in use, by the `date` in `badkeysdata.json`, or that has no date in place of a list with one.",
        pub(super) shrink: Shrink = "refuse" => AtOnce
            "Handling of a file that lost half of the entries in use or more, or, of a blocklist, lacks more than half of the records in use. With `refuse` it waits for `keygate list accept`.",
        pub(super) canaries: Vec<PathBuf> = [] => AtOnce
            "Files with keys that must be on the list.",
        pub(super) max_new_hits: Option<usize> => AtOnce
            "As for [filters](#filters), with `keygate list accept`.",
        pub(super) minisign_key: Option<PathBuf> => AtOnce
            "File with public keys of minisign. The file needs a valid [signature](filters.md#signatures) of one of them, and so does `badkeysdata.json` if it exists.",
        pub(super) source: Option<FetchConfig>,
    }
}

words! {
    pub(super) enum RawListFormat {
        Badkeys = "badkeys",
        Fingerprints = "fingerprints",
    }
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
            Self::Badkeys(_) => RawListFormat::Badkeys.as_str(),
            Self::Fingerprints => RawListFormat::Fingerprints.as_str(),
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

words! {
    /// How to treat a list that lost half of the entries in use or more.
    pub enum Shrink {
        /// The file is activated.
        Allow = "allow",
        /// The file waits for the operator.
        Refuse = "refuse",
    }
}

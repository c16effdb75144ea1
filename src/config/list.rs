//! An exact list, and how its updates are treated.

use std::path::PathBuf;
use std::time::Duration;

use super::keys::{table, words};
use super::texts::Name;
use super::units::{Positive, SizeText};
use super::{FetchConfig, Rollback};

/// Default of `max_size` for a list of fingerprints, in bytes, 16 MiB.
pub(super) const MAX_FINGERPRINTS_SIZE: u64 = 16 << 20;

table! {
    /// An exact list of keys.
    #[derive(Clone, PartialEq, Eq)]
    pub struct ListConfig r#"An array of tables, any number: `[[lists]]`. Exact lists of keys ([lists](lists.md)). The keys `max_age` and `rollback` are for `format = "badkeys"` only."#, check {
        pub name: String as Name => AtOnce
            "Name in logs, metrics and `Client-Key-Status`.",
        pub path: PathBuf => AtOnce
            "The file. No other list or filter has the same one, and no other blocklist the same directory, because of `badkeysdata.json`. A file with the same name and the suffix `.sha256` is checked if it exists.",
        pub format: ListFormat = "fingerprints" => AtOnce
            "`badkeys`: a `blocklist.dat`; `badkeysdata.json` beside it is read if it exists. `fingerprints`: a text with one key a line: the SHA-256 of its SubjectPublicKeyInfo in hex or base64, or `rsa-modulus:` or `ec-x:` and a SHA-256, or a [product of primes](lists.md#products-of-shared-primes); comments after `#`.",
        pub max_size: u64 as SizeText = "256MiB" => AtOnce
            r#"Maximum file size. A larger file is rejected. For `format = "fingerprints"` the default is 16 MiB."#,
        pub min_records: usize = 0 => AtOnce
            "Minimum number of entries. A file with fewer is rejected.",
        pub max_age: Option<Duration> as Option<Positive> => AtOnce
            "Age, by the date in `badkeysdata.json`, above which the list is reported as stale. A list without a date, or with one in the future, is stale as well.",
        pub rollback: Rollback = "refuse" => AtOnce
            "Handling of a file that is older than the list in use, by the `date` in `badkeysdata.json`, or that has no date in place of a list with one.",
        pub shrink: Shrink = "refuse" => AtOnce
            "Handling of a file that has half of the entries in use or fewer, or lacks more than half of them. With `refuse` it waits for `keygate list accept`.",
        pub canaries: Vec<PathBuf> = [] => AtOnce
            "Files with keys that must be on the list.",
        pub max_new_hits: Option<usize> => AtOnce
            "As for [filters](#filters), with `keygate list accept`.",
        pub minisign_key: Option<PathBuf> => AtOnce
            "File with public keys of minisign. The file needs a valid [signature](filters.md#signatures) of one of them, and so does `badkeysdata.json` if it exists.",
        /// Where `keygate fetch` downloads the file; `None` downloads none.
        pub source: Option<FetchConfig>,
    }
}

words! {
    /// The format of an exact list.
    pub enum ListFormat {
        /// A `blocklist.dat` of badkeys.
        Badkeys = "badkeys",
        /// A text with one digest of a key a line.
        Fingerprints = "fingerprints",
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

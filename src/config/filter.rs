//! A filter, and how its updates are treated.

use std::path::PathBuf;
use std::time::Duration;

use keygate_core::spki::RsaExponents;

use super::FetchConfig;
use super::keys::{table, words};
use super::texts::{Exponents, Name};
use super::units::{Positive, SizeText};

table! {
    /// A filter file.
    #[derive(Clone, PartialEq, Eq)]
    pub struct FilterConfig "An array of tables: `[[filters]]`. A client key is looked up in all of them ([filters](filters.md)). At least one filter or one [list](#lists) is required.", check {
        pub name: String as Name => AtOnce
            "Name in logs, metrics, `Client-Key-Status` and `keygate filter accept`.",
        pub path: PathBuf => AtOnce
            "File in the `pkbfv1` format. No other filter or list has the same one. A file with the same name and the suffix `.sha256` is checked if it exists.",
        pub max_size: u64 as SizeText = "1073741848B" => AtOnce
            "Maximum file size. A larger file is rejected before it is read. The default is 2^33 bits and the header.",
        pub max_age: Option<Duration> as Option<Positive> => AtOnce
            "Age, by the header, above which the filter is reported as stale.",
        pub rollback: Rollback = "refuse" => AtOnce
            "Handling of a file that is older than the previous one, by its header.",
        pub implausible: Implausible = "refuse" => AtOnce
            "Handling of a file whose bits its own header cannot explain.",
        pub canaries: Vec<PathBuf> = [] => AtOnce
            "Files with keys that must be in the filter.",
        pub max_new_hits: Option<usize> => AtOnce
            "Maximum number of recently admitted clients that an update may reject. An update above it waits for `keygate filter accept`, across restarts with `state.dir`. keygate records clients only if a filter, list, service or authorizer has this key at the start, so the first such key needs a restart; the log warns of it.",
        pub related_exponents: RsaExponents as Exponents = [3, 65537] => AtOnce
            "Public exponents with which the modulus of an RSA key is looked up, besides the presented one: any of 3, 5, 17, 35, 37, 257 and 65537. Each [adds the false-positive rate](filters.md#related-exponents) of the filter once more.",
        pub minisign_key: Option<PathBuf> => AtOnce
            "File with public keys of minisign. The file needs a valid [signature](filters.md#signatures) of one of them, with its name and the suffix `.minisig`.",
        /// Where `keygate fetch` downloads the file; `None` downloads none.
        pub source: Option<FetchConfig>,
    }
}

words! {
    /// How to treat a filter or blocklist that is older than the previous one.
    pub enum Rollback {
        /// The file is activated.
        Allow = "allow",
        /// The file is rejected.
        Refuse = "refuse",
    }
}

words! {
    /// How to treat a filter file whose header does not explain its bits.
    pub enum Implausible {
        /// The file is rejected.
        Refuse = "refuse",
        /// The file is activated, and a warning is logged.
        Warn = "warn",
    }
}

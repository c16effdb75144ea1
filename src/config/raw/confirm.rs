//! The table of the source of proofs as it is written.

use std::path::PathBuf;

/// Number of questions a second.
pub(in crate::config) type QuestionRate = Bounded<u32, 1, 1000>;

use super::super::keys::table;
use super::super::units::{Bounded, DurationText, Positive};

table! {
    pub(in crate::config) struct RawConfirm "Questions about keys that are in a filter ([confirmation](confirm.md)). Without the table, nothing is ever asked. The files that it names are watched; a file that becomes unusable is logged, and its last good content stays in use." {
        pub(in crate::config) filters: Vec<String> = [] => Restart
            "Names of the filters whose hits the source can clear. May be left out with one filter. A key that another filter has as well is never cleared.",
        pub(in crate::config) url: Option<String> => Restart
            "Base URL of the source: `https://v1.pwnedkeys.com`, or a mirror. keygate sends `GET URL/FINGERPRINT`. With `http://` to another machine, proofs count and 404 does not. `url`, `proofs` or both are required.",
        pub(in crate::config) trust_anchors: Option<PathBuf> => Restart
            "PEM file of the CAs that may issue the certificate of the source. Required with `https://`; not used with `http://`.",
        pub(in crate::config) api_key: Option<PathBuf> => Restart
            "File with the key that is sent as `Authorization: Bearer`. The same permissions are expected as for a private key. Needs a `url` with `https://`, or with `http://` to this machine.",
        pub(in crate::config) proofs: Option<PathBuf> => Restart
            "Directory with proofs, consulted before `url`. A proof has the name of the fingerprint, alone or with `.jws` or `.json`. With no `url`, nothing leaves the machine.",
        pub(in crate::config) directory_is_complete: bool = false => Restart
            "Whether a key without a proof in the directory is cleared. Needs the canary in the directory. Not with `url`.",
        pub(in crate::config) canary: PathBuf = "published" => Restart
            "Keys that the source must know, or it clears no key: `published` (the example keys of pwnedkeys.com), the path of a file with up to four certificates or keys, or `off` (404 clears no key).",
        pub(in crate::config) wait: DurationText = "2s" => Restart
            r#"Maximum time for which a connection is held for an answer. `"0s"` holds none."#,
        pub(in crate::config) timeout: Positive = "5s" => Restart
            "Maximum time for one question, from the look-up of the name to the last byte.",
        pub(in crate::config) cleared_ttl: Positive = "24h" => Restart
            "Time after which a cleared key is asked about again.",
        pub(in crate::config) stale_for: DurationText = "7d" => Restart
            "Time after `cleared_ttl` for which a key stays cleared while no source answers. Afterwards it is probable again.",
        pub(in crate::config) rate: QuestionRate = 1 => Restart
            "Maximum number of questions a second, after a burst of 10.",
    }
}

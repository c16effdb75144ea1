//! The model of the source of proofs.

use std::path::{Path, PathBuf};
use std::time::Duration;

use super::SourceUrl;
use super::keys::table;
use super::units::{Bounded, DurationText, Positive};
use super::urls::BaseUrl;

/// Number of questions a second.
type QuestionRate = Bounded<u32, 1, 1000>;

table! {
    /// The source that is asked whether a probably compromised key is compromised.
    #[derive(Clone, PartialEq, Eq)]
    pub struct ConfirmConfig "Questions about keys that are in a filter ([confirmation](confirm.md)). Without the table, nothing is ever asked. The files that it names are watched; a file that becomes unusable is logged, and its last good content stays in use.", check {
        pub filters: Vec<String> = [] => Restart
            "Names of the filters whose hits the source can clear. May be left out with one filter. A key that another filter has as well is never cleared.",
        pub url: Option<SourceUrl> as Option<BaseUrl> => Restart
            "Base URL of the source: `https://v1.pwnedkeys.com`, or a mirror. keygate sends `GET URL/FINGERPRINT`. With `http://` to another machine, proofs count and 404 does not. `url`, `proofs` or both are required.",
        pub trust_anchors: Option<PathBuf> => Restart
            "PEM file of the CAs that may issue the certificate of the source. Required with `https://`; not used with `http://`.",
        pub api_key: Option<PathBuf> => Restart
            "File with the key that is sent as `Authorization: Bearer`. The same permissions are expected as for a private key. Needs a `url` with `https://`, or with `http://` to this machine.",
        pub proofs: Option<PathBuf> => Restart
            "Directory with proofs, consulted before `url`. A proof has the name of the fingerprint, alone or with `.jws` or `.json`. With no `url`, nothing leaves the machine.",
        pub directory_is_complete: bool = false => Restart
            "Whether a key without a proof in the directory is cleared. Needs the canary in the directory. Not with `url`.",
        pub canary: CanaryConfig = "published" => Restart
            "Keys that the source must know, or it clears no key: `published` (the example keys of pwnedkeys.com), the path of a file with up to four certificates or keys, or `off` (404 clears no key).",
        pub wait: Duration as DurationText = "2s" => Restart
            r#"Maximum time for which a connection is held for an answer. `"0s"` holds none."#,
        pub timeout: Duration as Positive = "5s" => Restart
            "Maximum time for one question, from the look-up of the name to the last byte.",
        pub cleared_ttl: Duration as Positive = "24h" => Restart
            "Time after which a cleared key is asked about again.",
        pub stale_for: Duration as DurationText = "7d" => Restart
            "Time after `cleared_ttl` for which a key stays cleared while no source answers. Afterwards it is probable again.",
        pub rate: u32 as QuestionRate = 1 => Restart
            "Maximum number of questions a second, after a burst of 10.",
    }
}

/// Keys that a source must know before it can clear others.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CanaryConfig {
    /// The keys in a file.
    File(PathBuf),
    /// None: the source clears no key.
    Off,
    /// The two example keys of pwnedkeys.com, which its API always knows.
    Published,
}

impl ConfirmConfig {
    /// The files that the table names.
    pub(super) fn files(&self) -> impl Iterator<Item = &Path> {
        let canary = match &self.canary {
            CanaryConfig::File(path) => Some(path),
            CanaryConfig::Off | CanaryConfig::Published => None,
        };
        let files = [self.trust_anchors.as_ref(), self.api_key.as_ref(), canary];
        files.into_iter().flatten().map(PathBuf::as_path)
    }
}

//! A list in use.

use std::path::Path;

use keygate_core::guard::ExactList;
use serde::Serialize;

use super::{DryRunReport, ReloadReport, SignatureReport};
use crate::snapshot::load::signed::LoadedList;

/// A list in use and the last attempt to read its file.
#[derive(Debug, Clone, Serialize)]
pub struct ListReport {
    /// Name of the list.
    pub name: String,
    /// Path of the file.
    pub path: String,
    /// `badkeys` or `fingerprints`.
    pub format: &'static str,
    /// Number of entries.
    pub entries: usize,
    /// Date of a blocklist by its metadata, in seconds since the Unix epoch.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub updated: Option<u64>,
    /// SHA-256 of a blocklist, in hex.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sha256: Option<String>,
    /// The signature of the list in use, if `minisign_key` is set.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub signature: Option<SignatureReport>,
    /// Whether the list is older than `max_age`, or of unknown age.
    pub stale: bool,
    /// Whether the list comes from the state directory, because its file was rejected at the start.
    pub last_good_in_use: bool,
    /// The update that waits.
    #[serde(flatten)]
    pub dry_run: DryRunReport,
    /// The last attempt to read the file.
    pub last_reload: ReloadReport,
}

impl ListReport {
    /// A list read from `path`.
    pub(in crate::snapshot) fn new(
        LoadedList { list, signed, .. }: &LoadedList,
        path: &Path,
        stale: bool,
        last_reload: ReloadReport,
    ) -> Self {
        let (format, updated, sha256) = match list {
            ExactList::Badkeys(list) => {
                ("badkeys", list.date, Some(data_encoding::HEXLOWER.encode(&list.sha256)))
            }
            ExactList::Fingerprints(_) => ("fingerprints", None, None),
        };
        let (name, path) = (list.name().to_string(), path.display().to_string());
        let signature = signed.as_ref().map(|signed| SignatureReport::of(&signed.signature));
        Self {
            name,
            path,
            format,
            entries: list.len(),
            updated,
            sha256,
            signature,
            stale,
            last_good_in_use: false,
            dry_run: DryRunReport::default(),
            last_reload,
        }
    }
}

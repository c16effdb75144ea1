//! A list in use.

use serde::Serialize;

use super::{DryRunReport, ReloadReport, SignatureReport};

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

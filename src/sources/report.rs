//! Reports on the files in use and the last reload of each, for `/status` and the status page.
//!
//! Times are in seconds since the Unix epoch.

mod credentials;

use std::fmt;
use std::path::Path;

use keygate_core::pkbf::FilterSummary;
use keygate_core::signature::FileSignature;
use serde::Serialize;

pub use self::credentials::{AuthorizerReport, CrlReport, PolicyReport, ServiceReport};
use crate::metrics::{Label, ReloadResult};
pub use crate::saved_state::{AffectedClient, WaitingReport};
use crate::sources::check::dry_run::NewHits;

/// Result of an attempt to read a file.
#[derive(Debug, Clone, Serialize)]
pub struct ReloadReport {
    /// `loaded`, `unchanged` or `refused`.
    pub result: &'static str,
    /// Class of the rejection of a filter or of a CRL.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<&'static str>,
    /// Why the file was rejected.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// When the attempt was made.
    pub at: u64,
    /// The files of the last update of a service, such as `a.crl (CN=CA, CRL number 7)`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub files: Option<String>,
}

impl ReloadReport {
    /// An attempt at the time `at` without an error.
    pub(super) fn done(result: ReloadResult, at: u64) -> Self {
        Self { result: result.as_str(), reason: None, error: None, at, files: None }
    }

    /// An attempt at the time `at` that ended with a rejection.
    pub(super) fn rejected(reason: Option<&'static str>, error: String, at: u64) -> Self {
        let result = ReloadResult::Rejected.as_str();
        Self { result, reason, error: Some(error), at, files: None }
    }

    /// Adds an attempt to read other files of the same service. A rejection counts more than a later
    /// success.
    pub(super) fn join(&mut self, other: Self) {
        match (&mut self.error, other.error.as_ref()) {
            (Some(error), Some(text)) => *error = [error.as_str(), text.as_str()].join("; "),
            (Some(_), None) => {}
            (None, Some(_)) => *self = other,
            (None, None) => self.at = self.at.max(other.at),
        }
    }
}

/// An exception, and whether it has expired.
#[derive(Debug, Clone, Serialize)]
pub struct ExceptionReport {
    /// Fingerprint of the key, or `rsa-modulus:` or `ec-x:` and a digest, in hex.
    pub fingerprint: String,
    /// When the exception expires.
    pub until: u64,
    /// Reason in the configuration.
    pub reason: String,
    /// Whether the exception has expired.
    pub expired: bool,
}

/// A filter in use and the last attempt to read its file.
#[derive(Debug, Clone, Serialize)]
pub struct FilterReport {
    /// Name of the filter.
    pub name: String,
    /// Properties of the filter in use.
    #[serde(flatten)]
    pub summary: FilterSummary,
    /// When the filter was put in use.
    pub loaded: u64,
    /// Whether the filter is older than `max_age`.
    pub stale: bool,
    /// Whether the filter comes from the state directory, because its file was rejected at the
    /// start.
    pub last_good_in_use: bool,
    /// The last attempt to read the file.
    pub last_reload: ReloadReport,
    /// The last attempt that ended with a rejection.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_rejection: Option<ReloadReport>,
    /// The update that waits.
    #[serde(flatten)]
    pub dry_run: DryRunReport,
    /// The signature of the filter in use, if `minisign_key` is set.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub signature: Option<SignatureReport>,
}

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
    /// When the list was put in use.
    pub loaded: u64,
    /// Date of a blocklist by its metadata, in seconds since the Unix epoch.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub updated: Option<u64>,
    /// SHA-256 of the file, in hex.
    pub sha256: String,
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

/// A signature that was verified.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct SignatureReport {
    /// The id of the key that made the signature, in hex.
    pub key_id: String,
    /// The trusted comment, at most 200 characters of it.
    pub comment: String,
}

impl SignatureReport {
    /// A verified signature.
    pub(crate) fn new(signature: &FileSignature) -> Self {
        Self { key_id: signature.key_id(), comment: signature.comment() }
    }
}

impl fmt::Display for SignatureReport {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{} ({})", self.key_id, self.comment)
    }
}

/// The update that waits, and what the last dry run could not check.
#[derive(Debug, Clone, Default, Serialize)]
pub struct DryRunReport {
    /// The update that waits for the operator. The file may have another content meanwhile.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub waiting: Option<WaitingReport>,
    /// Whether the file has the update that waits, so that it can be accepted.
    pub acceptable: bool,
    /// Why `max_new_hits` was not checked for what is in use.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_new_hits: Option<String>,
}

impl WaitingReport {
    /// The clients as one text, for a log line.
    pub(crate) fn client_list(&self) -> String {
        client_list(&self.clients)
    }

    /// The update of a file without entries.
    pub(crate) fn new(sha256: String, new_hits: NewHits, max_new_hits: Option<usize>) -> Self {
        let NewHits { count: new_hits, clients } = new_hits;
        Self { sha256, new_hits, max_new_hits, clients, ..Self::default() }
    }

    /// Whether this is the update of the file of a service at `path`.
    pub(crate) fn is_of(&self, path: &Path) -> bool {
        self.path.as_deref() == Some(&*path.display().to_string())
    }
}

/// The clients as one text.
pub(crate) fn client_list(clients: &[AffectedClient]) -> String {
    clients.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

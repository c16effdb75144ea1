//! A filter in use, its signature, and the update of it that waits for the operator.

use std::path::Path;

use keygate_core::pkbf::FilterSummary;
use keygate_core::signature::FileSignature;
use serde::Serialize;

use super::ReloadReport;
use crate::saved_state::{AffectedClient, WaitingReport};
use crate::sources::check::dry_run::NewHits;

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

impl std::fmt::Display for SignatureReport {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "{} ({})", self.key_id, self.comment)
    }
}

/// The last trial of an update on recent clients.
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

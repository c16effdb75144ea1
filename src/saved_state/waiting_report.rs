//! An update that waits for the operator, as the state file and reports have it.

use serde::{Deserialize, Serialize};

/// Maximum number of clients that a report names.
pub(crate) const MAX_NAMED: usize = 20;

/// An update that waits for the operator.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct WaitingReport {
    /// SHA-256 of the file, in hex. For several files of a service, the SHA-256 of their digests,
    /// one after the other.
    pub sha256: String,
    /// Path of the first file of a service; `None` for a filter or list.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    /// Revision in the header of a filter; 0 of a list.
    #[serde(default)]
    pub revision: u32,
    /// Last change according to the header of a filter or the metadata of a blocklist; 0 if it is
    /// not known.
    #[serde(default)]
    pub updated: u64,
    /// Number of entries; 0 of a file of a service.
    pub entries: u64,
    /// The largest number of entries that was in use in the last seven days.
    #[serde(default)]
    pub entries_before: u64,
    /// Number of recent clients that the update would reject.
    pub new_hits: usize,
    /// New hits of earlier updates of the last seven days.
    #[serde(default)]
    pub hits_before: usize,
    /// Limit in the configuration, if there is one.
    pub max_new_hits: Option<usize>,
    /// Some of the recent clients that the update would reject.
    pub clients: Vec<AffectedClient>,
    /// Whether no CA would have a CRL, so that every client would be rejected.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub without_crls: bool,
}

/// A recent client that an update would reject.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AffectedClient {
    /// Name of the service that admitted the client.
    pub service: String,
    /// Fingerprint of the client's own key, in hex.
    pub fingerprint: String,
    /// Subject of the client's certificate, or the first other name of one without a subject.
    pub subject: String,
}

impl std::fmt::Display for AffectedClient {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "{} {} ({})", self.fingerprint, self.subject, self.service)
    }
}

//! A service in use.

use keygate_core::tls::AnchorCounts;
use serde::Serialize;

use super::{CrlReport, DryRunReport, PolicyReport, ReloadReport};

/// A service in use and the last attempt to read its files.
#[derive(Debug, Clone, Serialize)]
pub struct ServiceReport {
    /// Name of the service.
    pub name: String,
    /// Address that the service listens on, as configured.
    pub listen: String,
    /// Server names; empty for the default service of an address.
    pub server_names: Vec<String>,
    /// Addresses of the upstream servers.
    pub upstream: Vec<String>,
    /// Maximum number of open client connections.
    pub max_connections: usize,
    /// The action for each verdict.
    #[serde(flatten)]
    pub policy: PolicyReport,
    /// When the server certificate expires.
    pub certificate_not_after: u64,
    /// Expiry of the client CA that expires first, in seconds since the Unix epoch.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub trust_anchor_not_after: Option<u64>,
    /// The numbers of roots, intermediates and pinned certificates in `client_auth.trust_anchors` and `client_auth.cas`.
    pub trust_anchors: AnchorCounts,
    /// Number of certificates in `client_auth.intermediates`.
    #[serde(skip)]
    pub intermediates: usize,
    /// When the client certificate for the upstream expires.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub upstream_certificate_not_after: Option<u64>,
    /// When the first CRL expires.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub crl_next_update: Option<u64>,
    /// The CRLs in use.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub crls: Vec<CrlReport>,
    /// The last attempt to read the files of the service.
    pub last_reload: ReloadReport,
    /// The first update of CAs or CRLs that waits.
    #[serde(flatten)]
    pub dry_run: DryRunReport,
}

//! Reports on the services and authorizers in use.

use std::path::Path;

use keygate_core::guard::Policy;
use keygate_core::tls::{AnchorCounts, Crls, RevocationList};
use serde::Serialize;

use super::{DryRunReport, ReloadReport};
use crate::sources::last_question::LastQuestion;

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

/// An authorizer and the last attempt to read its files.
#[derive(Debug, Clone, Serialize)]
pub struct AuthorizerReport {
    /// Name of the authorizer.
    pub name: String,
    /// Address that askers connect to.
    pub listen: String,
    /// Protocol of the questions.
    pub protocol: &'static str,
    /// Where a question has the client's certificate.
    pub certificate_from: String,
    /// Whether the authorizer verifies the certificates of clients itself.
    pub verifies: bool,
    /// The action for each verdict.
    #[serde(flatten)]
    pub policy: PolicyReport,
    /// When the last question was asked; `null` before the first one.
    pub last_question: LastQuestion,
    /// When the own certificate expires; `null` without TLS.
    pub certificate_not_after: Option<u64>,
    /// When the first CA of clients or askers expires.
    pub trust_anchor_not_after: Option<u64>,
    /// The numbers of roots, intermediates and pinned certificates in `client_auth.trust_anchors`.
    pub trust_anchors: AnchorCounts,
    /// Number of certificates in `client_auth.intermediates`.
    #[serde(skip)]
    pub intermediates: usize,
    /// When the first CRL expires.
    pub crl_next_update: Option<u64>,
    /// The CRLs in use.
    pub crls: Vec<CrlReport>,
    /// The last attempt to read the files.
    pub last_reload: ReloadReport,
    /// The first update of CAs or CRLs that waits.
    #[serde(flatten)]
    pub dry_run: DryRunReport,
}

/// The actions of a service or authorizer by verdict.
#[derive(Debug, Clone, Serialize)]
pub struct PolicyReport {
    /// The action for a key that the source of proofs clears.
    pub on_cleared: &'static str,
    /// The action for a key whose compromise is proved.
    pub on_confirmed: &'static str,
    /// The action for a key on a list.
    pub on_listed: &'static str,
    /// The action for a key in a filter.
    pub on_probable: &'static str,
    /// The action for a client whose key cannot be checked.
    pub on_unchecked: &'static str,
    /// The action for an RSA key that anybody can factor.
    pub on_weak: &'static str,
    /// Number of rules by name; `null` without them, when every client of the CAs is admitted.
    pub rules: Option<usize>,
    /// The first rules by name.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub first_rules: Vec<String>,
}

impl PolicyReport {
    pub(crate) fn new(policy: &Policy) -> Self {
        let (rules, first) = policy.allow.as_ref().map(|allow| allow.summary()).unzip();
        Self {
            rules,
            first_rules: first.unwrap_or_default().to_vec(),
            on_cleared: policy.on_cleared.as_str(),
            on_confirmed: policy.on_confirmed.as_str(),
            on_listed: policy.on_listed.as_str(),
            on_probable: policy.on_probable.as_str(),
            on_unchecked: policy.on_unchecked.as_str(),
            on_weak: policy.on_weak.as_str(),
        }
    }
}

/// A CRL in use.
#[derive(Debug, Clone, Serialize)]
pub struct CrlReport {
    /// Distinguished name of the issuer.
    pub issuer: String,
    /// The distribution point that the CRL is limited to.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub distribution_point: Option<String>,
    /// Path of the file.
    pub path: String,
    /// CRL number; hexadecimal after `0x` if it has more than 64 bits.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub number: Option<String>,
    /// When the CRL was issued.
    pub this_update: u64,
    /// When the CRL expires.
    pub next_update: u64,
    /// Number of revoked certificates.
    pub entries: usize,
}

impl CrlReport {
    /// All CRLs of a service or authorizer.
    pub(crate) fn all(crls: &Crls) -> Vec<Self> {
        crls.lists().into_iter().map(|(list, path)| Self::new(list, path)).collect()
    }

    /// The CRL `list`, read from `path`.
    fn new(list: &RevocationList, path: &Path) -> Self {
        Self {
            issuer: list.issuer.clone(),
            distribution_point: list.distribution_point(),
            path: path.display().to_string(),
            number: list.version.number.map(|number| number.to_string()),
            this_update: list.version.this_update,
            next_update: list.next_update,
            entries: list.entries(),
        }
    }
}

//! An authorizer in use.

use keygate_core::tls::AnchorCounts;
use serde::Serialize;

use super::{CrlReport, DryRunReport, PolicyReport, ReloadReport};
use crate::sources::last_question::LastQuestion;

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

//! An authorizer in use.

use keygate_core::tls::{AnchorCounts, Crls};
use serde::Serialize;

use super::{CertificateExpiry, CrlReport, DryRunReport, PolicyReport, ReloadReport};
use crate::config::AuthorizerConfig;
use crate::snapshot::last_question::LastQuestion;

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

impl AuthorizerReport {
    /// An authorizer with this `config`.
    pub(in crate::snapshot) fn new(
        config: &AuthorizerConfig,
        expiry: CertificateExpiry,
        crls: &Crls,
        last_question: LastQuestion,
        last_reload: ReloadReport,
    ) -> Self {
        Self {
            name: config.name.clone(),
            listen: config.listen.to_string(),
            protocol: config.protocol.as_str(),
            certificate_from: config.certificate_from.to_string(),
            verifies: config.client_auth.trust_anchors.is_some(),
            policy: PolicyReport::new(&config.policy),
            last_question,
            certificate_not_after: expiry.server,
            trust_anchor_not_after: expiry.trust_anchor,
            trust_anchors: expiry.anchors,
            crl_next_update: expiry.crl,
            crls: CrlReport::all(crls),
            last_reload,
            dry_run: DryRunReport::default(),
        }
    }
}

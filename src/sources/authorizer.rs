//! An authorizer: its configuration, and the last good state of its files.

use keygate_core::tls::CertificateRole;

use super::credential_source::CredentialSource;
use crate::config::AuthorizerConfig;
use crate::sources::report::{AuthorizerReport, CrlReport, PolicyReport};

/// A configured authorizer and the last good state of its files.
pub(crate) type AuthorizerSource = CredentialSource<AuthorizerConfig>;

impl AuthorizerSource {
    /// The authorizer and the result of the last attempt to read its files.
    pub(crate) fn report(&self) -> AuthorizerReport {
        let (config, crls) = (&self.config, self.credentials.crls());
        AuthorizerReport {
            name: config.name.clone(),
            listen: config.listen.to_string(),
            protocol: config.protocol.as_str(),
            certificate_from: config.certificate_from.to_string(),
            verifies: config.client_auth.has_cas(),
            policy: PolicyReport::new(&config.policy),
            last_question: self.last_question.clone(),
            certificate_not_after: self.expiry(CertificateRole::Server),
            trust_anchor_not_after: self.expiry(CertificateRole::TrustAnchor),
            trust_anchors: self.anchor_counts(),
            intermediates: self.credentials.intermediates().len(),
            crl_next_update: crls.next_update(),
            crls: CrlReport::all(crls),
            last_reload: self.last_reload(),
            dry_run: self.gates.report(),
        }
    }
}

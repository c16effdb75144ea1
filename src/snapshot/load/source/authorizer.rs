//! An authorizer: its configuration, and the last good state of its files.

use std::sync::Arc;

use keygate_core::guard::CurrentGuard;
use keygate_core::tls::{self, CertificateRole, ClientVerifier};

use super::credential_source::CredentialSource;
use crate::config::AuthorizerConfig;
use crate::snapshot::current::{AskerTls, Authorizer};
use crate::snapshot::load::error::LoadError;
use crate::snapshot::report::{AuthorizerReport, CrlReport, PolicyReport};

/// A configured authorizer and the last good state of its files.
pub(crate) type AuthorizerSource = CredentialSource<AuthorizerConfig>;

impl AuthorizerSource {
    /// Builds the authorizer of the next snapshot. The handshakes of askers judge keys with
    /// `guard`.
    ///
    /// # Errors
    /// Returns an error if rustls rejects the certificates or keys.
    pub(crate) fn build_authorizer(&self, guard: &CurrentGuard) -> Result<Authorizer, LoadError> {
        let credentials = &self.credentials;
        let tls = self.config.tls.as_ref().zip(credentials.key_pair());
        let tls = tls.map(|(tls, server)| {
            let anchors = credentials.asker_ca.get().as_ref();
            let verifier =
                anchors.map(|anchors| Arc::new(ClientVerifier::new(Arc::clone(anchors))));
            let settings = tls.server_settings(self.config.protocol);
            let config = tls::asker_config(settings, Arc::clone(server), verifier.as_ref(), guard)
                .map_err(|source| self.tls_error(source))?;
            Ok(AskerTls { config: Arc::new(config), verifier })
        });
        Ok(Authorizer {
            id: self.id,
            config: Arc::clone(&self.config),
            client_verifier: credentials.client_verifier.clone(),
            tls: tls.transpose()?,
            last_question: self.last_question.clone(),
        })
    }

    /// The authorizer and the result of the last attempt to read its files.
    pub(crate) fn report(&self) -> AuthorizerReport {
        let (config, crls) = (&self.config, self.credentials.crls());
        AuthorizerReport {
            name: config.name.clone(),
            listen: config.listen.to_string(),
            protocol: config.protocol.as_str(),
            certificate_from: config.certificate_from.to_string(),
            verifies: config.client_auth.trust_anchors.is_some(),
            policy: PolicyReport::new(&config.policy),
            last_question: self.last_question.clone(),
            certificate_not_after: self.expiry(CertificateRole::Server),
            trust_anchor_not_after: self.expiry(CertificateRole::TrustAnchor),
            trust_anchors: self.anchor_counts(),
            crl_next_update: crls.next_update(),
            crls: CrlReport::all(crls),
            last_reload: self.last_reload(),
            dry_run: self.gates.report(),
        }
    }
}

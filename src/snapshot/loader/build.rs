//! The services and authorizers of the next snapshot.

use std::sync::Arc;

use keygate_core::guard::CurrentGuard;
use keygate_core::tls::{self, ClientVerifier, Deferral, KeyVerifier, ServerSettings};

use crate::config::{AuthorizerConfig, ServiceConfig};
use crate::snapshot::current::{AskerTls, Authorizer, Service};
use crate::sources::LoadError;
use crate::sources::credential_source::CredentialSource;

impl CredentialSource {
    /// Builds the service of the next snapshot, whose handshakes judge keys with `guard`.
    /// `deferral` selects the rejected clients that complete their handshakes. `judging` is the
    /// digest of the filters and lists of the guard.
    ///
    /// # Errors
    /// Returns an error if rustls rejects the certificates or keys.
    pub(crate) fn build_service(
        &self,
        config: &Arc<ServiceConfig>,
        (guard, judging): (&CurrentGuard, [u8; 32]),
        deferral: Option<&Arc<dyn Deferral>>,
    ) -> Result<Service, LoadError> {
        let credentials = &self.credentials;
        let Some(client_verifier) = &credentials.client_verifier else {
            return Err(self.tls_error(rustls::Error::NoCertificatesPresented));
        };
        let policy = config.policy.decisions.clone();
        let clients = KeyVerifier::new(client_verifier.clone(), guard.clone(), policy);
        let tls = tls::server_config(
            config.tls.server_settings(),
            credentials.key_pairs().map(Arc::clone).collect(),
            clients.with_deferral(deferral.cloned()),
            self.shared_tickets(judging)?,
        )
        .map_err(|source| self.tls_error(source))?;
        Ok(Service {
            id: self.id,
            config: Arc::clone(config),
            client_verifier: Arc::clone(client_verifier),
            tls,
            upstream_tls: credentials.upstream.get().as_ref().map(|it| Arc::clone(&it.tls)),
            assertions: credentials.signing_keys.get().assertions(&config.policy, &config.name),
        })
    }

    /// Builds the authorizer of the next snapshot. The handshakes of askers judge keys with
    /// `guard`.
    ///
    /// # Errors
    /// Returns an error if rustls rejects the certificates or keys.
    pub(crate) fn build_authorizer(
        &self,
        config: &Arc<AuthorizerConfig>,
        guard: &CurrentGuard,
    ) -> Result<Authorizer, LoadError> {
        let credentials = &self.credentials;
        let settings = config.tls.as_ref().map(|tls| tls.server_settings(config.protocol));
        let tls = settings.map(|settings| self.build_asker_tls(settings, guard));
        Ok(Authorizer {
            id: self.id,
            config: Arc::clone(config),
            client_verifier: credentials.client_verifier.clone(),
            tls: tls.transpose()?.flatten(),
            webhooks: credentials.webhooks.get().clone(),
            assertions: credentials.signing_keys.get().assertions(&config.policy, &config.name),
            last_question: self.last_question.clone(),
        })
    }

    /// Builds TLS towards askers or readers, whose keys are judged with `guard`. `None` without a
    /// certificate.
    ///
    /// # Errors
    /// Returns an error if rustls rejects the certificate or the key.
    pub(crate) fn build_asker_tls(
        &self,
        settings: ServerSettings<'_>,
        guard: &CurrentGuard,
    ) -> Result<Option<AskerTls>, LoadError> {
        let Some(server) = self.credentials.key_pair() else { return Ok(None) };
        let anchors = self.credentials.asker_ca.get().as_ref();
        let verifier = anchors.map(|anchors| Arc::new(ClientVerifier::new(Arc::clone(anchors))));
        let tls = tls::asker_config(settings, Arc::clone(server), verifier.as_ref(), guard)
            .map_err(|source| self.tls_error(source))?;
        Ok(Some(AskerTls { config: Arc::new(tls), verifier }))
    }
}

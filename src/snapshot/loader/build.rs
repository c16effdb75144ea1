//! The services and authorizers of the next snapshot.

use std::sync::Arc;

use keygate_core::guard::CurrentGuard;
use keygate_core::tls::{self, ClientVerifier, Deferral, Judging};

use crate::snapshot::current::{AskerTls, Authorizer, Service};
use crate::sources::{AuthorizerSource, LoadError, ServiceSource};

impl ServiceSource {
    /// Builds the service of the next snapshot, whose handshakes judge keys with `guard`.
    /// `deferral` selects the rejected clients that complete their handshakes.
    ///
    /// # Errors
    /// Returns an error if rustls rejects the certificates or keys.
    pub(crate) fn build(
        &self,
        guard: &CurrentGuard,
        deferral: Option<&Arc<dyn Deferral>>,
    ) -> Result<Service, LoadError> {
        let credentials = &self.credentials;
        let Some(client_verifier) = &credentials.client_verifier else {
            return Err(self.tls_error(rustls::Error::NoCertificatesPresented));
        };
        let tls = tls::server_config(
            self.config.tls.server_settings(),
            credentials.key_pairs().map(Arc::clone).collect(),
            Arc::clone(client_verifier),
            Judging {
                guard: guard.clone(),
                policy: self.config.policy.clone(),
                deferral: deferral.cloned(),
            },
        )
        .map_err(|source| self.tls_error(source))?;
        Ok(Service {
            id: self.id,
            config: Arc::clone(&self.config),
            client_verifier: Arc::clone(client_verifier),
            tls,
            upstream_tls: credentials.upstream.get().as_ref().map(|it| Arc::clone(&it.tls)),
        })
    }
}

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
            Ok::<_, LoadError>(AskerTls { config: Arc::new(config), verifier })
        });
        Ok(Authorizer {
            id: self.id,
            config: Arc::clone(&self.config),
            client_verifier: credentials.client_verifier.clone(),
            tls: tls.transpose()?,
            last_question: self.last_question.clone(),
        })
    }
}

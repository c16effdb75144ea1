//! An authorizer: its configuration, and the last good state of its files.

use std::sync::Arc;

use crate::config::AuthorizerConfig;
use crate::snapshot::current::Authorizer;

/// A configured authorizer and the last good state of its files.
#[derive(Debug)]
pub(crate) struct AuthorizerSource {
    id: usize,
    config: Arc<AuthorizerConfig>,
}

impl AuthorizerSource {
    /// Reads the files of an authorizer for the first time.
    pub(super) fn load(id: usize, config: AuthorizerConfig) -> Self {
        Self { id, config: Arc::new(config) }
    }

    pub(super) fn id(&self) -> usize {
        self.id
    }

    pub(super) fn config(&self) -> &AuthorizerConfig {
        &self.config
    }

    /// The authorizer for the next snapshot.
    pub(crate) fn build(&self) -> Authorizer {
        let config = Arc::clone(&self.config);
        Authorizer { id: self.id, config, client_verifier: None, tls: None }
    }
}

//! Which clients a service accepts, before anything is known of their keys.

use std::sync::Arc;

use rustls::crypto::aws_lc_rs::default_provider;
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::ClientCertVerifier;

use super::{Crls, TrustAnchors};
use crate::config::{ClientAuthMode, ExpiredCrl};
use crate::guard::Depth;

/// Which certificates a service accepts.
#[derive(Debug)]
pub struct ClientAuth<'a> {
    /// The CAs.
    pub trust_anchors: &'a TrustAnchors,
    /// What they have taken back.
    pub crls: &'a Crls,
    /// What a list counts for that is no longer up to date.
    pub expired_crl: ExpiredCrl,
    /// Whether a certificate is needed.
    pub mode: ClientAuthMode,
    /// How far up the chain the lists are asked.
    pub depth: Depth,
}

impl ClientAuth<'_> {
    /// What checks chains, dates, revocation and the proof of possession.
    ///
    /// # Errors
    /// The trust anchors or the lists are of no use to rustls.
    pub fn verifier(&self) -> Result<Arc<dyn ClientCertVerifier>, rustls::Error> {
        let store = Arc::clone(&self.trust_anchors.store);
        let provider = Arc::new(default_provider());
        let mut verifier = WebPkiClientVerifier::builder_with_provider(store, provider)
            .with_crls(self.crls.lists.iter().cloned());
        if self.mode == ClientAuthMode::Optional {
            verifier = verifier.allow_unauthenticated();
        }
        if self.depth == Depth::Leaf {
            verifier = verifier.only_check_end_entity_revocation();
        }
        if self.expired_crl == ExpiredCrl::Reject {
            verifier = verifier.enforce_revocation_expiration();
        }
        verifier.build().map_err(|error| rustls::Error::General(error.to_string()))
    }
}

//! The usual checks of client certificates, before their keys are judged.

use std::sync::Arc;

use rustls::crypto::aws_lc_rs::default_provider;
use rustls::server::danger::ClientCertVerifier;
use rustls::server::{VerifierBuilderError, WebPkiClientVerifier};

use super::{Crls, TrustAnchors};
use crate::config::{ClientAuthMode, ExpiredCrl};
use crate::guard::Depth;

/// The certificates that a service accepts.
#[derive(Debug)]
pub struct ClientAuth<'a> {
    /// The CAs that may issue client certificates.
    pub trust_anchors: &'a TrustAnchors,
    /// Certificate revocation lists of these CAs.
    pub crls: &'a Crls,
    /// How to treat an expired CRL.
    pub expired_crl: ExpiredCrl,
    /// Whether a client must present a certificate.
    pub mode: ClientAuthMode,
    /// The certificates whose revocation is checked.
    pub depth: Depth,
}

impl ClientAuth<'_> {
    /// A verifier of chains, validity, revocation and proof of possession.
    ///
    /// # Errors
    /// Returns an error if rustls cannot use the trust anchors or the lists.
    pub fn verifier(&self) -> Result<Arc<dyn ClientCertVerifier>, VerifierBuilderError> {
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
        verifier.build()
    }
}

//! The rustls configuration for connections to an upstream.

use std::sync::Arc;

use rustls::crypto::aws_lc_rs::default_provider;
use rustls::sign::SingleCertAndKey;
use rustls::{ClientConfig, RootCertStore};

use super::{Credentials, TrustAnchors};

/// Builds the configuration for servers whose certificates `trust_anchors` issued. It presents
/// `identity` to servers that request a client certificate, and offers `alpn`.
///
/// # Errors
/// Returns an error if rustls cannot use the provider's protocol versions.
pub fn client_config(
    trust_anchors: &TrustAnchors,
    identity: Option<&Credentials>,
    alpn: &[&[u8]],
) -> Result<ClientConfig, rustls::Error> {
    // A server may leave out what its client knows, so that each certificate ends a path.
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(trust_anchors.certificates.iter().cloned());
    let builder = ClientConfig::builder_with_provider(Arc::new(default_provider()))
        .with_safe_default_protocol_versions()?
        .with_root_certificates(roots);
    let mut config = match identity {
        None => builder.with_no_client_auth(),
        Some(identity) => {
            let resolver = SingleCertAndKey::from(Arc::clone(identity));
            builder.with_client_cert_resolver(Arc::new(resolver))
        }
    };
    config.alpn_protocols = alpn.iter().map(|protocol| protocol.to_vec()).collect();
    Ok(config)
}

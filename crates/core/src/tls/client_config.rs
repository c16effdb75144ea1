//! The rustls configuration for connections to an upstream.

use std::sync::Arc;

use rustls::sign::SingleCertAndKey;
use rustls::{ClientConfig, RootCertStore};

use super::{Credentials, KeyExchange, TrustAnchors};

/// Builds the configuration for servers whose certificates `trust_anchors` issued. It presents
/// `identity` to servers that request a client certificate, and offers `alpn` and the groups of
/// `key_exchange`, preferred first; without any, hybrid ones first.
///
/// # Errors
/// Returns an error if rustls cannot use the provider's protocol versions.
pub fn client_config(
    trust_anchors: &TrustAnchors,
    identity: Option<&Credentials>,
    alpn: &[&[u8]],
    key_exchange: &[KeyExchange],
) -> Result<ClientConfig, rustls::Error> {
    // A server may leave out what its client knows, so that each certificate ends a path.
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(trust_anchors.certificates.iter().cloned());
    let groups =
        if key_exchange.is_empty() { &KeyExchange::HYBRID_FIRST[..] } else { key_exchange };
    let builder = ClientConfig::builder_with_provider(KeyExchange::provider(groups))
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

//! The rustls configuration of one service in one snapshot.
//!
//! Ticket keys and session cache are new with every configuration: no session crosses from one
//! service to another, none survives the snapshot that admitted it.

use std::sync::Arc;

use rustls::crypto::CryptoProvider;
use rustls::crypto::aws_lc_rs::{Ticketer, default_provider};
use rustls::server::{
    ClientCertVerifierBuilder, NoServerSessionStorage, ServerSessionMemoryCache,
    WebPkiClientVerifier,
};
use rustls::sign::SingleCertAndKey;
use rustls::{ServerConfig, SupportedProtocolVersion};

use super::{Credentials, KeyVerifier, RevocationLists, TrustAnchors};
use crate::config::{AlpnProtocol, ClientAuthMode, ExpiredCrl, TlsConfig, TlsVersion};
use crate::guard::{CurrentGuard, Depth, Policy};

/// Sessions of TLS 1.2 clients that do not take tickets; each holds the client's chain.
const CACHED_SESSIONS: usize = 1024;

/// Which clients a service accepts, before anything is known of their keys.
#[derive(Debug)]
pub struct ClientAuth<'a> {
    /// The CAs.
    pub trust_anchors: &'a TrustAnchors,
    /// What they have taken back.
    pub revoked: &'a RevocationLists,
    /// What a list counts for that is no longer up to date.
    pub expired_crl: ExpiredCrl,
    /// Whether a certificate is needed.
    pub mode: ClientAuthMode,
}

impl ClientAuth<'_> {
    fn verifier(&self, provider: Arc<CryptoProvider>, depth: Depth) -> ClientCertVerifierBuilder {
        let store = Arc::clone(&self.trust_anchors.store);
        let mut verifier = WebPkiClientVerifier::builder_with_provider(store, provider)
            .with_crls(self.revoked.lists.iter().cloned());
        if self.mode == ClientAuthMode::Optional {
            verifier = verifier.allow_unauthenticated();
        }
        if depth == Depth::Leaf {
            verifier = verifier.only_check_end_entity_revocation();
        }
        match self.expired_crl {
            ExpiredCrl::Accept => verifier,
            ExpiredCrl::Reject => verifier.enforce_revocation_expiration(),
        }
    }
}

/// Builds the configuration of a service.
///
/// # Errors
/// rustls cannot use the trust anchors, or finds no randomness for the ticket keys.
pub fn server_config(
    tls: &TlsConfig,
    credentials: Credentials,
    client_auth: &ClientAuth<'_>,
    guard: CurrentGuard,
    policy: Policy,
) -> Result<ServerConfig, rustls::Error> {
    let provider = Arc::new(default_provider());
    let inner = client_auth.verifier(Arc::clone(&provider), policy.judge);
    let inner = inner.build().map_err(|error| rustls::Error::General(error.to_string()))?;
    let verifier = KeyVerifier::new(inner, guard, policy);
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_protocol_versions(versions(tls.min_version))?
        .with_client_cert_verifier(Arc::new(verifier))
        .with_cert_resolver(Arc::new(SingleCertAndKey::from(credentials)));
    config.alpn_protocols =
        tls.alpn.iter().copied().map(AlpnProtocol::as_bytes).map(Vec::from).collect();
    if tls.resumption {
        config.ticketer = Ticketer::new()?;
        config.session_storage = ServerSessionMemoryCache::new(CACHED_SESSIONS);
    } else {
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.send_tls13_tickets = 0;
    }
    Ok(config)
}

fn versions(oldest: TlsVersion) -> &'static [&'static SupportedProtocolVersion] {
    match oldest {
        TlsVersion::V1_2 => rustls::ALL_VERSIONS,
        TlsVersion::V1_3 => &ONLY_TLS13,
    }
}

static ONLY_TLS13: [&SupportedProtocolVersion; 1] = [&rustls::version::TLS13];

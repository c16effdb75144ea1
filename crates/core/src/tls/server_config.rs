//! The rustls configuration of one service or authorizer in one snapshot.
//!
//! Each configuration has new ticket keys and a new session cache. A session is therefore never
//! resumed in another service or under a later snapshot. Shared ticket keys are derived from the
//! content of the snapshot, so a later snapshot with other content resumes none of its sessions.

use std::sync::Arc;

use rustls::crypto::aws_lc_rs::{Ticketer, default_provider};
use rustls::server::danger::ClientCertVerifier;
use rustls::server::{
    ClientHello, NoServerSessionStorage, ProducesTickets, ResolvesServerCert,
    ServerSessionMemoryCache, StoresServerSessions,
};
use rustls::sign::SingleCertAndKey;
use rustls::{NamedGroup, ServerConfig, SupportedProtocolVersion};

use super::sessions::ExpiringSessions;
use super::{
    ClientVerifier, Credentials, KeyExchange, KeyVerifier, ServerSettings, SharedTickets,
    TlsVersion,
};
use crate::guard::{CurrentGuard, Policy};

/// Maximum number of cached sessions, which TLS 1.2 clients without tickets need. Each holds the
/// client's chain.
const CACHED_SESSIONS: usize = 1024;

/// The configurations of a service, which share sessions.
#[derive(Debug)]
pub struct ServerConfigs {
    /// For a client that offers no preferred group.
    any: Arc<ServerConfig>,
    /// For a client that offers the group.
    preferred: Vec<(NamedGroup, Arc<ServerConfig>)>,
}

impl ServerConfigs {
    /// The configuration for a client that offers the groups `offered`. rustls selects the client's
    /// first choice, so the configuration has one group if the service prefers any.
    #[must_use]
    pub fn for_groups(&self, offered: &[NamedGroup]) -> &Arc<ServerConfig> {
        let preferred = self.preferred.iter().find(|(group, _)| offered.contains(group));
        preferred.map_or(&self.any, |(_, config)| config)
    }
}

/// The certificates of a service, preferred first.
#[derive(Debug)]
struct OfferedCertificates(Vec<Credentials>);

impl ResolvesServerCert for OfferedCertificates {
    /// The first certificate whose key signs with a scheme that the client offers. If there is none,
    /// the first certificate, so the handshake fails for this reason.
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Credentials> {
        let (first, others) = self.0.split_first()?;
        let signs = |it: &&Credentials| it.key.choose_scheme(hello.signature_schemes()).is_some();
        if others.is_empty() || signs(&first) {
            return Some(Arc::clone(first));
        }
        Some(Arc::clone(others.iter().find(signs).unwrap_or(first)))
    }
}

/// Builds the configurations of a service, which presents the first of `credentials` that a client
/// can verify. `clients` verifies and judges clients. Without shared `tickets`, the ticket keys are
/// random.
///
/// # Errors
/// Returns an error if there is no randomness for the ticket keys.
pub fn server_config(
    settings: ServerSettings<'_>,
    credentials: Vec<Credentials>,
    clients: KeyVerifier,
    tickets: Option<SharedTickets>,
) -> Result<ServerConfigs, rustls::Error> {
    let clients: Arc<dyn ClientCertVerifier> = Arc::new(clients);
    let resolver = Arc::new(OfferedCertificates(credentials));
    let with_groups = |groups: &[KeyExchange]| {
        let config = ServerConfig::builder_with_provider(KeyExchange::provider(groups))
            .with_protocol_versions(versions(settings.min_version))?
            .with_client_cert_verifier(Arc::clone(&clients));
        Ok::<_, rustls::Error>(config.with_cert_resolver(resolver.clone()))
    };
    let any = with_sessions(with_groups(settings.key_exchange)?, settings, tickets)?;
    let preferred = settings.key_exchange.iter().map(|group| {
        let mut config = with_groups(&[*group])?;
        config.alpn_protocols.clone_from(&any.alpn_protocols);
        config.ticketer = Arc::clone(&any.ticketer);
        config.session_storage = Arc::clone(&any.session_storage);
        config.send_tls13_tickets = any.send_tls13_tickets;
        Ok((group.name(), Arc::new(config)))
    });
    let preferred = preferred.collect::<Result<_, rustls::Error>>()?;
    Ok(ServerConfigs { any: Arc::new(any), preferred })
}

/// Builds the configuration towards the askers of an authorizer. Their keys are judged too, by the
/// strictest policy: an asker with a compromised key is rejected. Without `clients` no certificate
/// is asked for.
///
/// # Errors
/// Returns an error if there is no randomness for the ticket keys.
pub fn asker_config(
    settings: ServerSettings<'_>,
    credentials: Credentials,
    clients: Option<&Arc<ClientVerifier>>,
    guard: &CurrentGuard,
) -> Result<ServerConfig, rustls::Error> {
    let config = ServerConfig::builder_with_provider(Arc::new(default_provider()))
        .with_protocol_versions(versions(settings.min_version))?;
    let config = match clients {
        None => config.with_no_client_auth(),
        Some(clients) => {
            let clients = Arc::clone(clients);
            let verifier = KeyVerifier::new(clients, guard.clone(), Policy::default());
            config.with_client_cert_verifier(Arc::new(verifier))
        }
    };
    let config = config.with_cert_resolver(Arc::new(SingleCertAndKey::from(credentials)));
    with_sessions(config, settings, None)
}

/// Adds ALPN, ticket keys and a session cache, or disables resumption.
fn with_sessions(
    mut config: ServerConfig,
    settings: ServerSettings<'_>,
    tickets: Option<SharedTickets>,
) -> Result<ServerConfig, rustls::Error> {
    let alpn = settings.alpn.iter().map(|protocol| protocol.as_bytes().to_vec());
    config.alpn_protocols = alpn.collect();
    if settings.resumption {
        let tickets: Arc<dyn ProducesTickets> = match tickets {
            Some(tickets) => Arc::new(tickets),
            None => Ticketer::new()?,
        };
        config.ticketer = Arc::new(ExpiringSessions(tickets));
        let cache: Arc<dyn StoresServerSessions> = ServerSessionMemoryCache::new(CACHED_SESSIONS);
        config.session_storage = Arc::new(ExpiringSessions(cache));
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

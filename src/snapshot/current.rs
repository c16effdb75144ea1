//! The snapshot in use: everything that admits, judges and routes connections at one moment.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;

use arc_swap::ArcSwap;
use keygate_core::guard::Guard;
use keygate_core::tls::{ClientVerifier, ServerConfigs};

use super::routes::Routes;
use crate::config::{AuthorizerConfig, ListenAddress, Networks, Protocol, ServiceConfig};
use crate::sources::LastQuestion;
use crate::sources::assertion::Assertions;
use crate::sources::webhook_keys::WebhookKeys;

/// The snapshot in use. Loading it never blocks.
pub type Current = Arc<ArcSwap<Snapshot>>;

/// The immutable state that admits, judges and routes connections.
#[derive(Debug)]
pub struct Snapshot {
    /// Number of the snapshot in this process, counted from 1.
    pub generation: u64,
    /// Judges keys by the filters, lists and exceptions of this snapshot.
    pub guard: Arc<Guard>,
    /// In the order of the configuration.
    services: Vec<Arc<Service>>,
    /// Index into `services` by service id.
    positions: HashMap<usize, usize>,
    routes: Arc<Routes>,
    /// In the order of the configuration.
    authorizers: Vec<Arc<Authorizer>>,
}

/// One service in one snapshot.
#[derive(Debug)]
pub struct Service {
    /// Id of the service, which no other service gets while the process runs.
    pub id: usize,
    /// Configuration of the service.
    pub config: Arc<ServiceConfig>,
    /// Verifies client certificates. Snapshots share it while the CAs and CRLs stay unchanged.
    pub client_verifier: Arc<ClientVerifier>,
    /// TLS server configurations. Sessions of an older snapshot do not resume on them.
    pub tls: ServerConfigs,
    /// TLS client configuration for the upstream, if it uses TLS. Snapshots share it while its
    /// files stay unchanged.
    pub upstream_tls: Option<Arc<rustls::ClientConfig>>,
    /// Makes assertions about the clients of the service; `None` makes none.
    pub(crate) assertions: Option<Assertions>,
}

/// One authorizer in one snapshot.
#[derive(Debug)]
pub struct Authorizer {
    /// Id of the authorizer, which no other authorizer or service gets while the process runs.
    pub id: usize,
    /// Configuration of the authorizer.
    pub config: Arc<AuthorizerConfig>,
    /// Verifies the certificates that the host sends; `None` trusts the verification of the host.
    pub client_verifier: Option<Arc<ClientVerifier>>,
    /// TLS towards askers; `None` uses none.
    pub tls: Option<AskerTls>,
    /// The keys of the webhooks that ask.
    pub(crate) webhooks: WebhookKeys,
    /// Makes assertions about the clients that are allowed; `None` makes none.
    pub(crate) assertions: Option<Assertions>,
    /// When the authorizer was asked last.
    pub last_question: LastQuestion,
}

/// TLS towards the askers of an authorizer.
#[derive(Debug)]
pub struct AskerTls {
    /// TLS server configuration. Sessions of an older snapshot do not resume on it.
    pub config: Arc<rustls::ServerConfig>,
    /// Verifies the certificates of askers; `None` asks for none.
    pub verifier: Option<Arc<ClientVerifier>>,
}

impl Snapshot {
    /// A snapshot of `services`, whose ids are those in `routes`.
    pub(super) fn new(
        generation: u64,
        guard: Arc<Guard>,
        services: Vec<Arc<Service>>,
        routes: Arc<Routes>,
        authorizers: Vec<Arc<Authorizer>>,
    ) -> Self {
        let positions = services.iter().enumerate().map(|(at, service)| (service.id, at)).collect();
        Self { generation, guard, services, positions, routes, authorizers }
    }

    /// The service for `name` on the address `listen`. `name` is the SNI or the host; `None` if the
    /// client sent none. Returns `None` if no service matches.
    #[must_use]
    pub fn route(&self, listen: SocketAddr, name: Option<&str>) -> Option<&Arc<Service>> {
        self.service(self.routes.service_id(listen, name)?)
    }

    /// Peers of the address `listen` that send a PROXY header; the same for all of its services.
    #[must_use]
    pub fn accept_proxy(&self, listen: SocketAddr) -> Option<&Networks> {
        self.services_on(listen).map(|config| &config.accept_proxy).next()
    }

    /// Whether a service on the address `listen` speaks HTTP.
    #[must_use]
    pub fn serves_http(&self, listen: SocketAddr) -> bool {
        self.services_on(listen).any(|config| config.protocol == Protocol::Http)
    }

    /// Maximum connections from one IP address to the address `listen`: the highest limit of its
    /// services.
    #[must_use]
    pub fn max_connections_per_ip(&self, listen: SocketAddr) -> usize {
        let limits = self.services_on(listen).map(|config| config.limits.max_connections_per_ip);
        limits.max().unwrap_or_default()
    }

    /// All services, in the order of the configuration.
    #[must_use]
    pub fn services(&self) -> &[Arc<Service>] {
        &self.services
    }

    /// All authorizers, in the order of the configuration.
    #[must_use]
    pub fn authorizers(&self) -> &[Arc<Authorizer>] {
        &self.authorizers
    }

    /// The authorizer on the address `listen`, if there is one.
    #[must_use]
    pub fn authorizer_on(&self, listen: &ListenAddress) -> Option<&Arc<Authorizer>> {
        self.authorizers.iter().find(|authorizer| authorizer.config.listen == *listen)
    }

    /// The authorizer with this id; `None` if it was removed.
    #[must_use]
    pub fn authorizer(&self, id: usize) -> Option<&Arc<Authorizer>> {
        self.authorizers.iter().find(|authorizer| authorizer.id == id)
    }

    /// The routes from addresses and names to services.
    #[must_use]
    pub fn routes(&self) -> &Arc<Routes> {
        &self.routes
    }

    /// This snapshot's version of a service from another snapshot; `None` if it was removed.
    #[must_use]
    pub fn current(&self, service: &Service) -> Option<&Arc<Service>> {
        self.service(service.id)
    }

    fn service(&self, id: usize) -> Option<&Arc<Service>> {
        self.services.get(*self.positions.get(&id)?)
    }

    fn services_on(&self, listen: SocketAddr) -> impl Iterator<Item = &ServiceConfig> {
        let configs = self.services.iter().map(|service| &*service.config);
        configs.filter(move |config| config.listen == listen)
    }
}

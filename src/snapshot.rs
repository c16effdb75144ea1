//! What a reload can change, as one immutable value that is swapped.
//!
//! The data path loads the [`Snapshot`] in use and never waits. [`Loader`] builds the next one off
//! the data path, from the last good state of every file; [`watch`] says when. Serves nothing.

mod load;
mod refusal;
mod rejection_reason;
mod report;
mod routes;
pub mod watch;

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;

use arc_swap::ArcSwap;
use rustls::server::danger::ClientCertVerifier;

pub use load::{
    AcceptError, Commit, ExposedKeyFile, ListFileError, LoadError, Loader, OwnKey, Prepare,
    Progress, Trigger,
};
pub use refusal::FilterRejection;
pub use rejection_reason::RejectionReason;
pub use report::{
    ExceptionReport, FilterReport, ListReport, ReloadReport, Report, ServiceReport, WaitingReport,
};
pub use routes::Routes;

use crate::config::{Networks, ServiceConfig};
use crate::guard::Guard;

/// The snapshot in use.
pub type Current = Arc<ArcSwap<Snapshot>>;

/// Everything that judges and admits connections, at one moment.
#[derive(Debug)]
pub struct Snapshot {
    /// Counts the snapshots of this process, from 1.
    pub generation: u64,
    /// Judges keys by the filters of this moment.
    pub guard: Arc<Guard>,
    /// In the order of the configuration.
    services: Vec<Arc<Service>>,
    /// The place of each in `services`, by its number.
    places: HashMap<usize, usize>,
    routes: Arc<Routes>,
}

/// One service as it is at one moment.
#[derive(Debug)]
pub struct Service {
    /// The number of the service: it means the same one as long as the process lives.
    pub index: usize,
    /// Its configuration.
    pub config: Arc<ServiceConfig>,
    /// Accepts certificates; the same as before while CAs and revocation lists are.
    pub clients: Arc<dyn ClientCertVerifier>,
    /// Its side of TLS; sessions of an older snapshot do not resume on it.
    pub tls: Arc<rustls::ServerConfig>,
    /// Our side of TLS towards the upstream, if it has any; the same as before while its files are.
    pub upstream_tls: Option<Arc<rustls::ClientConfig>>,
}

impl Snapshot {
    /// The service that answers for `name` (SNI or host; `None`: the client named none) on the
    /// address `listen`. `None`: nobody does, the client is refused.
    #[must_use]
    pub fn route(&self, listen: SocketAddr, name: Option<&str>) -> Option<&Arc<Service>> {
        self.numbered(self.routes.index_of(listen, name)?)
    }

    /// Who begins the connections to an address with a PROXY header: the same for all its services.
    #[must_use]
    pub fn accept_proxy(&self, listen: SocketAddr) -> Option<&Networks> {
        let mut services = self.services.iter().map(|service| &service.config);
        services.find(|config| config.listen == listen).map(|config| &config.accept_proxy)
    }

    /// The most connections that one address may have to any service on the address `listen`.
    #[must_use]
    pub fn most_from_one_ip(&self, listen: SocketAddr) -> usize {
        let services = self.services.iter().map(|service| &service.config);
        let here = services.filter(|config| config.listen == listen);
        here.map(|config| config.limits.max_connections_per_ip).max().unwrap_or_default()
    }

    /// Every service.
    #[must_use]
    pub fn services(&self) -> &[Arc<Service>] {
        &self.services
    }

    /// Which service answers for which name.
    #[must_use]
    pub fn routes(&self) -> &Arc<Routes> {
        &self.routes
    }

    /// The present state of a service that an older snapshot gave out.
    #[must_use]
    pub fn current(&self, service: &Service) -> Option<&Arc<Service>> {
        self.numbered(service.index)
    }

    fn numbered(&self, index: usize) -> Option<&Arc<Service>> {
        self.services.get(*self.places.get(&index)?)
    }
}

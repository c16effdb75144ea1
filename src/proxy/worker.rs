//! What the connections of one worker share. It lives on one thread: nothing in it is locked.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

use rustls::pki_types::CertificateDer;

use super::drain::OpenConnections;
use super::upstream::Upstream;
use crate::config::Config;
use crate::guard::RecentShard;
use crate::metrics::{ServiceMetrics, WorkerMetrics};
use crate::snapshot::{Current, Snapshot};
use crate::spki;

/// The state of one worker.
pub(super) struct Worker {
    current: RefCell<arc_swap::Cache<Current, Arc<Snapshot>>>,
    metrics: WorkerMetrics,
    recent: Option<RecentShard>,
    upstreams: Vec<Rc<Upstream>>,
    pub(super) open: OpenConnections,
}

impl Worker {
    pub(super) fn new(
        config: &Config,
        current: Current,
        metrics: WorkerMetrics,
        recent: Option<RecentShard>,
    ) -> Self {
        let services = config.services.iter().enumerate();
        let upstreams = services.map(|(index, service)| {
            Rc::new(Upstream::new(&service.upstream, metrics.service(index).clone()))
        });
        Self {
            current: RefCell::new(arc_swap::Cache::new(current)),
            upstreams: upstreams.collect(),
            metrics,
            recent,
            open: OpenConnections::default(),
        }
    }

    /// Closes upstream connections that nobody needs.
    pub(super) fn drop_stale_upstreams(&self) {
        self.upstreams.iter().for_each(|upstream| upstream.drop_stale());
    }

    /// The snapshot in use.
    pub(super) fn snapshot(&self) -> Arc<Snapshot> {
        Arc::clone(self.current.borrow_mut().load())
    }

    /// Notes that the service at `index` admitted a client, if anybody asks for that.
    pub(super) fn note(&self, index: usize, leaf: Option<&CertificateDer<'_>>) {
        let (Some(recent), Some(leaf)) = (&self.recent, leaf) else { return };
        if let Ok(spki) = spki::of_certificate(leaf) {
            recent.note(index, spki);
        }
    }

    /// What is counted before a service is chosen, too.
    pub(super) fn metrics(&self) -> &WorkerMetrics {
        &self.metrics
    }

    /// What is counted of the service at `index`.
    pub(super) fn service_metrics(&self, index: usize) -> &ServiceMetrics {
        self.metrics.service(index)
    }

    /// The upstream of the service at `index`.
    #[expect(clippy::indexing_slicing, reason = "services are numbered as they are configured")]
    pub(super) fn upstream(&self, index: usize) -> &Rc<Upstream> {
        &self.upstreams[index]
    }
}

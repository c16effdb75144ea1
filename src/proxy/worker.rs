//! What the connections of one worker share. It lives on one thread: nothing in it is locked.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

use rustls::pki_types::CertificateDer;

use super::access_log::AccessLog;
use super::drain::OpenConnections;
use super::health::HealthBoard;
use super::peers::Peers;
use super::report::Reporter;
use super::upstream::Upstream;
use crate::guard::RecentShard;
use crate::metrics::{ServiceMetrics, WorkerMetrics};
use crate::snapshot::{Current, Service, Snapshot};
use crate::spki;

/// The state of one worker.
pub(super) struct Worker {
    current: RefCell<arc_swap::Cache<Current, Arc<Snapshot>>>,
    metrics: WorkerMetrics,
    recent: Option<RecentShard>,
    board: HealthBoard,
    pub(super) peers: Arc<Peers>,
    pub(super) access_log: Rc<AccessLog>,
    pub(super) reporter: Reporter,
    /// How many workers there are.
    workers: usize,
    /// By the index of their service.
    seats: RefCell<Vec<Option<Seat>>>,
    pub(super) open: OpenConnections,
}

/// What this worker has for one service.
#[derive(Clone)]
struct Seat {
    metrics: Rc<ServiceMetrics>,
    upstream: Rc<Upstream>,
}

impl Worker {
    pub(super) fn new(
        current: Current,
        metrics: WorkerMetrics,
        recent: Option<RecentShard>,
        (board, peers): (HealthBoard, Arc<Peers>),
        (access_log, reporter): (Rc<AccessLog>, Reporter),
        workers: usize,
    ) -> Self {
        Self {
            current: RefCell::new(arc_swap::Cache::new(current)),
            metrics,
            recent,
            board,
            peers,
            access_log,
            reporter,
            workers,
            seats: RefCell::default(),
            open: OpenConnections::default(),
        }
    }

    /// Closes upstream connections that nobody needs.
    pub(super) fn drop_stale_upstreams(&self) {
        self.seats.borrow().iter().flatten().for_each(|seat| seat.upstream.drop_stale());
    }

    /// The snapshot in use.
    pub(super) fn snapshot(&self) -> Arc<Snapshot> {
        Arc::clone(self.current.borrow_mut().load())
    }

    /// Notes that the service at `index` admitted a client, if anybody asks for that.
    pub(super) fn note(&self, index: usize, leaf: Option<&CertificateDer<'_>>) {
        let (Some(recent), Some(leaf)) = (&self.recent, leaf) else { return };
        if let Ok(spki) = spki::of_certificate(leaf) {
            recent.record(index, spki);
        }
    }

    /// What is counted before a service is chosen, too.
    pub(super) fn metrics(&self) -> &WorkerMetrics {
        &self.metrics
    }

    /// What is counted of a service.
    pub(super) fn service_metrics(&self, service: &Service) -> Rc<ServiceMetrics> {
        self.seat(service).metrics
    }

    /// The upstream of a service. A new one when its configuration or its certificates are: the
    /// connections of the old one end with their requests.
    pub(super) fn upstream(&self, service: &Service) -> Rc<Upstream> {
        let seat = self.seat(service);
        if seat.upstream.is_of(&service.config, service.upstream_tls.as_ref()) {
            return seat.upstream;
        }
        let upstream = self.upstream_of(service, &seat.metrics);
        let seat = Seat { metrics: seat.metrics, upstream: Rc::clone(&upstream) };
        self.put(service.id, seat);
        upstream
    }

    /// The upstream of a service as it is at this moment, whenever its connection was judged.
    pub(super) fn present_upstream(&self, service: &Service) -> Rc<Upstream> {
        let mut current = self.current.borrow_mut();
        self.upstream(current.load().current(service).map_or(service, Arc::as_ref))
    }

    fn seat(&self, service: &Service) -> Seat {
        if let Some(Some(seat)) = self.seats.borrow().get(service.id) {
            return seat.clone();
        }
        let metrics = Rc::new(self.metrics.service(&service.config.name));
        let upstream = self.upstream_of(service, &metrics);
        let seat = Seat { metrics, upstream };
        self.put(service.id, seat.clone());
        seat
    }

    fn put(&self, index: usize, seat: Seat) {
        let mut seats = self.seats.borrow_mut();
        let length = seats.len().max(index.saturating_add(1));
        seats.resize_with(length, || None);
        if let Some(place) = seats.get_mut(index) {
            *place = Some(seat);
        }
    }

    fn upstream_of(&self, service: &Service, metrics: &Rc<ServiceMetrics>) -> Rc<Upstream> {
        let (config, tls) = (&service.config, service.upstream_tls.as_ref());
        let metrics = Rc::clone(metrics);
        Rc::new(Upstream::new(config, tls, &self.board, metrics, self.workers))
    }
}

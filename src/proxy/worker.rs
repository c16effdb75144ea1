//! A worker: the state that its connections share. One thread owns it, so nothing in it is locked.

pub(crate) mod access_log;
mod awake;
pub(crate) mod record;
pub(crate) mod request_spans;
mod request_values;
mod upstream_log;

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Instant, SystemTime};

use keygate_core::guard::RecentShard;
use keygate_core::tls::CertificateSummary;
use keygate_wire::permit::{Count, PerIpCounts};
use rustls::pki_types::CertificateDer;
use tokio::sync::{Notify, watch};

use self::access_log::AccessLog;
use self::awake::AwakeConnections;
use self::upstream_log::UpstreamLog;
use super::open_connection::OpenConnection;
use super::upstream::Upstream;
use super::upstream::server_state::ServerStates;
use crate::client_log::RefusalLog;
use crate::config::Config;
use crate::confirm::Inquiry;
use crate::key_uses::{KeyUseShard, KeyUses};
use crate::log_writer::LogWriter;
use crate::metrics::{ServiceMetrics, WorkerMetrics};
use crate::process::heartbeat::Heartbeats;
use crate::process::lifecycle::Lifecycle;
use crate::recent_hits::RecentHits;
use crate::resolver::Resolver;
use crate::snapshot::{Current, Service, Snapshot};
use crate::traces::{SpanQueue, Tracer};

/// The state that all workers share, and the channels by which they are controlled.
#[derive(Debug, Clone)]
pub struct WorkerContext {
    /// The snapshot in use.
    pub current: Current,
    /// The states of the upstream servers.
    pub servers: ServerStates,
    /// Looks up the names of upstream servers.
    pub resolver: Resolver,
    /// The writer of the access log.
    pub access_log: LogWriter,
    /// The clients that were rejected or flagged.
    pub recent_hits: RecentHits,
    /// The clients that were admitted, with their key exchange.
    pub key_uses: KeyUses,
    /// The workers follow its changes.
    pub lifecycle: watch::Receiver<Lifecycle>,
    /// A change makes the workers judge their open connections again.
    pub judgements: watch::Receiver<u64>,
    /// The queue of the exporter of traces; `None` if nothing is traced.
    pub spans: Option<SpanQueue>,
    /// Asks about the keys of clients.
    pub inquiry: Inquiry,
    /// The workers beat at every tick.
    pub heartbeats: Heartbeats,
}

/// The state of one worker.
pub(crate) struct Worker {
    current: RefCell<arc_swap::Cache<Current, Arc<Snapshot>>>,
    /// The series that are counted before a service is chosen, and the series of each service.
    pub(crate) metrics: WorkerMetrics,
    recent: Option<RecentShard>,
    pub(crate) key_uses: KeyUseShard,
    servers: ServerStates,
    resolver: Resolver,
    pub(crate) per_ip: Arc<PerIpCounts>,
    /// `None` if the access log is off.
    pub(crate) access_log: Option<Rc<AccessLog>>,
    /// `None` if nothing is traced.
    pub(crate) tracer: Option<Rc<Tracer>>,
    pub(crate) refusal_log: RefusalLog,
    pub(crate) upstream_log: UpstreamLog,
    pub(crate) inquiry: Inquiry,
    /// The number of workers: each has its share of the upstream connections.
    workers: usize,
    /// By the index of the service.
    services: RefCell<Vec<Option<ServiceState>>>,
    pub(crate) connections: ConnectionRegistry,
    awake: AwakeConnections,
}

/// The state of one service in this worker.
#[derive(Clone)]
struct ServiceState {
    metrics: Rc<ServiceMetrics>,
    upstream: Rc<Upstream>,
}

impl Worker {
    pub(crate) fn new(
        config: &Config,
        context: &WorkerContext,
        metrics: WorkerMetrics,
        recent: Option<RecentShard>,
        per_ip: Arc<PerIpCounts>,
    ) -> Self {
        let workers = config.workers.get();
        let tracer = context
            .spans
            .clone()
            .zip(config.traces.as_ref())
            .map(|(queue, traces)| Tracer::new(traces, queue, metrics.traces.clone(), workers));
        Self {
            current: RefCell::new(arc_swap::Cache::new(Arc::clone(&context.current))),
            metrics,
            recent,
            key_uses: context.key_uses.shard(),
            servers: context.servers.clone(),
            resolver: context.resolver.clone(),
            per_ip,
            access_log: AccessLog::new(&config.access_log, context.access_log.clone()),
            tracer,
            refusal_log: RefusalLog::new(context.recent_hits.clone(), config.log.repeat_after),
            upstream_log: UpstreamLog::new(config.log.repeat_after),
            inquiry: context.inquiry.clone(),
            workers,
            services: RefCell::default(),
            connections: ConnectionRegistry::default(),
            awake: AwakeConnections::default(),
        }
    }

    /// The snapshot in use.
    pub(crate) fn snapshot(&self) -> Arc<Snapshot> {
        Arc::clone(self.current.borrow_mut().load())
    }

    /// Records that `service` admitted a client that `presented` certificates with this verified
    /// `path`, both leaf first, if
    /// `max_new_hits` needs it.
    pub(crate) fn record_admitted(
        &self,
        service: &Service,
        path: &[&CertificateDer<'_>],
        presented: &[CertificateDer<'_>],
    ) {
        let (Some(recent), Some(leaf)) = (&self.recent, path.first()) else { return };
        let checks = self.current.borrow_mut().load().guard.weak_checks();
        let subject = || CertificateSummary::new(leaf).name().to_owned();
        recent.record_path(service.id, checks, path, presented, subject);
    }

    /// Asks about the keys on a verified `path`, leaf first, by the policy of `service`. A later
    /// answer is applied to later connections.
    pub(crate) fn ask_about(&self, service: &Service, path: &[&CertificateDer<'_>]) {
        if self.inquiry.is_enabled() {
            let (snapshot, now) = (self.snapshot(), SystemTime::now());
            let policy = &service.config.policy.decisions;
            let _ = self.inquiry.query(snapshot.guard.open_questions(policy, path, now));
        }
    }

    /// The series of a service.
    pub(crate) fn service_metrics(&self, service: &Service) -> Rc<ServiceMetrics> {
        self.service_state(service).metrics
    }

    /// The upstream of a service. A changed configuration or changed certificates make a new one;
    /// the connections of the old one close with their requests.
    pub(crate) fn upstream(&self, service: &Service) -> Rc<Upstream> {
        let state = self.service_state(service);
        if state.upstream.is_of(&service.config, service.upstream_tls.as_ref()) {
            return state.upstream;
        }
        let upstream = self.new_upstream(service, &state.metrics);
        let state = ServiceState { metrics: state.metrics, upstream: Rc::clone(&upstream) };
        self.set_service_state(service.id, state);
        upstream
    }

    /// The upstream of a service by the current snapshot.
    pub(crate) fn current_upstream(&self, service: &Service) -> Rc<Upstream> {
        let mut current = self.current.borrow_mut();
        self.upstream(current.load().current(service).map_or(service, Arc::as_ref))
    }

    /// Closes upstream connections that are idle for too long, or too old.
    pub(crate) fn drop_stale_upstreams(&self) {
        self.services.borrow().iter().flatten().for_each(|state| state.upstream.drop_stale());
    }

    fn service_state(&self, service: &Service) -> ServiceState {
        if let Some(Some(state)) = self.services.borrow().get(service.id) {
            return state.clone();
        }
        let metrics = Rc::new(self.metrics.service(&service.config.name));
        let upstream = self.new_upstream(service, &metrics);
        let state = ServiceState { metrics, upstream };
        self.set_service_state(service.id, state.clone());
        state
    }

    fn set_service_state(&self, index: usize, state: ServiceState) {
        let mut services = self.services.borrow_mut();
        let length = services.len().max(index.saturating_add(1));
        services.resize_with(length, || None);
        if let Some(place) = services.get_mut(index) {
            *place = Some(state);
        }
    }

    fn new_upstream(&self, service: &Service, metrics: &Rc<ServiceMetrics>) -> Rc<Upstream> {
        let (config, tls) = (&service.config, service.upstream_tls.as_ref());
        let metrics = Rc::clone(metrics);
        Rc::new(Upstream::new(config, tls, &self.servers, &self.resolver, metrics, self.workers))
    }
}

/// The open connections of one worker: closes them on timeout, eviction and shutdown.
#[derive(Debug, Default)]
pub(crate) struct ConnectionRegistry {
    /// The connections that serve requests, by their addresses in memory.
    serving: RefCell<HashMap<*const OpenConnection, Rc<OpenConnection>>>,
    /// All connections, handshakes included.
    pub(crate) open: Count,
    /// Whether every HTTP/1.1 response is the last on its connection.
    pub(crate) announces_close: Cell<bool>,
    /// Makes the connections that wait for answers check whether they must wait on.
    pub(crate) held: Notify,
    /// Whether new connections are refused.
    pub(crate) draining: Cell<bool>,
}

impl ConnectionRegistry {
    /// Adds a connection that is about to serve requests.
    pub(crate) fn add(&self, connection: &Rc<OpenConnection>) {
        self.serving.borrow_mut().insert(Rc::as_ptr(connection), Rc::clone(connection));
        if self.draining.get() {
            connection.state.drain();
        }
    }

    /// Removes a connection that has closed.
    pub(crate) fn remove(&self, connection: *const OpenConnection) {
        self.serving.borrow_mut().remove(&connection);
    }

    /// The connections that serve requests now.
    pub(crate) fn serving(&self) -> Vec<Rc<OpenConnection>> {
        self.serving.borrow().values().cloned().collect()
    }

    /// Checks the timeouts of every connection. Returns those that must be judged again, because
    /// their clients' paths have expired.
    pub(crate) fn check_all(&self) -> Vec<Rc<OpenConnection>> {
        let (now, time) = (Instant::now(), SystemTime::now());
        let serving = self.serving.borrow();
        serving.values().filter(|connection| connection.check(now, time)).cloned().collect()
    }

    /// Drains every connection, and those that are added later.
    pub(crate) fn drain(&self) {
        self.draining.set(true);
        self.announces_close.set(true);
        self.serving.borrow().values().for_each(|connection| connection.state.drain());
        self.held.notify_waiters();
    }

    /// Whether the worker drains and its last connection has closed.
    pub(crate) fn is_drained(&self) -> bool {
        self.draining.get() && self.open.get() == 0
    }
}

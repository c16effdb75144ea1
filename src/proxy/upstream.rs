//! The upstream of one service, as one worker knows it: which server gets a request, and what
//! becomes of it.

mod balance;
mod error;
mod exchange;
mod http1;
mod http2;
mod leave;
mod open;
mod progress;
mod request_body;
mod server;
mod shared;

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;

use hyper::Response;
use hyper::header::HeaderValue;
use rustls::ClientConfig;
use smallvec::SmallVec;

use self::balance::Balancer;
pub(super) use self::error::UpstreamError;
use self::exchange::Failed;
pub(super) use self::http1::Tunnel;
pub(super) use self::open::Open;
pub(super) use self::progress::{DISCARDED_AT_MOST, DISCARDED_WITHIN, Fault, Progress};
pub(super) use self::request_body::{Outgoing, RequestBody};
pub(super) use self::server::Lease;
use self::server::Server;
use super::dial::Io;
use super::health::HealthBoard;
use super::incoming::Incoming;
use crate::config::{Scheme, ServerConfig, ServiceConfig, UpstreamConfig};
use crate::metrics::ServiceMetrics;

/// The servers behind a service.
#[derive(Debug)]
pub(super) struct Upstream {
    config: Arc<ServiceConfig>,
    tls: Option<Arc<ClientConfig>>,
    metrics: Rc<ServiceMetrics>,
    servers: Vec<Rc<Server>>,
    balancer: Balancer,
}

/// The answer to a request, and who gave it.
pub(super) type Answer = (Response<Incoming>, Lease);

impl Upstream {
    /// The upstream of a service for one of `workers` workers.
    pub(super) fn new(
        config: &Arc<ServiceConfig>,
        tls: Option<&Arc<ClientConfig>>,
        board: &HealthBoard,
        metrics: Rc<ServiceMetrics>,
        workers: usize,
    ) -> Self {
        let upstream = &config.upstream;
        let open = Rc::new(Cell::new(0));
        // Workers share nothing: each has its part of what is allowed.
        let most = upstream.max_connections.div_ceil(workers.max(1));
        let servers = upstream.servers.iter().map(|server| {
            let health = board.of(&config.name, server);
            let room = (Rc::clone(&open), most);
            Rc::new(Server::new(upstream, server, tls, health, Rc::clone(&metrics), room))
        });
        Self {
            servers: servers.collect(),
            balancer: Balancer::new(upstream.balance),
            config: Arc::clone(config),
            tls: tls.cloned(),
            metrics,
        }
    }

    /// Whether it is still the upstream of the service with this configuration.
    pub(super) fn is_of(
        &self,
        config: &Arc<ServiceConfig>,
        tls: Option<&Arc<ClientConfig>>,
    ) -> bool {
        let same_tls = match (&self.tls, tls) {
            (None, None) => true,
            (Some(one), Some(other)) => Arc::ptr_eq(one, other),
            (None, Some(_)) | (Some(_), None) => false,
        };
        same_tls && (Arc::ptr_eq(&self.config, config) || self.config.upstream == config.upstream)
    }

    /// Whether every server speaks HTTP/1.1, which can be left for something else.
    pub(super) fn can_upgrade(&self) -> bool {
        self.servers.iter().all(|server| server.config().scheme != Scheme::H2c)
    }

    fn settings(&self) -> &UpstreamConfig {
        &self.config.upstream
    }

    /// The `Host` for a request that has none of its own (HTTP/1.0).
    pub(super) fn host(&self) -> Option<HeaderValue> {
        let server = self.servers.first()?;
        HeaderValue::from_str(&server.config().address.to_string()).ok()
    }

    /// Sends a request and waits for the response head.
    pub(super) async fn send(&self, mut request: Outgoing) -> Result<Answer, UpstreamError> {
        let mut attempts = Attempts::new(self);
        loop {
            match attempts.next()?.send(request).await {
                Ok(answer) => return Ok(attempts.succeed(answer)),
                Err(Failed::Sent(error)) => return Err(attempts.give_up(error)),
                Err(Failed::Unsent(unsent, error)) => {
                    attempts.fail(error);
                    request = unsent;
                }
            }
        }
    }

    /// The same for a request that is to leave HTTP. If the server agrees, what is left of its
    /// connection or stream follows.
    pub(super) async fn send_upgrade(
        &self,
        mut request: Outgoing,
    ) -> Result<(Answer, Option<Tunnel>), UpstreamError> {
        let mut attempts = Attempts { is_upgrade: true, ..Attempts::new(self) };
        loop {
            match attempts.next()?.send_upgrade(request).await {
                Ok((response, lease, tunnel)) => {
                    return Ok((attempts.succeed((response, lease)), tunnel));
                }
                Err(Failed::Sent(error)) => return Err(attempts.give_up(error)),
                Err(Failed::Unsent(unsent, error)) => {
                    attempts.fail(error);
                    request = unsent;
                }
            }
        }
    }

    /// A connection to one of the servers, for bytes.
    pub(super) async fn connect(&self) -> Result<(Box<dyn Io>, Open, ServerConfig), UpstreamError> {
        let mut attempts = Attempts::new(self);
        loop {
            let server = attempts.next()?;
            match server.connect().await {
                Ok((io, _, open)) => {
                    return Ok(attempts.succeed((io, open, server.config().clone())));
                }
                Err(error) => attempts.fail(error),
            }
        }
    }

    /// One of the servers that are well and were not tried.
    fn choose(&self, tried: &[usize]) -> Option<(usize, Rc<Server>)> {
        let candidates = self.servers.iter().enumerate();
        let candidates: SmallVec<[_; 8]> = candidates
            .filter(|(index, _)| !tried.contains(index))
            .filter_map(|(index, server)| server.candidate(index))
            .collect();
        let index = self.balancer.choose(&candidates)?;
        self.servers.get(index).map(|server| (index, Rc::clone(server)))
    }

    /// Counts a request that got no answer.
    fn count(&self, error: UpstreamError) -> UpstreamError {
        if let Some(kind) = error.kind() {
            self.metrics.upstream_failures.of(kind).inc();
        }
        error
    }

    /// A server that fails is left alone for a while, if there is another.
    fn note(&self, server: &Server, error: &UpstreamError) {
        if error.is_of_server() && self.servers.len() > 1 {
            server.has_failed(self.settings().max_failures, self.settings().retry_after);
        }
    }

    /// Closes connections that nobody needs.
    pub(super) fn drop_stale(&self) {
        self.servers.iter().for_each(|server| server.drop_stale());
    }
}

/// One server after the other, until one has been sent something.
struct Attempts<'a> {
    upstream: &'a Upstream,
    tried: SmallVec<[usize; 4]>,
    present: Option<Rc<Server>>,
    last: Option<UpstreamError>,
    /// That a server does not speak HTTP/1.1 says nothing against it.
    is_upgrade: bool,
}

impl<'a> Attempts<'a> {
    fn new(upstream: &'a Upstream) -> Self {
        let tried = SmallVec::new();
        Self { upstream, tried, present: None, last: None, is_upgrade: false }
    }

    /// The next server, or why there was no answer if none is left.
    fn next(&mut self) -> Result<Rc<Server>, UpstreamError> {
        let Some((index, server)) = self.upstream.choose(&self.tried) else {
            let error = self.last.take().unwrap_or(UpstreamError::NoServer);
            return Err(self.upstream.count(error));
        };
        self.tried.push(index);
        self.present = Some(Rc::clone(&server));
        Ok(server)
    }

    fn succeed<T>(&self, answer: T) -> T {
        if let Some(server) = &self.present {
            server.has_answered();
        }
        answer
    }

    /// Nothing was sent: another server may be tried.
    fn fail(&mut self, error: UpstreamError) {
        if let Some(server) = self.present.as_ref().filter(|_| !self.is_upgrade) {
            self.upstream.note(server, &error);
        }
        self.last = Some(error);
    }

    /// Something was sent: nobody else may be.
    fn give_up(&self, error: UpstreamError) -> UpstreamError {
        if let Some(server) = self.present.as_ref().filter(|_| !self.is_upgrade) {
            self.upstream.note(server, &error);
        }
        self.upstream.count(error)
    }
}

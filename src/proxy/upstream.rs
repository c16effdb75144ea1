//! The upstream of one service, as one worker knows it: which server gets a request, and what
//! becomes of it.

mod balance;
mod request_body;
mod sender;
mod server;

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use hyper::body::Incoming;
use hyper::header::HeaderValue;
use hyper::{Request, Response};
use prometheus::IntGauge;
use rustls::ClientConfig;
use smallvec::SmallVec;

use self::balance::Balancer;
pub(super) use self::request_body::{Fault, Progress, RequestBody};
pub(super) use self::sender::Tunnel;
pub(super) use self::server::Lease;
use self::server::{Failed, Server};
use super::dial::{DialError, Io};
use super::health::HealthBoard;
use crate::config::{ServerConfig, ServiceConfig, UpstreamConfig};
use crate::metrics::{ServiceMetrics, UpstreamFailure};

/// The servers behind a service.
#[derive(Debug)]
pub(super) struct Upstream {
    config: Arc<ServiceConfig>,
    tls: Option<Arc<ClientConfig>>,
    metrics: Rc<ServiceMetrics>,
    servers: Vec<Rc<Server>>,
    balancer: Balancer,
}

/// A connection to a server is open as long as this lives.
#[derive(Debug)]
pub(super) struct Open {
    count: Rc<Cell<usize>>,
    metric: IntGauge,
}

/// Why a request got no answer.
#[derive(Debug, thiserror::Error)]
pub(super) enum UpstreamError {
    #[error("the server speaks another version of HTTP than before")]
    ChangedProtocol,
    #[error(transparent)]
    Client(Fault),
    #[error(transparent)]
    Dial(#[from] DialError),
    #[error("the host cannot be sent over HTTP/2")]
    Host,
    #[error("no server is well")]
    NoServer,
    #[error("the connection could not be used: {0}")]
    Protocol(#[source] hyper::Error),
    #[error("no response within {0:?}")]
    ResponseTimeout(Duration),
    #[error("as many connections are open as may be")]
    TooMany,
}

impl UpstreamError {
    /// How it is counted; what a client did is not the upstream's failure.
    fn kind(&self) -> Option<UpstreamFailure> {
        Some(match self {
            Self::Client(_) | Self::Host => return None,
            Self::ChangedProtocol | Self::Dial(_) => UpstreamFailure::Connect,
            Self::NoServer | Self::TooMany => UpstreamFailure::Unavailable,
            Self::Protocol(_) => UpstreamFailure::Response,
            Self::ResponseTimeout(_) => UpstreamFailure::Timeout,
        })
    }

    /// Whether it says anything of the server.
    fn is_of_server(&self) -> bool {
        !matches!(self, Self::Client(_) | Self::Host | Self::NoServer | Self::TooMany)
    }
}

impl Open {
    fn new(count: &Rc<Cell<usize>>, metric: IntGauge) -> Self {
        count.set(count.get().saturating_add(1));
        metric.inc();
        Self { count: Rc::clone(count), metric }
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.count.set(self.count.get().saturating_sub(1));
        self.metric.dec();
    }
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

    fn settings(&self) -> &UpstreamConfig {
        &self.config.upstream
    }

    /// The `Host` for a request that has none of its own (HTTP/1.0).
    pub(super) fn host(&self) -> Option<HeaderValue> {
        let server = self.servers.first()?;
        HeaderValue::from_str(&server.config().address.to_string()).ok()
    }

    /// Sends a request and waits for the response head.
    pub(super) async fn send(
        &self,
        request: Request<RequestBody>,
    ) -> Result<Answer, UpstreamError> {
        self.offer(request, async |server, request| server.send(request).await).await
    }

    /// The same for a request that is to leave HTTP/1.1. If the server agrees (101), what is left of
    /// its connection follows.
    pub(super) async fn send_upgrade(
        &self,
        request: Request<RequestBody>,
    ) -> Result<(Answer, Option<Tunnel>), UpstreamError> {
        let send = async |server: Rc<Server>, request| server.send_upgrade(request).await;
        let (response, tunnel, lease) = self.offer(request, send).await?;
        if response.status() != hyper::StatusCode::SWITCHING_PROTOCOLS {
            return Ok(((response, lease), None));
        }
        let tunnel = tunnel.await.map_err(|_| UpstreamError::ChangedProtocol)?;
        Ok(((response, lease), Some(tunnel)))
    }

    /// A connection to one of the servers, for bytes.
    pub(super) async fn connect(&self) -> Result<(Box<dyn Io>, Open, ServerConfig), UpstreamError> {
        let connect = async |server: Rc<Server>, ()| {
            let (io, _, open) = server.connect().await.map_err(|error| Tried::Unsent((), error))?;
            Ok((io, open, server.config().clone()))
        };
        self.try_each((), connect).await
    }

    async fn offer<T>(
        &self,
        request: Request<RequestBody>,
        send: impl AsyncFn(Rc<Server>, Request<RequestBody>) -> Result<T, Failed>,
    ) -> Result<T, UpstreamError> {
        let send = async |server, request| {
            send(server, request).await.map_err(|failed| match failed {
                Failed::Sent(error) => Tried::Sent(error),
                Failed::Unsent(request, error) => Tried::Unsent(*request, error),
            })
        };
        self.try_each(request, send).await
    }

    /// Tries one server after the other, until one has been sent something.
    async fn try_each<R, T>(
        &self,
        mut request: R,
        attempt: impl AsyncFn(Rc<Server>, R) -> Result<T, Tried<R>>,
    ) -> Result<T, UpstreamError> {
        let mut tried = SmallVec::<[usize; 4]>::new();
        let mut last = UpstreamError::NoServer;
        let error = loop {
            let Some((index, server)) = self.choose(&tried) else { break last };
            match attempt(Rc::clone(&server), request).await {
                Ok(answer) => {
                    server.has_answered();
                    return Ok(answer);
                }
                Err(Tried::Sent(error)) => {
                    self.note(&server, &error);
                    break error;
                }
                Err(Tried::Unsent(unsent, error)) => {
                    self.note(&server, &error);
                    tried.push(index);
                    (request, last) = (unsent, error);
                }
            }
        };
        if let Some(kind) = error.kind() {
            self.metrics.upstream_failures.of(kind).inc();
        }
        Err(error)
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

/// What an attempt at one server came to.
enum Tried<R> {
    Sent(UpstreamError),
    Unsent(R, UpstreamError),
}

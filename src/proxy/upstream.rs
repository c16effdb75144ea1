//! The upstream of a service, in one worker: chooses the server of each request, tries another one
//! if nothing was sent, and ejects servers that fail.

mod balance;
pub(crate) mod dial;
pub(crate) mod error;
pub(crate) mod health;
pub(crate) mod http1;
mod http2;
mod http2_pool;
pub(crate) mod server;
mod upgrade;

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use hyper::Response;
use hyper::header::HeaderValue;
use rustls::ClientConfig;
use smallvec::SmallVec;
use tokio::time::timeout;

use self::balance::Balancer;
use self::dial::{ConnectionGuard, ConnectionLimit, Io};
use self::error::{SendError, UpstreamError};
use self::health::HealthRegistry;
use self::http1::Tunnel;
use self::server::{Lease, UpstreamServer};
use super::message::body::{Incoming, OutgoingRequest};
use crate::config::{Scheme, ServerConfig, ServiceConfig, UpstreamConfig};
use crate::metrics::ServiceMetrics;
use crate::permit::Count;

/// The servers of a service.
#[derive(Debug)]
pub(crate) struct Upstream {
    config: Arc<ServiceConfig>,
    tls: Option<Arc<ClientConfig>>,
    metrics: Rc<ServiceMetrics>,
    servers: Vec<Rc<UpstreamServer>>,
    balancer: Balancer,
}

/// A server's response, and the lease of the connection that it comes on.
#[derive(Debug)]
pub(crate) struct UpstreamResponse {
    pub(crate) response: Response<Incoming>,
    pub(crate) lease: Lease,
}

/// The response to a request for an upgrade, and the tunnel if the server has accepted.
#[derive(Debug)]
pub(crate) struct UpgradeResponse {
    pub(crate) response: UpstreamResponse,
    pub(crate) tunnel: Option<Tunnel>,
}

/// A raw connection to a server.
#[derive(Debug)]
pub(crate) struct RawConnection {
    pub(crate) io: Box<dyn Io>,
    pub(crate) server: ServerConfig,
    _guard: ConnectionGuard,
}

/// A request that got no response, and the server that was tried last.
#[derive(Debug, thiserror::Error)]
#[error("{error}")]
pub(crate) struct RequestFailure {
    /// `None` if there was no server to try.
    pub(crate) server: Option<ServerConfig>,
    #[source]
    pub(crate) error: UpstreamError,
}

impl Upstream {
    /// The upstream of a service for one of `workers` workers.
    pub(crate) fn new(
        config: &Arc<ServiceConfig>,
        tls: Option<&Arc<ClientConfig>>,
        health: &HealthRegistry,
        metrics: Rc<ServiceMetrics>,
        workers: usize,
    ) -> Self {
        let upstream = &config.upstream;
        // Workers share nothing: each has its part of `max_connections`.
        let max = upstream.max_connections.div_ceil(workers.max(1));
        let limit = ConnectionLimit { open: Count::default(), max };
        let servers = upstream.servers.iter().map(|server| {
            let health = health.of(&config.name, server);
            Rc::new(UpstreamServer::new(
                upstream,
                server,
                tls,
                health,
                Rc::clone(&metrics),
                limit.clone(),
            ))
        });
        Self {
            servers: servers.collect(),
            balancer: Balancer::new(upstream.balance),
            config: Arc::clone(config),
            tls: tls.cloned(),
            metrics,
        }
    }

    /// Whether it is the upstream of a service with this configuration and these certificates.
    pub(crate) fn is_of(
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

    /// Whether every server speaks HTTP/1.1, which alone has `Upgrade`.
    pub(crate) fn can_upgrade(&self) -> bool {
        self.servers.iter().all(|server| server.config().scheme != Scheme::H2c)
    }

    fn settings(&self) -> &UpstreamConfig {
        &self.config.upstream
    }

    /// The `Host` of a request that has none (HTTP/1.0).
    pub(crate) fn default_host(&self) -> Option<HeaderValue> {
        let server = self.servers.first()?;
        HeaderValue::from_str(&server.config().address.to_string()).ok()
    }

    /// Sends a request and waits for the head of the response.
    pub(crate) async fn send(
        &self,
        request: OutgoingRequest,
    ) -> Result<UpstreamResponse, RequestFailure> {
        Attempts::new(self).send(request).await
    }

    /// Sends a request and waits for the head of the response, for at most `limit`, which is
    /// `request_timeout`. Its expiry does not count as a failure of the upstream, because the client
    /// may have been slow.
    pub(crate) async fn send_within(
        &self,
        limit: Duration,
        request: OutgoingRequest,
    ) -> Result<UpstreamResponse, RequestFailure> {
        let mut attempts = Attempts::new(self);
        let outcome = timeout(limit, attempts.send(request)).await;
        outcome.unwrap_or_else(|_| {
            Err(attempts.uncounted_failure(UpstreamError::ResponseTimeout(limit)))
        })
    }

    /// Sends a request for an upgrade and waits for the head of the response.
    pub(crate) async fn send_upgrade(
        &self,
        mut request: OutgoingRequest,
    ) -> Result<UpgradeResponse, RequestFailure> {
        let mut attempts = Attempts { is_upgrade: true, ..Attempts::new(self) };
        loop {
            match attempts.next()?.send_upgrade(request).await {
                Ok(response) => return Ok(attempts.succeed(response)),
                Err(SendError::MaybeSent(error)) => return Err(attempts.give_up(error)),
                Err(SendError::NotSent(unsent, error)) => {
                    attempts.fail(error);
                    request = unsent;
                }
            }
        }
    }

    /// Opens a raw connection to one of the servers.
    pub(crate) async fn connect(&self) -> Result<RawConnection, RequestFailure> {
        let mut attempts = Attempts::new(self);
        loop {
            let server = attempts.next()?;
            match server.connect().await {
                Ok(connected) => {
                    let server = server.config().clone();
                    let _guard = connected.guard;
                    let io = connected.io;
                    return Ok(attempts.succeed(RawConnection { io, server, _guard }));
                }
                Err(error) => attempts.fail(error),
            }
        }
    }

    /// Chooses one of the healthy servers that were not tried yet, and its index. If all of them
    /// are ejected, one of those is chosen: a client can provoke slow and failing responses, and must
    /// not leave the service without servers.
    fn choose(&self, tried: &[usize]) -> Option<(usize, Rc<UpstreamServer>)> {
        let untried =
            || self.servers.iter().enumerate().filter(|(index, _)| !tried.contains(index));
        let mut candidates: SmallVec<[_; 8]> =
            untried().filter_map(|(index, server)| server.candidate(index)).collect();
        if candidates.is_empty() {
            candidates =
                untried().filter_map(|(index, server)| server.ejected_candidate(index)).collect();
        }
        let index = match candidates.as_slice() {
            [only] => only.index,
            several => self.balancer.choose(several)?,
        };
        self.servers.get(index).map(|server| (index, Rc::clone(server)))
    }

    /// Ejects a server that fails too often, if there is another one.
    fn record_failure(&self, server: &UpstreamServer, error: &UpstreamError) {
        if error.is_of_server() && self.servers.len() > 1 {
            server.record_failure(self.settings().max_failures, self.settings().retry_after);
        }
    }

    /// Closes upstream connections that are idle for too long, or too old.
    pub(crate) fn drop_stale(&self) {
        self.servers.iter().for_each(|server| server.drop_stale());
    }
}

/// The attempts of one request: one server after another, until a part of the request was sent.
struct Attempts<'a> {
    upstream: &'a Upstream,
    tried: SmallVec<[usize; 4]>,
    server: Option<Rc<UpstreamServer>>,
    last_error: Option<UpstreamError>,
    /// A server that refuses an upgrade is not at fault.
    is_upgrade: bool,
}

impl<'a> Attempts<'a> {
    fn new(upstream: &'a Upstream) -> Self {
        let tried = SmallVec::new();
        Self { upstream, tried, server: None, last_error: None, is_upgrade: false }
    }

    async fn send(
        &mut self,
        mut request: OutgoingRequest,
    ) -> Result<UpstreamResponse, RequestFailure> {
        loop {
            match self.next()?.send(request).await {
                Ok(response) => return Ok(self.succeed(response)),
                Err(SendError::MaybeSent(error)) => return Err(self.give_up(error)),
                Err(SendError::NotSent(unsent, error)) => {
                    self.fail(error);
                    request = unsent;
                }
            }
        }
    }

    /// The next server; if none is left, the failure of the request.
    fn next(&mut self) -> Result<Rc<UpstreamServer>, RequestFailure> {
        let Some((index, server)) = self.upstream.choose(&self.tried) else {
            let error = self.last_error.take().unwrap_or(UpstreamError::NoHealthyServer);
            return Err(self.failure(error));
        };
        self.tried.push(index);
        self.server = Some(Rc::clone(&server));
        Ok(server)
    }

    fn succeed<T>(&self, response: T) -> T {
        if let Some(server) = &self.server {
            server.record_success();
        }
        response
    }

    /// Records an attempt of which nothing was sent: another server may be tried.
    fn fail(&mut self, error: UpstreamError) {
        self.record_failure(&error);
        self.last_error = Some(error);
    }

    /// Ends the attempts after a part of the request was sent.
    fn give_up(&self, error: UpstreamError) -> RequestFailure {
        self.record_failure(&error);
        self.failure(error)
    }

    fn record_failure(&self, error: &UpstreamError) {
        if let Some(server) = self.server.as_ref().filter(|_| !self.is_upgrade) {
            self.upstream.record_failure(server, error);
        }
    }

    /// Counts the failure of the request.
    fn failure(&self, error: UpstreamError) -> RequestFailure {
        if let Some(kind) = error.kind() {
            self.upstream.metrics.upstream_failures.of(kind).inc();
        }
        self.uncounted_failure(error)
    }

    fn uncounted_failure(&self, error: UpstreamError) -> RequestFailure {
        let server = self.server.as_ref().map(|server| server.config().clone());
        RequestFailure { server, error }
    }
}

#[cfg(test)]
mod tests {
    use std::future::pending;
    use std::net::{SocketAddr, TcpListener};
    use std::path::Path;
    use std::pin::pin;
    use std::task::{Context, Waker};

    use hyper::{Request, header};
    use tokio::task::LocalSet;

    use super::*;
    use crate::config::Config;
    use crate::metrics::{UpstreamFailure, WorkerMetrics};
    use crate::proxy::message::body::{BodyLimits, RequestBody};

    /// The upstream of a service with these servers; a server is ejected after one failure.
    fn upstream(servers: &[String]) -> Upstream {
        let text = format!(
            r#"
            [[filters]]
            name = "lost"
            path = "lost.pkbf"

            [[services]]
            name = "orders"
            listen = "127.0.0.1:8443"
            tls = {{ certificate = "s.pem", private_key = "s.key" }}
            client_auth = {{ trust_anchors = "ca.pem" }}
            upstream = {{ servers = {servers:?}, max_failures = 1 }}
            "#
        );
        let mut config = Config::parse(Path::new("/etc/keygate/keygate.toml"), &text).unwrap();
        let metrics = WorkerMetrics::new(&["orders"]).unwrap().service("orders");
        let config = Arc::new(config.services.remove(0));
        Upstream::new(&config, None, &HealthRegistry::default(), Rc::new(metrics), 1)
    }

    fn get() -> OutgoingRequest {
        let limits = BodyLimits { max_size: None, idle_timeout: Duration::from_secs(1) };
        let status_header = Rc::new(header::FORWARDED);
        let body = RequestBody::new(Incoming::Empty, None, limits, status_header, None, false);
        let request = Request::get("/").header(header::HOST, "a.example").body(body);
        Box::new(request.unwrap())
    }

    /// An address on which nothing listens.
    fn closed_address() -> SocketAddr {
        TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap()
    }

    fn failures(upstream: &Upstream, kind: UpstreamFailure) -> u64 {
        upstream.metrics.upstream_failures.of(kind).get()
    }

    #[tokio::test]
    async fn a_failure_names_the_server_that_was_tried_last() {
        let servers =
            [closed_address(), closed_address()].map(|address| format!("http://{address}"));
        let upstream = upstream(&servers);
        let failure = upstream.send(get()).await.unwrap_err();
        assert!(matches!(failure.error, UpstreamError::Dial(_)), "{failure}");
        let server = failure.server.unwrap().to_string();
        assert!(servers.contains(&server), "{server}");
        assert!(failure.error.to_string().contains(&server), "{} of {server}", failure.error);
        assert_eq!(failures(&upstream, UpstreamFailure::Connect), 1, "one request failed");

        let failure = upstream.send(get()).await.unwrap_err();
        assert!(matches!(failure.error, UpstreamError::Dial(_)), "both are ejected, and are tried");
        assert_eq!(failures(&upstream, UpstreamFailure::Connect), 2);

        upstream.servers.iter().for_each(|server| server.set_healthy(false));
        let failure = upstream.send(get()).await.unwrap_err();
        assert!(matches!(failure.error, UpstreamError::NoHealthyServer), "{failure}");
        assert_eq!(failure.server, None);
        assert_eq!(failures(&upstream, UpstreamFailure::Unavailable), 1);
    }

    #[tokio::test]
    async fn the_expiry_of_request_timeout_names_the_server_and_is_no_failure_of_it() {
        let silent = TcpListener::bind("127.0.0.1:0").unwrap();
        let server = format!("http://{}", silent.local_addr().unwrap());
        let upstream = upstream(std::slice::from_ref(&server));
        let limit = Duration::from_millis(50);
        let sent = LocalSet::new().run_until(upstream.send_within(limit, get())).await;
        let failure = sent.unwrap_err();
        assert!(
            matches!(failure.error, UpstreamError::ResponseTimeout(expired) if expired == limit)
        );
        assert_eq!(failure.server.unwrap().to_string(), server);
        assert_eq!(failures(&upstream, UpstreamFailure::Timeout), 0);
    }

    #[tokio::test]
    async fn a_request_that_waits_for_a_shared_connection_is_in_flight() {
        let upstream = upstream(&[format!("h2c://{}", closed_address())]);
        let server = upstream.servers.first().unwrap();
        let in_flight = || server.candidate(0).unwrap().in_flight;
        let mut context = Context::from_waker(Waker::noop());
        let mut connecting = pin!(server.http2.get(pending()));
        assert!(connecting.as_mut().poll(&mut context).is_pending());
        {
            let mut sending = Box::pin(upstream.send(get()));
            assert!(sending.as_mut().poll(&mut context).is_pending());
            assert_eq!(in_flight(), 1);
        }
        assert_eq!(in_flight(), 0);
    }
}

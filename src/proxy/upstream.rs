//! The upstream of a service, in one worker: chooses the server of each request, tries another one
//! if nothing was sent, and ejects servers that fail.

mod attempts;
mod balance;
pub(crate) mod dial;
mod ejection;
pub(crate) mod error;
pub(crate) mod health;
pub(crate) mod http1;
pub(crate) mod http2;
mod http2_pool;
mod isolation;
pub(crate) mod server;
pub(crate) mod server_state;
mod upgrade;

use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use hyper::Response;
use hyper::header::HeaderValue;
use keygate_wire::incoming::Incoming;
use keygate_wire::permit::ClientKey;
use rustls::ClientConfig;
use smallvec::SmallVec;
use tokio::time::timeout;

use self::attempts::{Attempts, Tried};
use self::balance::Balancer;
use self::dial::{ConnectionGuard, ConnectionLimit, Io, Offer};
use self::ejection::Ejections;
pub(crate) use self::error::UpstreamError;
use self::http1::{IdleConnections, Tunnel};
use self::isolation::Isolation;
use self::server::{Lease, ServerConnection, SharedByServers, UpstreamServer};
use self::server_state::ServerStates;
use super::message::body::OutgoingRequest;
use crate::config::{Scheme, ServerConfig, ServiceConfig, UpstreamConfig};
use crate::metrics::ServiceMetrics;
use crate::resolver::Resolver;

/// The servers of a service.
#[derive(Debug)]
pub(crate) struct Upstream {
    config: Arc<ServiceConfig>,
    tls: Option<Arc<ClientConfig>>,
    metrics: Rc<ServiceMetrics>,
    servers: Vec<Rc<UpstreamServer>>,
    balancer: Balancer,
    pub(crate) isolation: Rc<Isolation>,
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
        states: &ServerStates,
        resolver: &Resolver,
        metrics: Rc<ServiceMetrics>,
        workers: usize,
    ) -> Self {
        let upstream = &config.upstream;
        // Workers share nothing: each has its part of `max_connections`.
        let max = upstream.max_connections.div_ceil(workers.max(1));
        let UpstreamConfig { max_failures, retry_after, .. } = *upstream;
        let ejections = Ejections::new(upstream.servers.len(), max_failures, retry_after);
        let isolation = Rc::<Isolation>::default();
        let shared = SharedByServers {
            metrics: Rc::clone(&metrics),
            ejections: Rc::new(ejections),
            limit: ConnectionLimit::new(max),
            idle: IdleConnections::default(),
            isolation: Rc::clone(&isolation),
        };
        let servers = upstream.servers.iter().enumerate().map(|(index, server)| {
            let state = states.of(&config.name, server);
            let shared = shared.clone();
            let server = (index, server);
            Rc::new(UpstreamServer::new(config, server, tls, resolver, state, shared))
        });
        Self {
            servers: servers.collect(),
            balancer: Balancer::new(upstream.balance),
            config: Arc::clone(config),
            tls: tls.cloned(),
            metrics,
            isolation,
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

    /// Whether a response may come over HTTP/2.
    pub(crate) fn may_speak_http2(&self) -> bool {
        self.servers.iter().any(|server| server.may_speak_http2.get())
    }

    /// The `Host` of a request that has none (HTTP/1.0).
    pub(crate) fn default_host(&self) -> Option<HeaderValue> {
        let server = self.servers.first()?;
        HeaderValue::from_str(&server.config().address.to_string()).ok()
    }

    /// Sends a request and waits for the head of the response.
    pub(crate) async fn send(
        &self,
        client: ClientKey,
        request: OutgoingRequest,
    ) -> Result<UpstreamResponse, RequestFailure> {
        let send = async |server: Rc<UpstreamServer>, request| server.send(client, request).await;
        Attempts::new(self, client).send(request, send).await
    }

    /// Sends a request and waits for the head of the response, for at most `limit`, which is
    /// `request_timeout`. Its expiry does not count as a failure of the upstream, because the
    /// client may have been slow.
    pub(crate) async fn send_within(
        &self,
        limit: Duration,
        client: ClientKey,
        request: OutgoingRequest,
    ) -> Result<UpstreamResponse, RequestFailure> {
        let mut attempts = Attempts::new(self, client);
        let send = async |server: Rc<UpstreamServer>, request| server.send(client, request).await;
        let outcome = timeout(limit, attempts.send(request, send)).await;
        outcome.unwrap_or_else(|_| {
            Err(attempts.uncounted_failure(UpstreamError::ResponseTimeout(limit)))
        })
    }

    /// Sends a request for an upgrade and waits for the head of the response.
    pub(crate) async fn send_upgrade(
        &self,
        client: ClientKey,
        request: OutgoingRequest,
    ) -> Result<UpgradeResponse, RequestFailure> {
        let send =
            async |server: Rc<UpstreamServer>, request| server.send_upgrade(client, request).await;
        let upgrade = Attempts::new(self, client).for_upgrade().send(request, send).await?;
        if upgrade.tunnel.is_some() {
            upgrade.response.lease.record_success();
        }
        Ok(upgrade)
    }

    /// Opens a raw connection to one of the servers.
    pub(crate) async fn connect(&self, client: ClientKey) -> Result<RawConnection, RequestFailure> {
        let mut attempts = Attempts::new(self, client);
        loop {
            let server = attempts.next(None)?;
            let began = Instant::now();
            let connected = match server.client_share(client) {
                Ok(share) => server.connect(Offer::AnyVersion, Some(share)).await,
                Err(error) => Err(error),
            };
            match connected {
                Ok(ServerConnection { io, guard, .. }) => {
                    server.record_success(began);
                    return Ok(RawConnection {
                        io,
                        server: server.config().clone(),
                        _guard: guard,
                    });
                }
                Err(error) => attempts.fail(error),
            }
        }
    }

    /// Chooses one of the healthy servers that were not tried yet, and its index. If all of them
    /// are ejected, one of those is chosen, unless the request has tried an ejected one.
    fn choose(&self, tried: &Tried) -> Option<(usize, Rc<UpstreamServer>)> {
        let untried = || {
            let servers = self.servers.iter().enumerate();
            servers.filter(|(index, _)| !tried.servers.contains(index)).map(|(_, server)| server)
        };
        let mut candidates: SmallVec<[_; 8]> =
            untried().filter_map(|server| server.candidate()).collect();
        if candidates.is_empty() && !tried.has_ejected {
            candidates = untried().filter_map(|server| server.ejected_candidate()).collect();
        }
        let index = match candidates.as_slice() {
            [only] => only.index,
            several => self.balancer.choose(several)?,
        };
        self.servers.get(index).map(|server| (index, Rc::clone(server)))
    }

    /// Closes upstream connections that are idle for too long, or too old.
    pub(crate) fn drop_stale(&self) {
        self.servers.iter().for_each(|server| server.drop_stale());
    }
}

#[cfg(test)]
mod tests {
    use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener};
    use std::task::{Context, Waker};

    use hyper::{Request, header};
    use tokio::task::LocalSet;

    use super::*;
    use crate::config::example::{changed, parse};
    use crate::metrics::{UpstreamFailure, WorkerMetrics};
    use crate::proxy::message::body::{BodyLimits, RequestBody};

    /// The upstream of a service with these servers; a server is ejected after one failure.
    fn upstream(servers: &[String]) -> Upstream {
        upstream_with(servers, "max_failures = 1")
    }

    fn upstream_with(servers: &[String], settings: &str) -> Upstream {
        let text = changed(
            r#"servers = ["http://127.0.0.1:8080"]"#,
            &format!("servers = {servers:?}, {settings}"),
        );
        let mut config = parse(&text).unwrap();
        let metrics = WorkerMetrics::new(&["orders"], &[]).unwrap().service("orders");
        let config = Arc::new(config.services.remove(0));
        let (states, resolver) = (ServerStates::default(), Resolver::start().unwrap());
        Upstream::new(&config, None, &states, &resolver, Rc::new(metrics), 1)
    }

    fn client() -> ClientKey {
        ClientKey::new(None, IpAddr::V4(Ipv4Addr::LOCALHOST))
    }

    fn get() -> OutgoingRequest {
        let limits = BodyLimits { max_size: None, idle_timeout: Duration::from_secs(1) };
        let own = Rc::new(crate::proxy::message::headers::OwnNames {
            status: header::FORWARDED,
            assertion: None,
        });
        let body = RequestBody::new(Incoming::Empty, None, limits, own, None, false);
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
        let failure = upstream.send(client(), get()).await.unwrap_err();
        assert!(matches!(failure.error, UpstreamError::Dial(_)), "{failure}");
        let server = failure.server.unwrap().to_string();
        assert!(servers.contains(&server), "{server}");
        assert!(failure.error.to_string().contains(&server), "{} of {server}", failure.error);
        assert_eq!(failures(&upstream, UpstreamFailure::Connect), 1, "one request failed");

        let failure = upstream.send(client(), get()).await.unwrap_err();
        assert!(matches!(failure.error, UpstreamError::Dial(_)), "both are ejected, and are tried");
        assert_eq!(failures(&upstream, UpstreamFailure::Connect), 2);

        upstream.servers.iter().for_each(|server| server.set_healthy(false));
        let failure = upstream.send(client(), get()).await.unwrap_err();
        assert!(matches!(failure.error, UpstreamError::Unavailable(_)), "{failure}");
        assert_eq!(failure.server, None);
        assert_eq!(failures(&upstream, UpstreamFailure::Unavailable), 1);
    }

    /// A request is charged for the window of its response before its connection is opened.
    #[test]
    fn a_server_that_has_not_selected_a_version_may_speak_http2() {
        let tls = "tls = { trust_anchors = \"ca.pem\" }, http = ";
        for (scheme, http, expected) in [
            ("http", "auto", false),
            ("h2c", "auto", true),
            ("https", "auto", true),
            ("https", "1.1", false),
        ] {
            let servers = [format!("{scheme}://{}", closed_address())];
            let tls = if scheme == "https" { format!("{tls}\"{http}\"") } else { String::new() };
            let upstream = upstream_with(&servers, &tls);
            assert_eq!(upstream.may_speak_http2(), expected, "{scheme} {http}");
        }
    }

    #[tokio::test]
    async fn the_expiry_of_request_timeout_names_the_server_and_is_no_failure_of_it() {
        let silent = TcpListener::bind("127.0.0.1:0").unwrap();
        let server = format!("http://{}", silent.local_addr().unwrap());
        let upstream = upstream(std::slice::from_ref(&server));
        let limit = Duration::from_millis(50);
        let sent = LocalSet::new().run_until(upstream.send_within(limit, client(), get())).await;
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
        let in_flight = || server.candidate().unwrap().in_flight;
        let mut context = Context::from_waker(Waker::noop());
        server.http2.begin_opening();
        {
            let mut sending = Box::pin(upstream.send(client(), get()));
            assert!(sending.as_mut().poll(&mut context).is_pending());
            assert_eq!(in_flight(), 1);
        }
        assert_eq!(in_flight(), 0);
    }
}

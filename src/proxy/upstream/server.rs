//! One server of an upstream, with this worker's connections to it.
//!
//! HTTP/1.1 connections are reused last in, first out, so that those which the load no longer needs
//! grow idle and are closed. One HTTP/2 connection carries all requests.

mod over_http2;

use std::cell::Cell;
use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Poll;
use std::time::{Duration, Instant};

use hyper::body::Body;
use hyper::http::uri;
use hyper::{Method, Request, Response, StatusCode};
use rustls::ClientConfig;
use tokio::time::sleep_until;

use super::UpstreamResponse;
use super::balance::Candidate;
use super::dial::{ConnectionGuard, ConnectionLimit, Dialer, HttpVersion, Io};
use super::error::{RequestError, SendError, UpstreamError};
use super::http1::{Http1Connection, Http1Pool};
use super::http2::StreamPermit;
use super::http2_pool::SharedHttp2;
use crate::config::{Scheme, ServerConfig, UpstreamConfig};
use crate::metrics::ServiceMetrics;
use crate::permit::{Count, CountGuard};
use crate::proxy::message::body::{
    HttpError, Incoming, OutgoingRequest, RequestBody, RequestUpload,
};

/// The health of one server by its checks, which the control thread makes.
#[derive(Debug)]
pub(crate) struct ServerHealth(AtomicBool);

impl Default for ServerHealth {
    /// A server may get requests until its checks have failed.
    fn default() -> Self {
        Self(AtomicBool::new(true))
    }
}

impl ServerHealth {
    /// Whether the server may get requests.
    pub(crate) fn is_healthy(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    /// Sets the result of the health checks, for every worker.
    pub(crate) fn set(&self, is_healthy: bool) {
        self.0.store(is_healthy, Ordering::Relaxed);
    }
}

/// A server, in one worker.
#[derive(Debug)]
pub(crate) struct UpstreamServer {
    dialer: Dialer,
    timeouts: ServerTimeouts,
    metrics: Rc<ServiceMetrics>,
    /// The result of the health checks.
    health: Arc<ServerHealth>,
    http1: Http1Pool,
    /// The HTTP/2 connection for requests.
    pub(super) http2: SharedHttp2,
    /// The HTTP/2 connection for tunnels.
    http2_tunnels: SharedHttp2,
    /// The version that the server spoke on the newest connection.
    version: Cell<HttpVersion>,
    /// Requests without a complete response.
    in_flight: Count,
    /// Consecutive failures.
    failures: Cell<u32>,
    ejected_until: Cell<Option<Instant>>,
    limit: ConnectionLimit,
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct ServerTimeouts {
    pub(crate) response: Duration,
    idle: Duration,
    age: Option<Duration>,
}

/// A new connection to a server.
pub(crate) struct ServerConnection {
    pub(crate) io: Box<dyn Io>,
    pub(crate) version: HttpVersion,
    pub(crate) guard: ConnectionGuard,
}

impl UpstreamServer {
    pub(crate) fn new(
        upstream: &UpstreamConfig,
        server: &ServerConfig,
        tls: Option<&Arc<ClientConfig>>,
        health: Arc<ServerHealth>,
        metrics: Rc<ServiceMetrics>,
        limit: ConnectionLimit,
    ) -> Self {
        let is_http2 = server.scheme == Scheme::H2c;
        Self {
            dialer: Dialer::new(upstream, server, tls),
            timeouts: ServerTimeouts {
                response: upstream.response_timeout,
                idle: upstream.idle_timeout,
                age: upstream.max_connection_age,
            },
            metrics,
            health,
            http1: Http1Pool::default(),
            http2: SharedHttp2::new(),
            http2_tunnels: SharedHttp2::new(),
            version: Cell::new(if is_http2 { HttpVersion::Http2 } else { HttpVersion::Http1 }),
            in_flight: Count::default(),
            failures: Cell::new(0),
            ejected_until: Cell::new(None),
            limit,
        }
    }

    pub(crate) fn config(&self) -> &ServerConfig {
        self.dialer.server()
    }

    pub(crate) fn timeouts(&self) -> ServerTimeouts {
        self.timeouts
    }

    /// The version that the server spoke on the newest connection.
    pub(crate) fn version(&self) -> HttpVersion {
        self.version.get()
    }

    /// The scheme in the pseudo-header of HTTP/2 requests.
    pub(crate) fn uri_scheme(&self) -> uri::Scheme {
        if self.config().scheme.is_secure() { uri::Scheme::HTTPS } else { uri::Scheme::HTTP }
    }

    /// The server as a candidate for the next request, unless it is unhealthy or ejected.
    pub(crate) fn candidate(&self, index: usize) -> Option<Candidate> {
        let is_ejected = self.ejected_until.get().is_some_and(|until| Instant::now() < until);
        self.ejected_candidate(index).filter(|_| !is_ejected)
    }

    #[cfg(test)]
    pub(crate) fn set_healthy(&self, is_healthy: bool) {
        self.health.set(is_healthy);
    }

    /// The server as a candidate although it may be ejected, unless it is unhealthy.
    pub(crate) fn ejected_candidate(&self, index: usize) -> Option<Candidate> {
        self.health.is_healthy().then(|| Candidate {
            index,
            weight: self.config().weight,
            in_flight: self.in_flight.get(),
        })
    }

    /// Ejects the server for `retry_after` after `max_failures` consecutive failures.
    pub(crate) fn record_failure(&self, max_failures: u32, retry_after: Duration) {
        let failures = self.failures.get().saturating_add(1);
        self.failures.set(failures);
        if failures >= max_failures {
            self.ejected_until.set(Some(Instant::now() + retry_after));
            tracing::warn!(server = %self.config(), failures, ?retry_after, "upstream server ejected");
        }
    }

    /// Ends the row of consecutive failures.
    pub(crate) fn record_success(&self) {
        self.failures.set(0);
    }

    /// Sends a request and waits for the head of the response.
    pub(crate) async fn send(
        self: &Rc<Self>,
        request: OutgoingRequest,
    ) -> Result<UpstreamResponse, SendError> {
        // Counts the request while it waits for a connection or a stream slot.
        let lease = Lease::new(self);
        let CarriedResponse { response, carrier } = match self.version.get() {
            HttpVersion::Http1 => self.send_http1(request).await?,
            HttpVersion::Http2 => Box::pin(self.send_http2(request)).await?,
        };
        // What follows on the connection is another protocol, which this request did not ask for.
        if response.status() == StatusCode::SWITCHING_PROTOCOLS {
            return Err(SendError::MaybeSent(UpstreamError::UnexpectedUpgrade));
        }
        Ok(UpstreamResponse { response, lease: lease.with(carrier) })
    }

    async fn send_http1(&self, mut request: OutgoingRequest) -> Result<CarriedResponse, SendError> {
        // The server may close a pooled connection at any moment. A request that was not written
        // goes to the next pooled connection, and to a new one when none is left.
        while let Some(mut http1) = self.http1.take(self.timeouts.age) {
            let second = try_clone(&request);
            match self.exchange_http1(&mut http1, request).await {
                Ok(response) => {
                    return Ok(CarriedResponse { response, carrier: Carrier::Http1(http1) });
                }
                Err(SendError::NotSent(unsent, _)) => request = unsent,
                // Written, and closed without a response: an idempotent request is sent once more.
                Err(SendError::MaybeSent(error @ UpstreamError::Protocol(_)))
                    if !http1.has_received() =>
                {
                    request = second.ok_or(SendError::MaybeSent(error))?;
                    break;
                }
                Err(error) => return Err(error),
            }
        }
        // Boxed, because its size would be part of every request's future.
        Box::pin(self.send_on_new_connection(request)).await
    }

    async fn send_on_new_connection(
        &self,
        request: OutgoingRequest,
    ) -> Result<CarriedResponse, SendError> {
        let connection = match self.connect().await {
            Ok(connection) => connection,
            Err(error) => return Err(SendError::NotSent(request, error)),
        };
        if connection.version == HttpVersion::Http2 {
            if let Err(error) = self.share(connection.io, connection.guard).await {
                return Err(SendError::NotSent(request, error));
            }
            return self.send_http2(request).await;
        }
        let started = Http1Connection::start(connection.io, connection.guard, None).await;
        let mut http1 = started.map_err(|error| maybe_sent(HttpError::from(error)))?;
        let response = self.exchange_http1(&mut http1, request).await?;
        Ok(CarriedResponse { response, carrier: Carrier::Http1(http1) })
    }

    /// Opens a connection, over any version that the server speaks.
    pub(crate) async fn connect(&self) -> Result<ServerConnection, UpstreamError> {
        let guard = self.guard()?;
        let dialed = self.dialer.dial().await?;
        self.metrics.upstream_connections.inc();
        Ok(ServerConnection { io: dialed.io, version: dialed.version, guard })
    }

    /// Opens an HTTP/1.1 connection.
    pub(crate) async fn connect_http1(&self) -> Result<ServerConnection, UpstreamError> {
        let guard = self.guard()?;
        let io = self.dialer.dial_http1().await?;
        self.metrics.upstream_connections.inc();
        Ok(ServerConnection { io, version: HttpVersion::Http1, guard })
    }

    fn guard(&self) -> Result<ConnectionGuard, UpstreamError> {
        let metric = &self.metrics.upstream_connections_active;
        self.limit.enter(metric).ok_or(UpstreamError::ConnectionLimit)
    }

    /// Closes connections that are idle for too long, too old, or closed by the server.
    pub(crate) fn drop_stale(&self) {
        let ServerTimeouts { idle, age, .. } = self.timeouts;
        self.http1.drop_stale(idle, age);
        for shared in [&self.http2, &self.http2_tunnels] {
            shared.drop_stale(idle, age, self.in_flight.get());
        }
    }

    /// Sends a request on an HTTP/1.1 connection and waits for the head of the response.
    pub(crate) async fn exchange_http1(
        &self,
        http1: &mut Http1Connection,
        request: OutgoingRequest,
    ) -> Result<Response<Incoming>, SendError> {
        let upload = request.body().upload();
        let response = pin!(http1.send(request));
        let response = exchange(response, upload.as_ref(), self.timeouts.response).await?;
        Ok(response.map(Incoming::Http1))
    }
}

/// The share of a server that one request uses, until its response has ended.
#[derive(Debug)]
pub(crate) struct Lease {
    server: Rc<UpstreamServer>,
    _in_flight: CountGuard,
    carrier: Option<Carrier>,
}

/// The connection or stream on which a response comes.
#[derive(Debug)]
pub(crate) enum Carrier {
    Http1(Http1Connection),
    Http2 { _permit: Rc<StreamPermit> },
}

/// The head of a response, and the connection or stream on which its body comes.
struct CarriedResponse {
    response: Response<Incoming>,
    carrier: Carrier,
}

impl Lease {
    pub(crate) fn new(server: &Rc<UpstreamServer>) -> Self {
        Self { server: Rc::clone(server), _in_flight: server.in_flight.enter(), carrier: None }
    }

    /// The lease of a response that comes on `carrier`.
    pub(crate) fn with(self, carrier: Carrier) -> Self {
        Self { carrier: Some(carrier), ..self }
    }

    /// Returns an HTTP/1.1 connection to the pool, because the response has ended.
    pub(crate) fn finish(self) {
        if let Some(Carrier::Http1(http1)) = self.carrier {
            self.server.http1.put(http1, self.server.timeouts.age);
        }
    }

    pub(crate) fn server(&self) -> &ServerConfig {
        self.server.config()
    }
}

/// The error of a request that the server may have read.
pub(crate) fn maybe_sent(error: HttpError) -> SendError {
    SendError::MaybeSent(error.into())
}

/// Waits for the head of a response, for at most `limit` after the server took the last piece of
/// the request.
pub(crate) async fn exchange<R, E: Into<RequestError>>(
    mut response: Pin<&mut impl Future<Output = Result<R, E>>>,
    upload: Option<&RequestUpload>,
    limit: Duration,
) -> Result<R, SendError> {
    let began = Instant::now(); // the request may have waited before
    let deadline_of = || {
        let progress = upload.map_or(began, RequestUpload::last_progress);
        (progress.max(began) + limit).into()
    };
    let mut deadline = pin!(sleep_until(deadline_of()));
    poll_fn(|context| {
        if let Poll::Ready(outcome) = response.as_mut().poll(context) {
            return Poll::Ready(outcome.map_err(|error| {
                let RequestError { unsent, error } = error.into();
                match (unsent, upload.and_then(RequestUpload::fault)) {
                    (Some(unsent), _) => SendError::NotSent(unsent, error.into()),
                    (None, Some(fault)) => SendError::MaybeSent(UpstreamError::Client(fault)),
                    (None, None) => maybe_sent(error),
                }
            }));
        }
        // While the upload waits for the client, `body_timeout` applies instead.
        while Pin::as_mut(&mut deadline).poll(context).is_ready() {
            let later = if upload.is_some_and(RequestUpload::waits_for_client) {
                (Instant::now() + limit).into()
            } else {
                deadline_of()
            };
            if later <= deadline.deadline() {
                let error = UpstreamError::ResponseTimeout(limit);
                return Poll::Ready(Err(SendError::MaybeSent(error)));
            }
            deadline.as_mut().reset(later);
        }
        Poll::Pending
    })
    .await
}

/// A second copy of a request that is safe to send twice (RFC 9110, section 9.2.2).
pub(crate) fn try_clone(request: &Request<RequestBody>) -> Option<OutgoingRequest> {
    let safe = [Method::GET, Method::HEAD, Method::OPTIONS, Method::TRACE];
    if !safe.contains(request.method()) || !request.body().is_end_stream() {
        return None;
    }
    let mut second = Request::new(request.body().try_clone()?);
    *second.method_mut() = request.method().clone();
    *second.uri_mut() = request.uri().clone();
    *second.version_mut() = request.version();
    *second.headers_mut() = request.headers().clone();
    Some(Box::new(second))
}

//! One server of an upstream, with this worker's connections to it.
//!
//! HTTP/1.1 connections are reused last in, first out, so that those which the load no longer needs
//! grow idle and are closed. Requests over HTTP/2 share few connections.

mod connect;
mod lease;
mod over_http2;

use std::cell::{Cell, RefCell};
use std::fmt::Display;
use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::sync::Arc;
use std::task::Poll;
use std::time::{Duration, Instant};

use hyper::http::uri;
use hyper::{Response, StatusCode};
use keygate_wire::incoming::{HttpError, Incoming};
use keygate_wire::permit::{ClientKey, Count};
use rustls::ClientConfig;
use tokio::time::sleep_until;

pub(crate) use self::connect::ServerConnection;
pub(crate) use self::lease::{Carrier, Lease};
use super::UpstreamResponse;
use super::balance::Candidate;
use super::dial::{ConnectionLimit, Dialer, HttpVersion, Offer};
use super::ejection::{Ejection, Ejections, ServerFailure};
use super::error::{SendError, UpstreamError};
use super::http1::{Http1Connection, Http1Pool, IdleConnections};
use super::http2_pool::{Http2Pool, PoolPurpose};
use super::isolation::Isolation;
use super::server_state::ServerState;
use crate::config::{Reuse, Scheme, ServerConfig, ServiceConfig, UpstreamConfig, UpstreamHttp};
use crate::metrics::ServiceMetrics;
use crate::proxy::message::body::{OutgoingRequest, RequestUpload, is_safe};
use crate::resolver::Resolver;

/// A server, in one worker.
#[derive(Debug)]
pub(crate) struct UpstreamServer {
    dialer: Dialer,
    state: Arc<ServerState>,
    shared: SharedByServers,
    http1: Rc<Http1Pool>,
    /// The HTTP/2 connections for requests.
    pub(super) http2: Rc<Http2Pool>,
    /// The HTTP/2 connections for tunnels.
    http2_tunnels: Rc<Http2Pool>,
    /// The pools of isolated clients.
    isolated: RefCell<Vec<Rc<Http2Pool>>>,
    /// The version that the server spoke on the newest connection; `None` until it has selected one.
    version: Cell<Option<HttpVersion>>,
    /// Whether the next response may come over HTTP/2. A load balancer may have servers of both
    /// versions behind it, so it stays set.
    pub(super) may_speak_http2: Cell<bool>,
    /// Requests without a complete response.
    in_flight: Count,
    /// The index of the server in the upstream.
    index: usize,
}

/// The state that the servers of one upstream share in one worker.
#[derive(Debug, Clone)]
pub(crate) struct SharedByServers {
    pub(crate) metrics: Rc<ServiceMetrics>,
    pub(crate) ejections: Rc<Ejections>,
    pub(crate) limit: ConnectionLimit,
    /// The idle connections to all servers.
    pub(crate) idle: IdleConnections,
    pub(crate) isolation: Rc<Isolation>,
}

impl UpstreamServer {
    /// The server at `index` of an upstream.
    pub(crate) fn new(
        service: &Arc<ServiceConfig>,
        (index, server): (usize, &ServerConfig),
        tls: Option<&Arc<ClientConfig>>,
        resolver: &Resolver,
        state: Arc<ServerState>,
        shared: SharedByServers,
    ) -> Self {
        let version = match server.scheme {
            Scheme::H2c => Some(HttpVersion::Http2),
            Scheme::Https if service.upstream.http == UpstreamHttp::Auto => None,
            Scheme::Http | Scheme::Https | Scheme::Tcp | Scheme::Tls => Some(HttpVersion::Http1),
        };
        Self {
            dialer: Dialer::new(service, server, tls, resolver),
            state,
            http1: shared.idle.add_pool(),
            http2: Http2Pool::new(PoolPurpose::Requests, None, &shared.isolation),
            http2_tunnels: Http2Pool::new(PoolPurpose::Tunnels, None, &shared.isolation),
            shared,
            isolated: RefCell::default(),
            version: Cell::new(version),
            may_speak_http2: Cell::new(version != Some(HttpVersion::Http1)),
            in_flight: Count::default(),
            index,
        }
    }

    pub(crate) fn upstream(&self) -> &UpstreamConfig {
        self.dialer.upstream()
    }

    pub(crate) fn config(&self) -> &ServerConfig {
        self.dialer.server()
    }

    /// The version for the next request. A new connection may have another one.
    pub(crate) fn version(&self) -> HttpVersion {
        self.version.get().unwrap_or(HttpVersion::Http1)
    }

    /// The scheme in the pseudo-header of HTTP/2 requests.
    pub(crate) fn uri_scheme(&self) -> uri::Scheme {
        if self.config().scheme.is_secure() { uri::Scheme::HTTPS } else { uri::Scheme::HTTP }
    }

    /// The server as a candidate for the next request, unless it is unhealthy or ejected.
    pub(crate) fn candidate(&self) -> Option<Candidate> {
        self.ejected_candidate().filter(|_| !self.is_ejected())
    }

    pub(crate) fn is_ejected(&self) -> bool {
        self.shared.ejections.is_ejected(self.index)
    }

    /// The server as a candidate although it may be ejected, unless it is unhealthy.
    pub(crate) fn ejected_candidate(&self) -> Option<Candidate> {
        self.state.is_healthy().then(|| Candidate {
            index: self.index,
            weight: self.config().weight,
            in_flight: self.in_flight.get(),
        })
    }

    /// Records a failure, which may eject the server. `error` is for the status.
    pub(crate) fn record_failure(&self, failure: ServerFailure, error: impl Display) {
        let ejection = self.shared.ejections.record_failure(self.index, failure, Instant::now());
        if let Some(Ejection { failures, duration }) = ejection {
            self.state.record_ejection(duration);
            tracing::warn!(
                server = %self.config(), failures, retry_after = ?duration, "upstream server ejected"
            );
        }
        if self.shared.ejections.is_failing(self.index) {
            self.state.record_failing(|| error.to_string());
        }
    }

    /// Records that a request that began at `began` has succeeded.
    pub(crate) fn record_success(&self, began: Instant) {
        if self.shared.ejections.record_success(self.index, began) {
            self.state.record_response();
        }
    }

    /// Sends a request and waits for the head of the response.
    pub(crate) async fn send(
        self: &Rc<Self>,
        client: ClientKey,
        request: OutgoingRequest,
    ) -> Result<UpstreamResponse, SendError> {
        // Counts the request while it waits for a connection or a stream slot.
        let lease = Lease::new(self);
        let (lease, CarriedResponse { response, carrier }) = match self.version() {
            HttpVersion::Http1 => {
                let lease = match self.client_share(client) {
                    Ok(share) => lease.with_share(share),
                    Err(error) => return Err(SendError::NotSent(request, error)),
                };
                (lease, self.send_http1(client, request).await?)
            }
            HttpVersion::Http2 => (lease, Box::pin(self.send_http2(client, request)).await?),
        };
        // Another protocol follows on the connection, which the request did not name.
        if response.status() == StatusCode::SWITCHING_PROTOCOLS {
            return Err(SendError::MaybeSent(UpstreamError::UNEXPECTED_UPGRADE));
        }
        Ok(UpstreamResponse { response, lease: lease.with(carrier) })
    }

    async fn send_http1(
        self: &Rc<Self>,
        client: ClientKey,
        mut request: OutgoingRequest,
    ) -> Result<CarriedResponse, SendError> {
        // The server may close a pooled connection at any moment, before or while the request is
        // written.
        if let Some(http1) = self.http1.take(client, self.upstream().max_connection_age) {
            let upload = request.body().upload.clone();
            self.own(&http1, client, upload.as_ref());
            let second = http1.begin(request).map_err(maybe_sent)?;
            match self.exchange_http1(&http1, upload.as_ref()).await {
                Ok(response) => {
                    return Ok(CarriedResponse { response, carrier: Carrier::Http1(http1) });
                }
                // Written, and closed without a response: an idempotent request is sent once more.
                Err(SendError::MaybeSent(error @ UpstreamError::Protocol(_)))
                    if !http1.has_received() =>
                {
                    let second = second.filter(|request| is_safe(request.method()));
                    second
                        .iter()
                        .for_each(|it| it.body().record_resend(self.config(), error.kind()));
                    request = second.ok_or(SendError::MaybeSent(error))?;
                }
                Err(error) => return Err(error),
            }
        }
        // Boxed, because its size would be part of every request's future.
        Box::pin(self.send_on_new_connection(client, request)).await
    }

    async fn send_on_new_connection(
        self: &Rc<Self>,
        client: ClientKey,
        request: OutgoingRequest,
    ) -> Result<CarriedResponse, SendError> {
        let connection = match self.connect(Offer::AnyVersion, None).await {
            Ok(connection) => connection,
            Err(error) => return Err(SendError::NotSent(request, error)),
        };
        if connection.version == HttpVersion::Http2 {
            if let Err(error) = self.share(connection.io, connection.guard).await {
                return Err(SendError::NotSent(request, error));
            }
            return self.send_http2(client, request).await;
        }
        let http1 = Http1Connection::new(connection.io, connection.guard, true);
        let upload = request.body().upload.clone();
        self.own(&http1, client, upload.as_ref());
        http1.begin(request).map_err(maybe_sent)?;
        let response = self.exchange_http1(&http1, upload.as_ref()).await?;
        Ok(CarriedResponse { response, carrier: Carrier::Http1(http1) })
    }

    /// Keeps a connection for requests of `client` if it carries an upload. A server that leaves the
    /// upload unread takes it for requests, whose responses only their sender may get.
    fn own(&self, http1: &Http1Connection, client: ClientKey, upload: Option<&RequestUpload>) {
        match self.upstream().reuse {
            Reuse::Safe if upload.is_some() => http1.set_owner(client),
            Reuse::Always | Reuse::Safe => {}
        }
    }

    /// Closes connections that are idle for too long, too old, or closed by the server.
    pub(crate) fn drop_stale(&self) {
        let UpstreamConfig { idle_timeout: idle, max_connection_age: age, .. } = *self.upstream();
        self.http1.drop_stale(idle, age);
        for pool in [&self.http2, &self.http2_tunnels] {
            pool.drop_stale(idle, age);
        }
        self.drop_isolated();
        self.isolated.borrow().iter().for_each(|pool| pool.drop_stale(idle, age));
    }

    /// Sends the request that has begun on an HTTP/1.1 connection, and waits for the head of the
    /// response.
    pub(crate) async fn exchange_http1(
        &self,
        http1: &Http1Connection,
        upload: Option<&RequestUpload>,
    ) -> Result<Response<Incoming>, SendError> {
        let response = pin!(poll_fn(|context| http1.poll_response(context)));
        exchange(response, upload, self.upstream().response_timeout).await
    }
}

/// The head of a response, and the connection or stream on which its body comes.
struct CarriedResponse {
    response: Response<Incoming>,
    carrier: Carrier,
}

/// The error of a request that the server may have read.
pub(crate) fn maybe_sent(error: impl Into<HttpError>) -> SendError {
    SendError::MaybeSent(error.into().into())
}

/// Waits for the head of a response, for at most `limit` after the server took the last piece of
/// the request.
pub(crate) async fn exchange<R, E: Into<HttpError>>(
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
            return Poll::Ready(outcome.map_err(
                |error| match upload.and_then(RequestUpload::fault) {
                    Some(fault) => SendError::MaybeSent(UpstreamError::Client(fault)),
                    None => maybe_sent(error),
                },
            ));
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

#[cfg(test)]
impl UpstreamServer {
    pub(crate) fn set_healthy(&self, is_healthy: bool) {
        self.state.set_healthy(is_healthy);
    }
}

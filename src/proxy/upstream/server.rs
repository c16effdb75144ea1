//! One server of an upstream, with this worker's connections to it.
//!
//! Connections of HTTP/1.1 are reused last in, first out, so that those which load no longer needs
//! grow old and are closed. One connection of HTTP/2 carries all requests.

mod over_http2;

use std::cell::{Cell, RefCell};
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use hyper::Response;
use hyper::http::uri;
use rustls::ClientConfig;

use super::balance::Candidate;
use super::error::UpstreamError;
use super::exchange::{Failed, exchange, repeated};
use super::http1::{self, Http1};
use super::http2::Place;
use super::open::Open;
use super::request_body::Outgoing;
use super::shared::Shared;
use crate::config::{Scheme, ServerConfig, UpstreamConfig};
use crate::metrics::ServiceMetrics;
use crate::proxy::dial::{Dialer, Io};
use crate::proxy::health::Health;
use crate::proxy::incoming::{HttpError, Incoming};

/// A server, as one worker knows it.
#[derive(Debug)]
pub(super) struct Server {
    dialer: Dialer,
    timeouts: Timeouts,
    metrics: Rc<ServiceMetrics>,
    /// What the checks say of it.
    health: Arc<Health>,
    idle: RefCell<Vec<Idle>>,
    /// Of HTTP/2, for requests, and for streams of bytes.
    shared: Shared,
    tunnels: Shared,
    /// Whether the server spoke HTTP/2 when it was connected to last.
    is_http2: Cell<bool>,
    in_flight: Cell<usize>,
    failures: Cell<u32>,
    /// Left alone until then.
    ejected_until: Cell<Option<Instant>>,
    /// Open connections to all servers of the service, from this worker.
    open: Rc<Cell<usize>>,
    most: usize,
}

#[derive(Debug, Clone, Copy)]
pub(super) struct Timeouts {
    pub(super) response: Duration,
    idle: Duration,
    age: Option<Duration>,
}

#[derive(Debug)]
struct Idle {
    http1: Http1,
    since: Instant,
}

/// A request that a server has, until its response has ended.
#[derive(Debug)]
pub(in crate::proxy) struct Lease {
    server: Rc<Server>,
    on: Option<On>,
}

/// What a response comes on.
#[derive(Debug)]
pub(super) enum On {
    Http1(Http1),
    Http2 { _place: Rc<Place> },
}

impl Server {
    pub(super) fn new(
        upstream: &UpstreamConfig,
        server: &ServerConfig,
        tls: Option<&Arc<ClientConfig>>,
        health: Arc<Health>,
        metrics: Rc<ServiceMetrics>,
        (open, most): (Rc<Cell<usize>>, usize),
    ) -> Self {
        Self {
            dialer: Dialer::new(upstream, server, tls),
            timeouts: Timeouts {
                response: upstream.response_timeout,
                idle: upstream.idle_timeout,
                age: upstream.max_connection_age,
            },
            metrics,
            health,
            idle: RefCell::default(),
            shared: Shared::new(),
            tunnels: Shared::new(),
            is_http2: Cell::new(server.scheme == Scheme::H2c),
            in_flight: Cell::new(0),
            failures: Cell::new(0),
            ejected_until: Cell::new(None),
            open,
            most,
        }
    }

    pub(super) fn config(&self) -> &ServerConfig {
        self.dialer.server()
    }

    /// The server as one that can be chosen, if it is well as far as anybody knows.
    pub(super) fn candidate(&self, index: usize) -> Option<Candidate> {
        let is_ejected = self.ejected_until.get().is_some_and(|until| Instant::now() < until);
        (self.health.is_well() && !is_ejected).then(|| Candidate {
            index,
            weight: self.config().weight,
            in_flight: self.in_flight.get(),
        })
    }

    /// Has the next request go elsewhere after `most` failures in a row, for some time.
    pub(super) fn has_failed(&self, most: u32, retry_after: Duration) {
        let failures = self.failures.get().saturating_add(1);
        self.failures.set(failures);
        if failures >= most {
            self.ejected_until.set(Some(Instant::now() + retry_after));
            tracing::warn!(server = %self.config(), failures, ?retry_after, "upstream server left alone");
        }
    }

    pub(super) fn has_answered(&self) {
        self.failures.set(0);
    }

    /// Sends a request and waits for the response head.
    pub(super) async fn send(
        self: &Rc<Self>,
        request: Outgoing,
    ) -> Result<(Response<Incoming>, Lease), Failed> {
        let mut lease = Lease::of(self);
        if self.is_http2.get() {
            let (response, place) = Box::pin(self.send_http2(request)).await?;
            lease.keep(On::Http2 { _place: place });
            return Ok((response, lease));
        }
        let (response, on) = self.send_http1(request).await?;
        lease.keep(on);
        Ok((response, lease))
    }

    async fn send_http1(&self, mut request: Outgoing) -> Result<(Response<Incoming>, On), Failed> {
        http1::prepare(&mut request);
        // A connection of the pool can be closed by the server at any moment. A request that was not
        // written to it goes to the next: there are only so many, then a fresh one is made.
        while let Some(mut http1) = self.take_idle() {
            let again = repeated(&request);
            match self.exchange_http1(&mut http1, request).await {
                Ok(response) => return Ok((response, On::Http1(http1))),
                Err(Failed::Unsent(unsent, _)) => request = unsent,
                Err(Failed::Sent(error @ UpstreamError::Protocol(_))) if !http1.heard.get() => {
                    // Written, and closed without a word: what is safe to repeat is, once.
                    request = again.ok_or(Failed::Sent(error))?;
                    break;
                }
                Err(failed) => return Err(failed),
            }
        }
        // Boxed: a future with room for a handshake would be moved with every request.
        Box::pin(self.send_on_new_connection(request)).await
    }

    async fn send_on_new_connection(
        &self,
        request: Outgoing,
    ) -> Result<(Response<Incoming>, On), Failed> {
        let (io, is_http2, open) = match self.connect().await {
            Ok(connected) => connected,
            Err(error) => return Err(Failed::Unsent(request, error)),
        };
        if is_http2 {
            if let Err(error) = self.share(io, open).await {
                return Err(Failed::Unsent(request, error));
            }
            let (response, place) = self.send_http2(request).await?;
            return Ok((response, On::Http2 { _place: place }));
        }
        let made = http1::start(io, open, None).await;
        let mut http1 = made.map_err(|error| Failed::Sent(HttpError::from(error).into()))?;
        let response = self.exchange_http1(&mut http1, request).await?;
        Ok((response, On::Http1(http1)))
    }

    pub(super) async fn exchange_http1(
        &self,
        http1: &mut Http1,
        mut request: Outgoing,
    ) -> Result<Response<Incoming>, Failed> {
        http1.heard.set(false);
        if let Some(follower) = request.body().follower() {
            follower.follow(&mut request);
        }
        let progress = request.body().progress();
        let response = pin!(http1.send.try_send_request(*request));
        let response = exchange(response, &progress, self.timeouts.response).await?;
        Ok(response.map(Incoming::Http1))
    }

    /// Whether the server spoke HTTP/2 when it was connected to last.
    pub(super) fn speaks_http2(&self) -> bool {
        self.is_http2.get()
    }

    /// The scheme that HTTP/2 names in each request.
    pub(super) fn uri_scheme(&self) -> uri::Scheme {
        if self.config().scheme.is_secure() { uri::Scheme::HTTPS } else { uri::Scheme::HTTP }
    }

    pub(super) fn timeouts(&self) -> Timeouts {
        self.timeouts
    }

    /// A connection of HTTP/1.1, whatever else the server speaks.
    pub(super) async fn connect_http1(&self) -> Result<(Box<dyn Io>, Open), UpstreamError> {
        let open = self.open()?;
        let io = self.dialer.dial_http1().await?;
        self.metrics.upstream_connections.inc();
        Ok((io, open))
    }

    /// A connection that nothing is known of, for bytes.
    pub(super) async fn connect(&self) -> Result<(Box<dyn Io>, bool, Open), UpstreamError> {
        let open = self.open()?;
        let (io, is_http2) = self.dialer.dial().await?;
        self.metrics.upstream_connections.inc();
        Ok((io, is_http2, open))
    }

    /// Room for a connection.
    fn open(&self) -> Result<Open, UpstreamError> {
        if self.open.get() >= self.most {
            return Err(UpstreamError::TooMany);
        }
        Ok(Open::new(&self.open, self.metrics.upstream_connections_active.clone()))
    }

    /// The connection used last that is ready. One that is not ready yet is still busy with the
    /// rest of a request whose response came early.
    fn take_idle(&self) -> Option<Http1> {
        let mut idle = self.idle.borrow_mut();
        while let Some(position) =
            idle.iter().rposition(|idle| idle.http1.send.is_ready() || idle.http1.send.is_closed())
        {
            let http1 = idle.remove(position).http1;
            if !http1.send.is_closed() && !self.is_old(&http1) {
                return Some(http1);
            }
        }
        None
    }

    fn is_old(&self, http1: &Http1) -> bool {
        self.timeouts.age.is_some_and(|age| http1.made.elapsed() >= age)
    }

    /// Closes connections that nobody has needed for some time, and forgets the closed.
    pub(super) fn drop_stale(&self) {
        let now = Instant::now();
        self.idle.borrow_mut().retain(|idle| {
            !idle.http1.send.is_closed()
                && !self.is_old(&idle.http1)
                && now.saturating_duration_since(idle.since) < self.timeouts.idle
        });
        for shared in [&self.shared, &self.tunnels] {
            shared.drop_stale(self.timeouts.idle, self.timeouts.age, self.in_flight.get());
        }
    }
}

impl Lease {
    pub(super) fn of(server: &Rc<Server>) -> Self {
        server.in_flight.set(server.in_flight.get().saturating_add(1));
        Self { server: Rc::clone(server), on: None }
    }

    /// What the response comes on.
    pub(super) fn keep(&mut self, on: On) {
        self.on = Some(on);
    }

    /// The response has ended: its connection is kept for the next request.
    pub(in crate::proxy) fn finish(mut self) {
        let Some(On::Http1(http1)) = self.on.take() else { return };
        if !http1.send.is_closed() && !self.server.is_old(&http1) {
            self.server.idle.borrow_mut().push(Idle { http1, since: Instant::now() });
        }
    }

    /// The server's name in logs.
    pub(in crate::proxy) fn server(&self) -> &ServerConfig {
        self.server.config()
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.server.in_flight.set(self.server.in_flight.get().saturating_sub(1));
    }
}

//! The activity of a connection, the base of its timeouts.
//!
//! A connection records its events here, and its worker checks all connections at every tick. So
//! each worker has one timer; hyper would set and reset one for each request.

mod hibernation;
mod in_flight;

use std::cell::Cell;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use atomic_waker::AtomicWaker;
use keygate_wire::io_events::IoEvents;

use self::hibernation::Rest;
use self::in_flight::InFlight;
pub(crate) use self::in_flight::UpstreamWait;
use crate::config::LimitsConfig;

/// Maximum time of a graceful close without requests in flight; the connection is aborted then. An
/// HTTP/2 client that has disappeared never responds to GOAWAY.
const CLOSE_GRACE: Duration = Duration::from_secs(5);

/// Time that an idle connection stays open while the process drains, because the client may have
/// sent a request already.
const DRAIN_GRACE: Duration = Duration::from_secs(1);

/// The activity of one connection.
#[derive(Debug)]
pub(crate) struct ConnectionState {
    pub(crate) kind: Cell<ConnectionKind>,
    phase: Cell<ActivityPhase>,
    in_flight: Cell<InFlight>,
    /// When a piece of a body last went from or to the client.
    body_moved: Cell<Instant>,
    /// Since when bytes for the client wait, and none could be written.
    blocked_since: Cell<Option<Instant>>,
    /// Whether the client has sent `close_notify`, and all bytes before it were read.
    pub(crate) client_has_closed: Cell<bool>,
    /// Whether the next flush, or over HTTP/2 the next poll, looks for the close of the client.
    pub(crate) close_check: Cell<bool>,
    /// The close that the connection must carry out at its next poll.
    close: Cell<Option<Close>>,
    waker: AtomicWaker,
    /// The connection is aborted at this time, regardless of its activity.
    deadline: Cell<Option<Instant>>,
    opened: Instant,
    timeouts: ConnectionTimeouts,
    /// The bytes that the connection has carried since it became a tunnel.
    pub(crate) tunnel_bytes: Cell<TunnelBytes>,
    is_draining: Cell<bool>,
    rest: Cell<Rest>,
    /// Whether the worker has the connection in its list of those that have buffers.
    is_watched: Cell<bool>,
    /// Whether the connection was closed because of `max_connection_age`.
    is_too_old: Cell<bool>,
}

/// The limits that the state needs, because a copy of all takes twice the memory.
#[derive(Debug)]
struct ConnectionTimeouts {
    header: Duration,
    body: Duration,
    idle: Duration,
    max_age: Option<Duration>,
}

/// The meaning of bytes that arrive between requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ConnectionKind {
    /// The beginning of a request head.
    Http1,
    /// Any frame.
    Http2,
    /// Activity: a tunnel has no requests.
    Tunnel,
}

#[derive(Debug, Clone, Copy)]
enum ActivityPhase {
    /// Requests are in flight.
    Busy,
    /// A close was requested at this time.
    Closing(Instant),
    /// A request head began at this time and is not complete.
    Head(Instant),
    /// The connection has waited for a request since this time.
    Idle(Instant),
}

/// Bytes that a tunnel has carried.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct TunnelBytes {
    pub(crate) from_client: u64,
    pub(crate) to_client: u64,
}

impl TunnelBytes {
    /// These bytes, and further ones.
    pub(crate) fn plus(self, from_client: usize, to_client: usize) -> Self {
        Self {
            from_client: self.from_client.saturating_add(from_client as u64),
            to_client: self.to_client.saturating_add(to_client as u64),
        }
    }
}

/// How a worker closes a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Close {
    /// At once.
    Abort,
    /// At once, with GOAWAY and `ENHANCE_YOUR_CALM` (HTTP/2).
    EnhanceYourCalm,
    /// After the requests in flight.
    Graceful,
    /// With 408, because the request head took too long.
    RequestTimeout,
}

impl ConnectionState {
    pub(crate) fn new(limits: &LimitsConfig, kind: ConnectionKind) -> Rc<Self> {
        let now = Instant::now();
        Rc::new(Self {
            kind: Cell::new(kind),
            phase: Cell::new(ActivityPhase::Idle(now)),
            in_flight: Cell::default(),
            body_moved: Cell::new(now),
            blocked_since: Cell::new(None),
            client_has_closed: Cell::new(false),
            close_check: Cell::new(false),
            close: Cell::new(None),
            waker: AtomicWaker::new(),
            deadline: Cell::new(None),
            opened: now,
            timeouts: ConnectionTimeouts {
                header: limits.header_timeout,
                body: limits.body_timeout,
                idle: limits.idle_timeout,
                max_age: limits.max_connection_age,
            },
            tunnel_bytes: Cell::default(),
            is_draining: Cell::new(false),
            rest: Cell::new(Rest::Awake),
            is_watched: Cell::new(false),
            is_too_old: Cell::new(false),
        })
    }

    /// Records that the connection has upgraded from HTTP/1.1.
    pub(crate) fn become_tunnel(&self) {
        self.kind.set(ConnectionKind::Tunnel);
        self.in_flight.take();
        self.phase.set(ActivityPhase::Idle(Instant::now()));
    }

    /// Changes the number of streams that are tunnels.
    pub(crate) fn change_tunnels(&self, change: impl FnOnce(u32) -> u32) {
        self.change_in_flight(|in_flight| in_flight.tunnels = change(in_flight.tunnels));
    }

    /// Whether the connection or one of its streams is a tunnel.
    pub(crate) fn carries_tunnel(&self) -> bool {
        self.kind.get() == ConnectionKind::Tunnel || self.in_flight.get().tunnels > 0
    }

    /// The close that was requested since the last call. Called whenever the connection is polled.
    pub(crate) fn take_close(&self, context: &Context<'_>) -> Option<Close> {
        self.waker.register(context.waker());
        self.close.take()
    }

    /// Ready when a close has been requested. The close stays for [`Self::take_close`].
    pub(crate) fn poll_close_requested(&self, context: &Context<'_>) -> Poll<()> {
        self.waker.register(context.waker());
        if self.close.get().is_some() { Poll::Ready(()) } else { Poll::Pending }
    }

    /// Records that a part of the next request head was received together with the last request.
    pub(crate) fn begin_head(&self) {
        if let ActivityPhase::Idle(since) = self.phase.get() {
            self.phase.set(ActivityPhase::Head(since));
        }
    }

    /// Closes the connection.
    pub(crate) fn close(&self, close: Close) {
        // A tunnel has no requests to finish, so it stays open until it is aborted.
        let is_tunnel = self.kind.get() == ConnectionKind::Tunnel;
        if close == Close::Graceful && self.in_flight.get().requests == 0 && !is_tunnel {
            self.phase.set(ActivityPhase::Closing(Instant::now()));
        }
        if close == Close::EnhanceYourCalm {
            self.deadline.set(Some(Instant::now() + CLOSE_GRACE));
        }
        self.close.set(Some(close));
        self.waker.wake();
    }

    /// Closes the connection because the process drains. HTTP/2 announces the end without losing a
    /// request. Over HTTP/1.1 a request may be on its way: the next response carries `Connection:
    /// close`, and a connection that stays idle is closed after a grace period.
    pub(crate) fn drain(&self) {
        match self.kind.get() {
            ConnectionKind::Http2 => self.close(Close::Graceful),
            ConnectionKind::Http1 | ConnectionKind::Tunnel => self.is_draining.set(true),
        }
    }

    /// Closes the connection after the requests in flight, and aborts it at `deadline`.
    pub(crate) fn evict(&self, deadline: Instant) {
        self.deadline.set(Some(deadline));
        self.close(Close::Graceful);
    }

    /// Closes the connection if a timeout has expired.
    pub(crate) fn check(&self, now: Instant) {
        if self.deadline.get().is_some_and(|deadline| now >= deadline) {
            return self.close(Close::Abort);
        }
        let kind = self.kind.get();
        let is_tunnel = kind == ConnectionKind::Tunnel;
        let blocked = self.blocked_since.get().filter(|_| !is_tunnel);
        if blocked.is_some_and(|since| has_passed(now, since, self.timeouts.body)) {
            return self.close(Close::Abort);
        }
        let idle_close = if is_tunnel { Close::Abort } else { Close::Graceful };
        let age = now.saturating_duration_since(self.opened);
        let is_too_old = self.timeouts.max_age.is_some_and(|max_age| age >= max_age);
        if is_too_old && !self.is_too_old.replace(true) {
            return self.close(idle_close);
        }
        let in_flight = self.in_flight.get();
        let (since, timeout, close) = match self.phase.get() {
            // Each stream has timeouts of its own.
            ActivityPhase::Busy if kind == ConnectionKind::Http2 => return,
            ActivityPhase::Busy if in_flight.waiting_for_upstream > 0 => return self.check_close(),
            ActivityPhase::Busy => (self.body_moved.get(), self.timeouts.body, Close::Abort),
            ActivityPhase::Closing(since) => (since, CLOSE_GRACE, Close::Abort),
            ActivityPhase::Head(since) => (since, self.timeouts.header, Close::RequestTimeout),
            ActivityPhase::Idle(since) if self.is_draining.get() && !is_tunnel => {
                (since, self.timeouts.idle.min(DRAIN_GRACE), idle_close)
            }
            ActivityPhase::Idle(since) => (since, self.timeouts.idle, idle_close),
        };
        if has_passed(now, since, timeout) {
            self.close(close);
        }
    }

    /// Lets the connection look for the close of its client, which no read notices.
    pub(crate) fn check_close(&self) {
        self.close_check.set(true);
        self.waker.wake();
    }

    /// Records that a request head is complete.
    pub(crate) fn begin_request(&self, now: Instant) {
        self.change_in_flight(|in_flight| {
            in_flight.requests = in_flight.requests.saturating_add(1);
        });
        self.phase.set(ActivityPhase::Busy);
        self.rest.set(Rest::Awake);
        self.body_moved.set(now);
    }

    /// Records that a request and its response have ended. Without others the connection is idle.
    pub(crate) fn end_request(&self) {
        let requests = self.change_in_flight(|in_flight| {
            in_flight.requests = in_flight.requests.saturating_sub(1);
            in_flight.requests
        });
        if requests == 0 {
            self.phase.set(ActivityPhase::Idle(Instant::now()));
        }
    }

    /// Records that a piece of a body went from or to the client.
    pub(crate) fn record_body_progress(&self) {
        self.body_moved.set(Instant::now());
    }

    /// When the connection reaches `max_connection_age`.
    pub(crate) fn end_of_life(&self) -> Option<Instant> {
        self.timeouts.max_age.map(|age| self.opened + age)
    }

    /// Whether the connection has been open for `header_timeout`.
    pub(crate) fn is_older_than_header_timeout(&self, now: Instant) -> bool {
        has_passed(now, self.opened, self.timeouts.header)
    }

    fn record_write(&self, count: usize) {
        self.add_tunnel_bytes(0, count);
        // The tail of a response is written after its request has ended. A client that reads it is
        // active.
        match (self.kind.get(), self.phase.get()) {
            (ConnectionKind::Http1, ActivityPhase::Idle(_)) => {
                self.phase.set(ActivityPhase::Idle(Instant::now()));
            }
            (ConnectionKind::Http1, ActivityPhase::Closing(_)) => {
                self.phase.set(ActivityPhase::Closing(Instant::now()));
            }
            (ConnectionKind::Http1 | ConnectionKind::Http2 | ConnectionKind::Tunnel, _) => {}
        }
    }

    fn record_read(&self, count: usize) {
        self.add_tunnel_bytes(count, 0);
        if self.kind.get() == ConnectionKind::Http1
            && matches!(self.phase.get(), ActivityPhase::Idle(_))
        {
            self.phase.set(ActivityPhase::Head(Instant::now()));
        }
    }

    fn add_tunnel_bytes(&self, from_client: usize, to_client: usize) {
        if self.kind.get() != ConnectionKind::Tunnel {
            return;
        }
        self.tunnel_bytes.set(self.tunnel_bytes.get().plus(from_client, to_client));
        self.phase.set(ActivityPhase::Idle(Instant::now()));
    }
}

fn has_passed(now: Instant, since: Instant, timeout: Duration) -> bool {
    now.saturating_duration_since(since) >= timeout
}

impl IoEvents for ConnectionState {
    fn on_read(&self, bytes: &[u8]) {
        self.record_read(bytes.len());
    }

    fn on_eof(&self) {
        self.client_has_closed.set(true);
    }

    fn on_write(&self, count: usize) {
        self.blocked_since.set(None);
        self.record_write(count);
    }

    fn on_flush(&self) {
        self.blocked_since.set(None);
    }

    fn on_write_blocked(&self) {
        if self.blocked_since.get().is_none() {
            self.blocked_since.set(Some(Instant::now()));
        }
    }
}

#[cfg(test)]
pub(crate) mod tests;

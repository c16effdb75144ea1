//! The activity of a connection, the base of its timeouts.
//!
//! A connection records its events here, and its worker checks all connections at every tick. So
//! each worker has one timer; hyper would set and reset one for each request.

use std::cell::Cell;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use atomic_waker::AtomicWaker;

use crate::config::LimitsConfig;
use crate::proxy::client_socket::CloseCheck;
use crate::proxy::io_events::IoEvents;

/// Maximum time of a graceful close without requests in flight; the connection is aborted then. An
/// HTTP/2 client that has disappeared never responds to GOAWAY.
const CLOSE_GRACE: Duration = Duration::from_secs(5);

/// Time that an idle connection stays open while the process drains, because the client may have
/// sent a request already.
const DRAIN_GRACE: Duration = Duration::from_secs(1);

/// The activity of one connection.
#[derive(Debug)]
pub(crate) struct ConnectionState {
    kind: Cell<ConnectionKind>,
    phase: Cell<ActivityPhase>,
    in_flight: Cell<InFlight>,
    /// When a piece of a body last went from or to the client.
    body_moved: Cell<Instant>,
    /// Since when bytes for the client wait, and none could be written.
    blocked_since: Cell<Option<Instant>>,
    /// Whether the next flush looks for the close of the client.
    close_check: Cell<bool>,
    /// The close that the connection must carry out at its next poll.
    close: Cell<Option<Close>>,
    waker: AtomicWaker,
    /// The connection is aborted at this time, regardless of its activity.
    deadline: Cell<Option<Instant>>,
    opened: Instant,
    timeouts: ConnectionTimeouts,
    tunnel_bytes: Cell<TunnelBytes>,
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

/// Whether an idle connection of HTTP/1.1 has its buffers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Rest {
    Awake,
    /// Keeps its buffers until its next request, because the last one was not read to its end.
    Declined,
    /// Has given its buffers back.
    Hibernating,
    /// Hibernates at its next poll, if it is idle still.
    Requested,
}

/// The requests in flight, counted.
#[derive(Debug, Clone, Copy, Default)]
struct InFlight {
    requests: u32,
    /// Requests that wait for the upstream and not for the client.
    waiting_for_upstream: u32,
}

/// Bytes that a tunnel has carried.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct TunnelBytes {
    pub(crate) from_client: u64,
    pub(crate) to_client: u64,
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

/// Suspends `body_timeout` while a request waits for the upstream and not for the client.
#[derive(Debug)]
pub(crate) struct UpstreamWait(Rc<ConnectionState>);

impl Drop for UpstreamWait {
    fn drop(&mut self) {
        let state = &self.0;
        let waiting = state.change_in_flight(|in_flight| {
            in_flight.waiting_for_upstream = in_flight.waiting_for_upstream.saturating_sub(1);
            in_flight.waiting_for_upstream
        });
        if waiting == 0 {
            state.record_body_progress(); // `body_timeout` starts again
        }
    }
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

    /// The protocol on the connection at this time.
    pub(crate) fn kind(&self) -> ConnectionKind {
        self.kind.get()
    }

    /// Records that the connection has upgraded from HTTP/1.1.
    pub(crate) fn become_tunnel(&self) {
        self.kind.set(ConnectionKind::Tunnel);
        self.in_flight.take();
        self.phase.set(ActivityPhase::Idle(Instant::now()));
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

    /// Records that the worker watches the connection. Returns whether it did not before.
    #[must_use]
    pub(crate) fn begin_watch(&self) -> bool {
        !self.is_watched.replace(true)
    }

    /// Requests that the connection hibernates if it has waited for a request for `idle_for`. Returns
    /// whether the worker must still watch it, because it has buffers.
    #[must_use]
    pub(crate) fn request_hibernation(&self, now: Instant, idle_for: Duration) -> bool {
        if self.rest.get() == Rest::Hibernating || self.kind.get() != ConnectionKind::Http1 {
            self.is_watched.set(false);
            return false;
        }
        let is_idle = self.idle_since().is_some_and(|since| has_passed(now, since, idle_for));
        if is_idle && self.rest.get() == Rest::Awake {
            self.rest.set(Rest::Requested);
            self.waker.wake();
        }
        true
    }

    /// Takes the request to hibernate. If the connection is idle still, `begin` begins the
    /// hibernation, or declines it until the next request. Returns whether it has begun.
    pub(crate) fn take_hibernation(&self, begin: impl FnOnce() -> bool) -> bool {
        if self.rest.get() != Rest::Requested {
            return false;
        }
        let begins = self.idle_since().map(|_| begin());
        self.rest.set(if begins == Some(false) { Rest::Declined } else { Rest::Awake });
        begins == Some(true)
    }

    /// Records that the connection has given its buffers back, or has new ones.
    pub(crate) fn set_hibernating(&self, is_hibernating: bool) {
        self.rest.set(if is_hibernating { Rest::Hibernating } else { Rest::Awake });
    }

    /// Since when an open connection has waited for a request, and has nothing to write.
    fn idle_since(&self) -> Option<Instant> {
        let is_quiet = self.blocked_since.get().is_none() && self.close.get().is_none();
        match self.phase.get() {
            ActivityPhase::Idle(since) if is_quiet => Some(since),
            ActivityPhase::Busy
            | ActivityPhase::Closing(_)
            | ActivityPhase::Head(_)
            | ActivityPhase::Idle(_) => None,
        }
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
            ActivityPhase::Busy if in_flight.waiting_for_upstream > 0 => {
                self.close_check.set(true);
                return self.waker.wake();
            }
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

    /// Suspends `body_timeout` while a request waits for the upstream.
    pub(crate) fn wait_for_upstream(self: &Rc<Self>) -> UpstreamWait {
        self.change_in_flight(|in_flight| {
            in_flight.waiting_for_upstream = in_flight.waiting_for_upstream.saturating_add(1);
        });
        UpstreamWait(Rc::clone(self))
    }

    /// When the connection reaches `max_connection_age`.
    pub(crate) fn end_of_life(&self) -> Option<Instant> {
        self.timeouts.max_age.map(|age| self.opened + age)
    }

    /// The bytes that the connection has carried since it became a tunnel.
    pub(crate) fn tunnel_bytes(&self) -> TunnelBytes {
        self.tunnel_bytes.get()
    }

    fn change_in_flight<T>(&self, change: impl FnOnce(&mut InFlight) -> T) -> T {
        let mut in_flight = self.in_flight.get();
        let result = change(&mut in_flight);
        self.in_flight.set(in_flight);
        result
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
        let bytes = self.tunnel_bytes.get();
        self.tunnel_bytes.set(TunnelBytes {
            from_client: bytes.from_client.saturating_add(from_client as u64),
            to_client: bytes.to_client.saturating_add(to_client as u64),
        });
        self.phase.set(ActivityPhase::Idle(Instant::now()));
    }
}

fn has_passed(now: Instant, since: Instant, timeout: Duration) -> bool {
    now.saturating_duration_since(since) >= timeout
}

impl IoEvents for Rc<ConnectionState> {
    fn on_read(&self, bytes: &[u8]) {
        self.record_read(bytes.len());
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

impl CloseCheck for ConnectionState {
    fn take_due(&self) -> bool {
        self.close_check.take()
    }
}

#[cfg(test)]
mod tests {
    use std::task::Waker;

    use super::*;

    const LIMITS: LimitsConfig = LimitsConfig {
        handshake_timeout: Duration::from_secs(1),
        header_timeout: Duration::from_secs(10),
        body_timeout: Duration::from_secs(30),
        idle_timeout: Duration::from_secs(60),
        request_timeout: None,
        max_connection_age: None,
        max_connections: 1,
        max_connections_per_ip: 1,
        max_header_size: 8192,
        max_headers: 100,
        max_body_size: None,
        max_streams: 100,
    };

    fn close_after(state: &ConnectionState, seconds: u64) -> Option<Close> {
        state.check(Instant::now() + Duration::from_secs(seconds));
        state.take_close(&Context::from_waker(Waker::noop()))
    }

    #[test]
    fn an_idle_connection_closes_after_the_idle_timeout_and_a_dead_one_is_aborted() {
        let state = ConnectionState::new(&LIMITS, ConnectionKind::Http1);
        assert_eq!(close_after(&state, 59), None);
        assert_eq!(close_after(&state, 60), Some(Close::Graceful));
        assert_eq!(close_after(&state, 1), None);
        assert_eq!(close_after(&state, 6), Some(Close::Abort));
    }

    #[test]
    fn an_incomplete_request_head_times_out() {
        let state = ConnectionState::new(&LIMITS, ConnectionKind::Http1);
        state.record_read(1);
        assert_eq!(close_after(&state, 9), None);
        assert_eq!(close_after(&state, 10), Some(Close::RequestTimeout));
    }

    #[test]
    fn bytes_between_http2_requests_are_no_request_head() {
        let state = ConnectionState::new(&LIMITS, ConnectionKind::Http2);
        state.record_read(1);
        assert_eq!(close_after(&state, 59), None);
    }

    #[test]
    fn an_idle_tunnel_is_aborted() {
        let state = ConnectionState::new(&LIMITS, ConnectionKind::Tunnel);
        state.close(Close::Graceful);
        assert_eq!(close_after(&state, 59), Some(Close::Graceful), "and the tunnel goes on");
        state.record_write(1);
        assert_eq!(close_after(&state, 59), None);
        assert_eq!(close_after(&state, 60), Some(Close::Abort));
    }

    #[test]
    fn a_body_that_does_not_move_is_aborted_unless_the_upstream_is_slow() {
        let state = ConnectionState::new(&LIMITS, ConnectionKind::Http1);
        state.begin_request(Instant::now());
        let wait = state.wait_for_upstream();
        assert_eq!(close_after(&state, 3600), None);
        drop(wait);
        assert_eq!(close_after(&state, 29), None);
        assert_eq!(close_after(&state, 30), Some(Close::Abort));
    }

    #[test]
    fn a_client_that_takes_nothing_is_aborted_although_the_upstream_is_slow() {
        for kind in [ConnectionKind::Http1, ConnectionKind::Http2] {
            let state = ConnectionState::new(&LIMITS, kind);
            state.begin_request(Instant::now());
            let _wait = state.wait_for_upstream();
            state.on_write_blocked();
            assert_eq!(close_after(&state, 29), None);
            state.on_write(1);
            assert_eq!(close_after(&state, 3600), None);
            state.on_write_blocked();
            state.on_flush();
            assert_eq!(close_after(&state, 3600), None);
            state.on_write_blocked();
            state.record_body_progress();
            assert_eq!(close_after(&state, 30), Some(Close::Abort), "{kind:?}");
        }
    }

    #[test]
    fn requests_of_http2_have_their_own_timeouts() {
        let state = ConnectionState::new(&LIMITS, ConnectionKind::Http2);
        state.begin_request(Instant::now());
        assert_eq!(close_after(&state, 3600), None);
    }

    #[test]
    fn a_connection_of_a_client_that_misuses_it_is_aborted_soon() {
        let state = ConnectionState::new(&LIMITS, ConnectionKind::Http2);
        state.begin_request(Instant::now());
        state.close(Close::EnhanceYourCalm);
        assert_eq!(close_after(&state, 1), Some(Close::EnhanceYourCalm));
        assert_eq!(close_after(&state, 5), Some(Close::Abort));
    }

    #[test]
    fn a_connection_at_its_maximum_age_closes_gracefully() {
        let limits = LimitsConfig { max_connection_age: Some(Duration::from_secs(20)), ..LIMITS };
        let state = ConnectionState::new(&limits, ConnectionKind::Http1);
        assert_eq!(close_after(&state, 19), None);
        assert_eq!(close_after(&state, 20), Some(Close::Graceful));
    }

    #[test]
    fn a_tunnel_at_its_maximum_age_is_aborted_and_other_timeouts_still_apply() {
        let limits = LimitsConfig { max_connection_age: Some(Duration::from_secs(20)), ..LIMITS };
        let tunnel = ConnectionState::new(&limits, ConnectionKind::Tunnel);
        assert_eq!(close_after(&tunnel, 20), Some(Close::Abort));
        let busy = ConnectionState::new(&limits, ConnectionKind::Http1);
        busy.begin_request(Instant::now());
        assert_eq!(close_after(&busy, 20), Some(Close::Graceful));
        assert_eq!(close_after(&busy, 30), Some(Close::Abort), "the client reads nothing");
    }

    #[test]
    fn a_client_that_reads_the_tail_of_its_response_is_not_aborted() {
        let state = ConnectionState::new(&LIMITS, ConnectionKind::Http1);
        state.close(Close::Graceful);
        assert_eq!(close_after(&state, 4), Some(Close::Graceful));
        state.phase.set(ActivityPhase::Closing(Instant::now() - Duration::from_secs(4)));
        state.record_write(1);
        assert_eq!(close_after(&state, 4), None);
        assert_eq!(close_after(&state, 5), Some(Close::Abort));
    }

    #[test]
    fn a_connection_that_waits_for_the_upstream_is_not_closed() {
        let state = ConnectionState::new(&LIMITS, ConnectionKind::Http1);
        state.begin_request(Instant::now());
        state.begin_request(Instant::now());
        let _wait = state.wait_for_upstream();
        state.end_request();
        assert_eq!(close_after(&state, 3600), None);
        state.end_request();
        assert_eq!(close_after(&state, 3600), Some(Close::Graceful));
    }

    #[test]
    fn a_connection_that_declines_to_hibernate_is_left_alone_until_its_next_request() {
        let state = ConnectionState::new(&LIMITS, ConnectionKind::Http1);
        let later = || Instant::now() + Duration::from_secs(2);
        let request = || state.request_hibernation(later(), Duration::from_secs(1));
        assert!(request() && !state.take_hibernation(|| false));
        assert!(request() && !state.take_hibernation(|| true), "hibernation requested again");
        state.begin_request(Instant::now());
        state.end_request();
        assert!(request() && state.take_hibernation(|| true));
    }
}

//! What a connection is doing, and since when: the base of its time-outs.
//!
//! A connection notes what happens to it; its worker looks at all of them in turn
//! ([`super::drain`]). That is one timer for each worker where hyper would set and reset one for
//! each request.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::task::{Context, Waker};
use std::time::{Duration, Instant};

use super::observed::Observer;
use crate::config::LimitsConfig;

/// How long a connection that was told to end may take if no request is in flight: an HTTP/2 client
/// that is gone never answers.
const CLOSING_GRACE: Duration = Duration::from_secs(5);

/// How long an idle connection is kept for a request that may be on its way, while the process drains.
const LEAVING_GRACE: Duration = Duration::from_secs(1);

/// The state of one connection.
#[derive(Debug)]
pub(super) struct Activity {
    phase: Cell<Phase>,
    requests: Cell<u32>,
    order: Cell<Option<Order>>,
    /// It is cut then, whatever it does.
    deadline: Cell<Option<Instant>>,
    waker: RefCell<Option<Waker>>,
    limits: LimitsConfig,
    kind: Cell<Kind>,
    opened: Instant,
    /// When a piece of a body was last taken, by the client or from it.
    moved: Cell<Instant>,
    /// How many requests wait for the upstream, and not for the client.
    upstream_owes: Cell<u32>,
    /// How many requests have become streams of bytes, which have an idle time-out of their own.
    streams: Cell<u32>,
    /// Bytes that a tunnel has taken from the client, and given to it.
    carried: Cell<(u64, u64)>,
    is_leaving: Cell<bool>,
    /// Whether it has been told that it is old.
    is_aged: Cell<bool>,
}

/// What bytes between requests mean.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// They begin a request head.
    Http1,
    /// They can be anything.
    Http2,
    /// There are no requests: every byte is a sign of life.
    Tunnel,
}

#[derive(Debug, Clone, Copy)]
enum Phase {
    /// Requests are in flight.
    Busy,
    /// Told to end.
    Closing(Instant),
    /// A request head has begun and has not ended.
    Head(Instant),
    /// Waiting for a request.
    Idle(Instant),
}

/// What a worker tells a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Order {
    /// End at once.
    Cut,
    /// Finish what is in flight and end.
    Finish,
    /// The request head took too long: say so and end.
    HeadTimedOut,
}

impl Activity {
    pub(super) fn new(limits: LimitsConfig, kind: Kind) -> Rc<Self> {
        let now = Instant::now();
        Rc::new(Self {
            phase: Cell::new(Phase::Idle(now)),
            requests: Cell::new(0),
            order: Cell::new(None),
            deadline: Cell::new(None),
            waker: RefCell::new(None),
            limits,
            kind: Cell::new(kind),
            opened: now,
            moved: Cell::new(now),
            upstream_owes: Cell::new(0),
            streams: Cell::new(0),
            carried: Cell::new((0, 0)),
            is_leaving: Cell::new(false),
            is_aged: Cell::new(false),
        })
    }

    /// The connection has left HTTP.
    pub(super) fn become_tunnel(&self) {
        self.kind.set(Kind::Tunnel);
        self.requests.set(0);
        self.phase.set(Phase::Idle(Instant::now()));
    }

    /// The order that has come since the last call. Called whenever the connection is polled.
    pub(super) fn take_order(&self, context: &Context<'_>) -> Option<Order> {
        let mut waker = self.waker.borrow_mut();
        if !waker.as_ref().is_some_and(|waker| waker.will_wake(context.waker())) {
            *waker = Some(context.waker().clone());
        }
        self.order.take()
    }

    /// Gives an order.
    pub(super) fn give(&self, order: Order) {
        // Nobody knows when a tunnel is done: it goes on until it is cut.
        let is_tunnel = self.kind.get() == Kind::Tunnel;
        if order == Order::Finish && self.requests.get() == 0 && !is_tunnel {
            self.phase.set(Phase::Closing(Instant::now()));
        }
        self.order.set(Some(order));
        if let Some(waker) = self.waker.borrow_mut().take() {
            waker.wake();
        }
    }

    /// Has the connection end for another to be made elsewhere. HTTP/2 says so without losing a request.
    /// In HTTP/1.1 a request may be on its way to an idle connection: the next answer says that it is
    /// the last, and only one that has been idle for a while is closed.
    pub(super) fn leave(&self) {
        match self.kind.get() {
            Kind::Http2 => self.give(Order::Finish),
            Kind::Http1 | Kind::Tunnel => self.is_leaving.set(true),
        }
    }

    /// Has the connection finish what is in flight and end, at the latest at `deadline`.
    pub(super) fn evict(&self, deadline: Instant) {
        self.deadline.set(Some(deadline));
        self.give(Order::Finish);
    }

    /// Ends the connection if it has been waiting for too long.
    pub(super) fn check(&self, now: Instant) {
        if self.deadline.get().is_some_and(|deadline| now >= deadline) {
            return self.give(Order::Cut);
        }
        let age = now.saturating_duration_since(self.opened);
        let is_old = self.limits.max_connection_age.is_some_and(|most| age >= most);
        if is_old && !self.is_aged.replace(true) {
            let is_tunnel = self.kind.get() == Kind::Tunnel;
            return self.give(if is_tunnel { Order::Cut } else { Order::Finish });
        }
        let idle = if self.kind.get() == Kind::Tunnel { Order::Cut } else { Order::Finish };
        let (since, limit, order) = match self.phase.get() {
            Phase::Busy if self.upstream_owes.get() > 0 => return,
            Phase::Busy if self.streams.get() == self.requests.get() => return,
            Phase::Busy => (self.moved.get(), self.limits.body_timeout, Order::Cut),
            Phase::Closing(since) => (since, CLOSING_GRACE, Order::Cut),
            Phase::Head(since) => (since, self.limits.header_timeout, Order::HeadTimedOut),
            Phase::Idle(since) if self.is_leaving.get() && idle == Order::Finish => {
                (since, self.limits.idle_timeout.min(LEAVING_GRACE), idle)
            }
            Phase::Idle(since) => (since, self.limits.idle_timeout, idle),
        };
        if now.saturating_duration_since(since) >= limit {
            self.give(order);
        }
    }

    pub(super) fn request_began(&self, now: Instant) {
        self.requests.set(self.requests.get().saturating_add(1));
        self.phase.set(Phase::Busy);
        self.moved.set(now);
    }

    /// A piece of a body was taken.
    pub(super) fn body_moved(&self) {
        self.moved.set(Instant::now());
    }

    /// A request begins or ends to wait for the upstream.
    pub(super) fn upstream_owes(&self, owes: bool) {
        let others = self.upstream_owes.get();
        let all = if owes { others.saturating_add(1) } else { others.saturating_sub(1) };
        self.upstream_owes.set(all);
        // It is looked at only while the upstream owes nothing.
        if all == 0 {
            self.body_moved();
        }
    }

    /// A request becomes a stream of bytes.
    pub(super) fn stream_began(&self) {
        self.streams.set(self.streams.get().saturating_add(1));
    }

    /// It has ended, and its request will.
    pub(super) fn stream_ended(&self) {
        self.streams.set(self.streams.get().saturating_sub(1));
    }

    /// When the connection is too old, whatever it does.
    pub(super) fn end_of_life(&self) -> Option<Instant> {
        self.limits.max_connection_age.map(|age| self.opened + age)
    }

    pub(super) fn request_ended(&self) {
        let requests = self.requests.get().saturating_sub(1);
        self.requests.set(requests);
        if requests == 0 {
            self.phase.set(Phase::Idle(Instant::now()));
        }
    }

    /// Bytes that a tunnel has taken from the client, and given to it.
    pub(super) fn carried(&self) -> (u64, u64) {
        self.carried.get()
    }

    fn bytes_left(&self, count: usize) {
        self.carry(0, count);
        // The tail of an answer is written when its request is over: a client that takes it is alive.
        match (self.kind.get(), self.phase.get()) {
            (Kind::Http1, Phase::Idle(_)) => self.phase.set(Phase::Idle(Instant::now())),
            (Kind::Http1, Phase::Closing(_)) => self.phase.set(Phase::Closing(Instant::now())),
            (Kind::Http1 | Kind::Http2 | Kind::Tunnel, _) => {}
        }
    }

    fn bytes_arrived(&self, count: usize) {
        self.carry(count, 0);
        if self.kind.get() == Kind::Http1 && matches!(self.phase.get(), Phase::Idle(_)) {
            self.phase.set(Phase::Head(Instant::now()));
        }
    }

    fn carry(&self, from_client: usize, to_client: usize) {
        if self.kind.get() != Kind::Tunnel {
            return;
        }
        let (from, to) = self.carried.get();
        let more = |sum: u64, bytes: usize| sum.saturating_add(bytes as u64);
        self.carried.set((more(from, from_client), more(to, to_client)));
        self.phase.set(Phase::Idle(Instant::now()));
    }
}

impl Observer for Rc<Activity> {
    fn has_read(&self, bytes: &[u8]) {
        self.bytes_arrived(bytes.len());
    }

    fn has_written(&self, count: usize) {
        self.bytes_left(count);
    }
}

#[cfg(test)]
mod tests {
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

    fn order_after(activity: &Activity, seconds: u64) -> Option<Order> {
        activity.check(Instant::now() + Duration::from_secs(seconds));
        activity.take_order(&Context::from_waker(Waker::noop()))
    }

    #[test]
    fn an_idle_connection_ends_after_the_idle_timeout_and_a_dead_one_is_cut() {
        let activity = Activity::new(LIMITS, Kind::Http1);
        assert_eq!(order_after(&activity, 59), None);
        assert_eq!(order_after(&activity, 60), Some(Order::Finish));
        assert_eq!(order_after(&activity, 1), None);
        assert_eq!(order_after(&activity, 6), Some(Order::Cut));
    }

    #[test]
    fn a_head_that_has_begun_must_end_within_the_header_timeout() {
        let activity = Activity::new(LIMITS, Kind::Http1);
        activity.bytes_arrived(1);
        assert_eq!(order_after(&activity, 9), None);
        assert_eq!(order_after(&activity, 10), Some(Order::HeadTimedOut));
    }

    #[test]
    fn bytes_between_the_requests_of_http2_are_no_head() {
        let activity = Activity::new(LIMITS, Kind::Http2);
        activity.bytes_arrived(1);
        assert_eq!(order_after(&activity, 59), None);
    }

    #[test]
    fn a_tunnel_lives_as_long_as_bytes_move_and_is_cut_then() {
        let activity = Activity::new(LIMITS, Kind::Tunnel);
        activity.give(Order::Finish);
        assert_eq!(order_after(&activity, 59), Some(Order::Finish), "and no end of it");
        activity.bytes_left(1);
        assert_eq!(order_after(&activity, 59), None);
        assert_eq!(order_after(&activity, 60), Some(Order::Cut));
    }

    #[test]
    fn a_client_that_takes_nothing_of_its_answer_is_cut_and_a_slow_upstream_is_not_its_fault() {
        let activity = Activity::new(LIMITS, Kind::Http2);
        activity.request_began(Instant::now());
        activity.upstream_owes(true);
        assert_eq!(order_after(&activity, 3600), None);
        activity.upstream_owes(false);
        assert_eq!(order_after(&activity, 29), None);
        assert_eq!(order_after(&activity, 30), Some(Order::Cut));
    }

    #[test]
    fn a_stream_of_bytes_is_not_waited_for_and_excuses_nobody() {
        let activity = Activity::new(LIMITS, Kind::Http2);
        activity.request_began(Instant::now());
        activity.stream_began();
        assert_eq!(order_after(&activity, 3600), None);
        activity.request_began(Instant::now());
        assert_eq!(order_after(&activity, 29), None);
        assert_eq!(order_after(&activity, 30), Some(Order::Cut));
    }

    #[test]
    fn an_old_connection_finishes_what_it_has_in_flight() {
        let limits = LimitsConfig { max_connection_age: Some(Duration::from_secs(20)), ..LIMITS };
        let activity = Activity::new(limits, Kind::Http1);
        assert_eq!(order_after(&activity, 19), None);
        assert_eq!(order_after(&activity, 20), Some(Order::Finish));
    }

    #[test]
    fn an_old_tunnel_is_cut_and_an_old_connection_keeps_its_other_time_outs() {
        let limits = LimitsConfig { max_connection_age: Some(Duration::from_secs(20)), ..LIMITS };
        let tunnel = Activity::new(limits, Kind::Tunnel);
        assert_eq!(order_after(&tunnel, 20), Some(Order::Cut));
        let busy = Activity::new(limits, Kind::Http1);
        busy.request_began(Instant::now());
        assert_eq!(order_after(&busy, 20), Some(Order::Finish));
        assert_eq!(order_after(&busy, 30), Some(Order::Cut), "its client takes nothing");
    }

    #[test]
    fn a_client_that_still_takes_the_tail_of_its_answer_is_not_cut() {
        let activity = Activity::new(LIMITS, Kind::Http1);
        activity.give(Order::Finish);
        assert_eq!(order_after(&activity, 4), Some(Order::Finish));
        activity.phase.set(Phase::Closing(Instant::now() - Duration::from_secs(4)));
        activity.bytes_left(1);
        assert_eq!(order_after(&activity, 4), None);
        assert_eq!(order_after(&activity, 5), Some(Order::Cut));
    }

    #[test]
    fn a_connection_with_requests_in_flight_is_left_alone() {
        let activity = Activity::new(LIMITS, Kind::Http1);
        activity.request_began(Instant::now());
        activity.request_began(Instant::now());
        activity.upstream_owes(true);
        activity.request_ended();
        assert_eq!(order_after(&activity, 3600), None);
        activity.request_ended();
        assert_eq!(order_after(&activity, 3600), Some(Order::Finish));
    }
}

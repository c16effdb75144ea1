//! Ejection: a server that fails several times in a row gets no requests for a time.
//!
//! One rule keeps clients from taking a service from others. Failures that a client can provoke, by
//! a request that breaks the response, eject at most half of the servers. Failures to connect,
//! which no client can provoke, eject any number. If all servers are ejected, each request tries
//! one of them.

use std::cell::Cell;
use std::time::{Duration, Instant};

/// The first ejection lasts `retry_after / 2^GROWTH`, and each further one in a row twice as long
/// as the one before, up to `retry_after`.
const GROWTH: u32 = 3;

/// The failures and ejections of the servers of one upstream, in one worker.
#[derive(Debug)]
pub(crate) struct Ejections {
    max_failures: u32,
    /// The longest ejection.
    retry_after: Duration,
    servers: Box<[FailureRecord]>,
}

/// The failures of one server since its last success.
#[derive(Debug, Default)]
struct FailureRecord {
    failures: Cell<u32>,
    last_failure: Cell<Option<Instant>>,
    ejections: Cell<u32>,
    ejected_until: Cell<Option<Instant>>,
}

/// A failure that counts against a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ServerFailure {
    /// No connection was possible.
    Connect,
    /// The connection broke before the end of a response, or the response is not valid.
    Response,
}

/// An ejection that has begun.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Ejection {
    pub(crate) failures: u32,
    pub(crate) duration: Duration,
}

impl Ejections {
    pub(crate) fn new(servers: usize, max_failures: u32, retry_after: Duration) -> Self {
        let servers = (0..servers).map(|_| FailureRecord::default()).collect();
        Self { max_failures, retry_after, servers }
    }

    /// Whether the server at `index` is ejected.
    pub(crate) fn is_ejected(&self, index: usize) -> bool {
        self.servers.get(index).is_some_and(|server| server.is_ejected(Instant::now))
    }

    /// Records a failure of the server at `index`. Returns the ejection if one begins now.
    pub(crate) fn record_failure(
        &self,
        index: usize,
        failure: ServerFailure,
        now: Instant,
    ) -> Option<Ejection> {
        let server = self.servers.get(index)?;
        let failures = server.failures.get().saturating_add(1);
        server.failures.set(failures);
        server.last_failure.set(Some(now));
        if failures < self.max_failures
            || server.is_ejected(|| now)
            || !self.may_eject(failure, now)
        {
            return None;
        }
        let ejections = server.ejections.get();
        server.ejections.set(ejections.saturating_add(1));
        let duration = self.retry_after / (1 << GROWTH.saturating_sub(ejections));
        server.ejected_until.set(Some(now + duration));
        Some(Ejection { failures, duration })
    }

    /// Whether the last exchanges with the server at `index`, `max_failures` of them, have failed.
    pub(crate) fn is_failing(&self, index: usize) -> bool {
        self.servers.get(index).is_some_and(|server| server.failures.get() >= self.max_failures)
    }

    /// Records that the server at `index` has sent a complete response to a request that began at
    /// `began`. A request that began after the last failure ends the row of failures, and the
    /// ejection. Returns whether no failure is left.
    pub(crate) fn record_success(&self, index: usize, began: Instant) -> bool {
        let Some(server) = self.servers.get(index) else { return false };
        let Some(failure) = server.last_failure.get() else { return true };
        let recovers = failure < began;
        if recovers {
            server.failures.set(0);
            server.last_failure.set(None);
            server.ejections.set(0);
            server.ejected_until.set(None);
        }
        recovers
    }

    /// Whether one more server may be ejected. The only server never is.
    fn may_eject(&self, failure: ServerFailure, now: Instant) -> bool {
        let ejected = self.servers.iter().filter(|server| server.is_ejected(|| now)).count();
        match failure {
            ServerFailure::Connect => self.servers.len() > 1,
            ServerFailure::Response => (ejected + 1) * 2 <= self.servers.len(),
        }
    }
}

impl FailureRecord {
    /// The clock is read only if there was an ejection.
    fn is_ejected(&self, now: impl Fn() -> Instant) -> bool {
        self.ejected_until.get().is_some_and(|until| now() < until)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RETRY_AFTER: Duration = Duration::from_secs(8);

    fn ejected(ejections: &Ejections, now: Instant) -> Vec<bool> {
        ejections.servers.iter().map(|server| server.is_ejected(|| now)).collect()
    }

    #[test]
    fn failures_that_a_client_can_provoke_eject_at_most_half_of_the_servers() {
        for (servers, most) in [(1, 0), (2, 1), (3, 1), (4, 2), (5, 2)] {
            let ejections = Ejections::new(servers, 1, RETRY_AFTER);
            let now = Instant::now();
            for index in 0..servers {
                ejections.record_failure(index, ServerFailure::Response, now);
            }
            let count = ejected(&ejections, now).into_iter().filter(|it| *it).count();
            assert_eq!(count, most, "of {servers}");
        }
    }

    #[test]
    fn failures_to_connect_eject_any_number_of_servers_but_not_the_only_one() {
        for servers in [1, 2, 3] {
            let ejections = Ejections::new(servers, 1, RETRY_AFTER);
            let now = Instant::now();
            for index in 0..servers {
                ejections.record_failure(index, ServerFailure::Connect, now);
            }
            assert_eq!(ejected(&ejections, now), vec![servers > 1; servers]);
        }
    }

    #[test]
    fn an_ejection_begins_once_and_grows_up_to_the_maximum() {
        let ejections = Ejections::new(2, 2, RETRY_AFTER);
        let mut now = Instant::now();
        let fail = |now| ejections.record_failure(0, ServerFailure::Connect, now);
        assert_eq!(fail(now), None);
        for (failures, seconds) in [(2, 1), (4, 2), (6, 4), (8, 8), (10, 8)] {
            let duration = Duration::from_secs(seconds);
            assert_eq!(fail(now), Some(Ejection { failures, duration }));
            assert_eq!(fail(now), None, "it is ejected already");
            now += duration;
        }
    }

    #[test]
    fn only_a_request_that_began_after_the_failure_forgives_it() {
        let ejections = Ejections::new(2, 1, RETRY_AFTER);
        let before = Instant::now();
        let failed = before + Duration::from_secs(1);
        ejections.record_failure(0, ServerFailure::Connect, failed);
        let now = failed + Duration::from_millis(1);
        ejections.record_success(0, before);
        assert_eq!(ejected(&ejections, now), [true, false]);
        ejections.record_success(0, now);
        assert_eq!(ejected(&ejections, now), [false, false]);
        let first = ejections.record_failure(0, ServerFailure::Connect, now).unwrap();
        assert_eq!(first.duration, RETRY_AFTER / 8, "the growth was forgiven, too");
    }
}

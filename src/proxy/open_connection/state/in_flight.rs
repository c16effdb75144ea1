//! The requests in flight on a connection, and their waits for the upstream.

use std::rc::Rc;

use super::ConnectionState;

/// The requests in flight, counted.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct InFlight {
    pub(super) requests: u32,
    /// Requests that wait for the upstream and not for the client.
    pub(super) waiting_for_upstream: u32,
    /// Streams that have become tunnels.
    pub(super) tunnels: u32,
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
    /// Suspends `body_timeout` while a request waits for the upstream.
    pub(crate) fn wait_for_upstream(self: &Rc<Self>) -> UpstreamWait {
        self.change_in_flight(|in_flight| {
            in_flight.waiting_for_upstream = in_flight.waiting_for_upstream.saturating_add(1);
        });
        UpstreamWait(Rc::clone(self))
    }

    pub(super) fn change_in_flight<T>(&self, change: impl FnOnce(&mut InFlight) -> T) -> T {
        let mut in_flight = self.in_flight.get();
        let result = change(&mut in_flight);
        self.in_flight.set(in_flight);
        result
    }
}

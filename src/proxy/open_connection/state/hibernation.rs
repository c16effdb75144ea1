//! Whether an idle connection of HTTP/1.1 has its buffers, and when it gives them back.

use std::time::{Duration, Instant};

use super::{ActivityPhase, ConnectionKind, ConnectionState, has_passed};

/// Whether an idle connection of HTTP/1.1 has its buffers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Rest {
    Awake,
    /// Keeps its buffers until its next request, because the last one was not read to its end.
    Declined,
    /// Has given its buffers back.
    Hibernating,
    /// Hibernates at its next poll, if it is idle still.
    Requested,
}

impl ConnectionState {
    /// Records that the worker watches the connection. Returns whether it did not before.
    #[must_use]
    pub(crate) fn begin_watch(&self) -> bool {
        !self.is_watched.replace(true)
    }

    /// Requests that the connection hibernates if it has waited for a request for `idle_for`.
    /// Returns whether the worker must still watch it, because it has buffers.
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
}

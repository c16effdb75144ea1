//! The checks of the canary: a source that does not know it clears no key.
//!
//! Pure: the time is a parameter, and the caller makes the checks.

use std::time::{Duration, Instant};

use super::super::lookup::CanaryProblem;
use super::super::pace::back_off;
use super::super::schedule::Job;

/// Age of the last check of the canary above which a 404 causes a new one, 10 min.
const CANARY_AGE: Duration = Duration::from_secs(10 * 60);

/// The checks of the canary, and the queries whose 404 waits for one.
#[derive(Debug, Default)]
pub(super) struct CanaryCheck {
    is_running: bool,
    /// Whether the files have changed since the check in progress began.
    is_outdated: bool,
    /// When the canary was known the last time.
    known_at: Option<Instant>,
    /// Failed checks in a row.
    failures: u32,
    retry_at: Option<Instant>,
    pub(super) waiting: Vec<Job>,
}

/// Whether the 404 of a source counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Trust {
    /// The last check failed, and the next one is not due.
    Failed,
    /// The source knew its canary lately.
    Known,
    /// A check decides.
    Unchecked,
}

impl CanaryCheck {
    pub(super) fn trust(&self, paused_until: Option<Instant>, now: Instant) -> Trust {
        let is_fresh = |at: Instant| now.saturating_duration_since(at) < CANARY_AGE;
        if self.known_at.is_some_and(is_fresh) {
            Trust::Known
        } else if self.retry_at().is_some_and(|at| at > now) || paused_until.is_some() {
            Trust::Failed
        } else {
            Trust::Unchecked
        }
    }

    /// The queries whose 404 waited for a check.
    pub(super) fn take_waiting(&mut self) -> Vec<Job> {
        std::mem::take(&mut self.waiting)
    }

    /// When the check is made again after a failure.
    pub(super) fn retry_at(&self) -> Option<Instant> {
        self.retry_at.filter(|_| !self.is_running)
    }

    pub(super) fn is_retry_due(&self, now: Instant) -> bool {
        self.retry_at().is_some_and(|at| at <= now)
    }

    /// Makes the next 404 wait for a new check, because the directory has changed.
    pub(super) fn forget(&mut self) {
        self.known_at = None;
    }

    /// Makes the next 404 wait for a check with the files in use.
    pub(super) fn outdate(&mut self) {
        self.forget();
        self.is_outdated = self.is_running;
    }

    /// Postpones the check to the end of a pause of the source. Returns false during a check.
    pub(super) fn postpone(&mut self, until: Instant) -> bool {
        if !self.is_running {
            self.retry_at = self.retry_at.max(Some(until));
        }
        !self.is_running
    }

    /// Begins a check. Returns false if one is in progress.
    pub(super) fn begin(&mut self) -> bool {
        !std::mem::replace(&mut self.is_running, true)
    }

    /// Ends a check. Returns whether its outcome counts; if not, the check must be made again.
    pub(super) fn end(&mut self) -> bool {
        self.is_running = false;
        !std::mem::take(&mut self.is_outdated)
    }

    /// Records the outcome of a check.
    pub(super) fn record(&mut self, outcome: &Result<(), CanaryProblem>, now: Instant) {
        let Err(problem) = outcome else {
            self.known_at = Some(now);
            self.failures = 0;
            self.retry_at = None;
            return;
        };
        self.known_at = None;
        // Each look-up into a complete directory has a check, which is no further failure.
        if self.retry_at.is_none_or(|at| at <= now) {
            self.failures = self.failures.saturating_add(1);
        }
        let retry = back_off(self.failures).max(problem.pause.unwrap_or_default());
        self.retry_at = Some(now + retry);
    }
}

#[cfg(test)]
mod tests;

//! The pace of requests to the URL: a rate with bursts, pauses, and back-off after failures.
//!
//! Pure: the time is a parameter.

use std::time::{Duration, Instant};

/// Number of queries that may start at once, after a pause.
const BURST: f64 = 10.0;
/// Back-off after a failure, 1 s; doubled with each failure in a row.
const FIRST_BACK_OFF: Duration = Duration::from_secs(1);
/// Maximum back-off after failures, 5 min.
const MAX_BACK_OFF: Duration = Duration::from_secs(5 * 60);

/// A token bucket, and the pauses that the source has requested or caused by its failures.
#[derive(Debug)]
pub(crate) struct SourcePace {
    /// Maximum number of queries a second.
    rate: f64,
    /// Requests that may be sent at once, at `refilled_at`. Below 0 after a query of several
    /// requests.
    tokens: f64,
    refilled_at: Instant,
    /// The URL gets no request before this time.
    paused_until: Option<Instant>,
    /// Failures of the source in a row.
    failures: u32,
}

impl SourcePace {
    pub(crate) fn new(rate: u32, now: Instant) -> Self {
        let rate = f64::from(rate);
        Self { rate, tokens: BURST, refilled_at: now, paused_until: None, failures: 0 }
    }

    fn tokens_at(&self, now: Instant) -> f64 {
        let elapsed = now.saturating_duration_since(self.refilled_at).as_secs_f64();
        (self.tokens + elapsed * self.rate).min(BURST)
    }

    /// Takes tokens for requests to the URL. Further requests wait until all of them are refilled.
    pub(crate) fn take_tokens(&mut self, count: usize, now: Instant) {
        self.tokens = self.tokens_at(now) - count as f64;
        self.refilled_at = now;
    }

    /// When the URL may get the next request; `now` if it may get one at once.
    pub(crate) fn opens_at(&self, now: Instant) -> Instant {
        if let Some(until) = self.paused_until.filter(|until| *until > now) {
            return until;
        }
        let missing = 1.0 - self.tokens_at(now);
        if missing <= 0.0 {
            return now;
        }
        now + Duration::from_secs_f64(missing / self.rate)
    }

    /// Whether the URL may get a query within `wait`, behind `ahead` other queries.
    pub(super) fn opens_within(&self, wait: Duration, ahead: usize, now: Instant) -> bool {
        let is_paused = self.paused_until.is_some_and(|until| until > now + wait);
        let tokens = self.tokens_at(now) + self.rate * wait.as_secs_f64();
        !is_paused && (ahead as f64) < tokens
    }

    /// Sends the URL nothing for this time. A longer pause before stays.
    pub(super) fn pause(&mut self, time: Duration, now: Instant) {
        self.paused_until = self.paused_until.max(Some(now + time));
    }

    /// Records a failure of the source. Returns the back-off; `None` during a pause, because
    /// queries that were under way together have failed for one reason.
    pub(super) fn record_failure(&mut self, now: Instant) -> Option<Duration> {
        if self.paused_until.is_some_and(|until| until > now) {
            return None;
        }
        self.failures = self.failures.saturating_add(1);
        Some(back_off(self.failures))
    }

    /// Records that the source works. Returns whether it had failed before.
    pub(super) fn record_response(&mut self) -> bool {
        std::mem::take(&mut self.failures) > 0
    }
}

/// The back-off after this number of failures in a row, within 10 % of its value.
pub(super) fn back_off(failures: u32) -> Duration {
    let doublings = failures.saturating_sub(1).min(16);
    jittered(FIRST_BACK_OFF.saturating_mul(1 << doublings).min(MAX_BACK_OFF))
}

/// `time`, changed by up to 10 %, which spreads the queries that become due.
pub(crate) fn jittered(time: Duration) -> Duration {
    time.mul_f64(0.9 + 0.2 * fastrand::f64())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_double_the_back_off_up_to_five_minutes() {
        for (failures, seconds) in
            [(1, 1.0), (2, 2.0), (3, 4.0), (9, 256.0), (10, 300.0), (99, 300.0)]
        {
            let time = back_off(failures).as_secs_f64();
            assert!((0.9 * seconds..=1.1 * seconds).contains(&time), "{failures}: {time}");
        }
    }

    #[test]
    fn equal_times_are_spread_by_ten_percent_in_both_directions() {
        let times: Vec<f64> =
            (0..1000).map(|_| jittered(Duration::from_secs(100)).as_secs_f64()).collect();
        assert!(times.iter().all(|time| (90.0..=110.0).contains(time)));
        assert!(times.iter().any(|time| *time < 95.0) && times.iter().any(|time| *time > 105.0));
    }
}

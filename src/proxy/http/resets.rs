//! The budget of an HTTP/2 connection for streams that its client resets before their responses
//! have ended ("rapid reset", CVE-2023-44487).
//!
//! Such a request costs its client two frames, and the upstream a connection of HTTP/1.1 or a reset
//! stream of HTTP/2. Servers end a shared connection with too many of those.

use std::cell::Cell;
use std::time::{Duration, Instant};

/// Resets that a connection may have, plus one for each stream that it may open at once, because a
/// client may cancel all of its requests together.
const SPARE: u32 = 100;
/// Age from which the reset of a stream is not premature, as in Envoy. A gateway in front ends long
/// responses, such as event streams, with a reset for each of its clients that leaves.
const PREMATURE: Duration = Duration::from_secs(1);
/// Resets that are forgotten in one second.
const FORGOTTEN_PER_SECOND: u64 = 1;
/// Resets above which further requests are delayed.
const UNDELAYED: u32 = 10;
/// Delay for each reset, so that a request that is reset at once never reaches the upstream.
const DELAY: Duration = Duration::from_millis(1);

/// The premature resets of one connection. A complete response of the upstream makes up for one of
/// them. One of keygate itself does not, because malformed requests get those at once.
#[derive(Debug)]
pub(crate) struct ResetBudget {
    count: Cell<u32>,
    max: u32,
    /// Until when resets were forgotten.
    forgotten_until: Cell<Instant>,
}

impl ResetBudget {
    /// The budget of a connection with at most `max_streams` concurrent streams.
    pub(crate) fn new(max_streams: u32) -> Self {
        let max = max_streams.saturating_add(SPARE);
        Self { count: Cell::new(0), max, forgotten_until: Cell::new(Instant::now()) }
    }

    /// Records a response of the upstream that was sent to its end.
    pub(crate) fn record_complete(&self) {
        self.count.set(self.count.get().saturating_sub(1));
    }

    /// Records the reset of a stream that `began` then, before the end of its response. Returns
    /// whether it is the first one above the budget.
    pub(crate) fn record_reset(&self, began: Instant, now: Instant) -> bool {
        if now.saturating_duration_since(began) >= PREMATURE {
            return false;
        }
        let elapsed = now.saturating_duration_since(self.forgotten_until.get());
        let forgotten = elapsed.as_secs().saturating_mul(FORGOTTEN_PER_SECOND);
        if forgotten > 0 {
            self.forgotten_until.set(now);
        }
        let forgotten = u32::try_from(forgotten).unwrap_or(u32::MAX);
        let count = self.count.get().min(self.max).saturating_sub(forgotten).saturating_add(1);
        let was_exhausted = self.count.replace(count) > self.max;
        count > self.max && !was_exhausted
    }

    /// Time that a request waits before it is forwarded; `None` for connections with few resets.
    pub(crate) fn delay(&self) -> Option<Duration> {
        let count = self.count.get();
        (count > UNDELAYED).then(|| DELAY.saturating_mul(count))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_budget_ends_after_its_resets_and_says_so_once() {
        let budget = ResetBudget::new(20);
        let now = Instant::now();
        assert_eq!((0..120).find(|_| budget.record_reset(now, now)), None);
        assert!(budget.record_reset(now, now));
        assert!(!budget.record_reset(now, now));
    }

    #[test]
    fn complete_responses_and_time_make_up_for_resets() {
        let budget = ResetBudget::new(0);
        let start = Instant::now();
        for _ in 0..1000 {
            assert!(!budget.record_reset(start, start));
            budget.record_complete();
        }
        for second in 1..1000 {
            let now = start + Duration::from_secs(second);
            assert!(!budget.record_reset(now, now));
        }
        assert!(budget.count.get() <= 1, "{budget:?}");
    }

    #[test]
    fn the_reset_of_an_old_stream_is_not_premature() {
        let budget = ResetBudget::new(0);
        let began = Instant::now();
        let now = began + Duration::from_secs(1);
        assert!((0..1000).all(|_| !budget.record_reset(began, now)));
        assert_eq!(budget.delay(), None);
    }

    #[test]
    fn requests_wait_after_many_resets() {
        let budget = ResetBudget::new(0);
        let now = Instant::now();
        assert!((0..10).all(|_| !budget.record_reset(now, now)));
        assert_eq!(budget.delay(), None);
        budget.record_reset(now, now);
        assert_eq!(budget.delay(), Some(Duration::from_millis(11)));
        budget.record_complete();
        assert_eq!(budget.delay(), None);
    }
}

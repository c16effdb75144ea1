//! A limit on how often one log line repeats for one client or one server.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::hash::Hash;
use std::time::{Duration, Instant};

/// Maximum keys tracked per interval; lines of further keys are only counted.
const MAX_KEYS: usize = 1024;

/// Permits one line per key and interval. A key is the client and the content of the line.
#[derive(Debug)]
pub(crate) struct RepeatLimit<K> {
    /// Minimum time between two lines of one key; zero permits every line.
    interval: Duration,
    keys: RefCell<HashMap<K, LastLine>>,
    /// Suppressed lines of keys that are not tracked.
    dropped: Cell<u64>,
    /// When `dropped` was last taken.
    dropped_taken: Cell<Option<Instant>>,
}

#[derive(Debug)]
struct LastLine {
    at: Instant,
    left_out: u64,
}

impl<K: Eq + Hash> RepeatLimit<K> {
    pub(crate) fn new(interval: Duration) -> Self {
        Self {
            interval,
            keys: RefCell::default(),
            dropped: Cell::new(0),
            dropped_taken: Cell::new(None),
        }
    }

    /// Permits a line, and returns how many lines of its key were left out before it. `None`: the
    /// line must be left out.
    pub(crate) fn permit(&self, key: K, now: Instant) -> Option<u64> {
        if self.interval.is_zero() {
            return Some(0);
        }
        let mut keys = self.keys.borrow_mut();
        if let Some(last) = keys.get_mut(&key) {
            if now.saturating_duration_since(last.at) < self.interval {
                last.left_out = last.left_out.saturating_add(1);
                return None;
            }
            last.at = now;
            return Some(std::mem::take(&mut last.left_out));
        }
        if keys.len() >= MAX_KEYS {
            keys.retain(|_, last| {
                let is_recent = now.saturating_duration_since(last.at) < self.interval;
                self.add_dropped(if is_recent { 0 } else { last.left_out });
                is_recent
            });
            if keys.len() >= MAX_KEYS {
                self.add_dropped(1);
                return None;
            }
        }
        keys.insert(key, LastLine { at: now, left_out: 0 });
        Some(0)
    }

    /// Whether lines of `key` are counted.
    pub(crate) fn is_tracked(&self, key: &K) -> bool {
        self.keys.borrow().contains_key(key)
    }

    /// The number of tracked keys for which `is_meant` is true and which had a line in the last
    /// interval.
    pub(crate) fn count_recent(&self, now: Instant, is_meant: impl Fn(&K) -> bool) -> usize {
        let keys = self.keys.borrow();
        let is_recent = |last: &LastLine| now.saturating_duration_since(last.at) < self.interval;
        keys.iter().filter(|(key, last)| is_recent(last) && is_meant(key)).count()
    }

    fn add_dropped(&self, count: u64) {
        self.dropped.set(self.dropped.get().saturating_add(count));
    }

    /// Takes the number of suppressed lines of keys that are not tracked, once in an interval.
    pub(crate) fn take_dropped(&self, now: Instant) -> Option<u64> {
        let is_recent = |taken| now.saturating_duration_since(taken) < self.interval;
        if self.dropped.get() == 0 || self.dropped_taken.get().is_some_and(is_recent) {
            return None;
        }
        self.dropped_taken.set(Some(now));
        Some(self.dropped.take())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const INTERVAL: Duration = Duration::from_secs(60);

    #[test]
    fn a_line_repeats_after_the_interval_with_the_number_left_out() {
        let limit = RepeatLimit::new(INTERVAL);
        let start = Instant::now();
        assert_eq!(limit.permit("one", start), Some(0));
        for second in 1..60 {
            assert_eq!(limit.permit("one", start + Duration::from_secs(second)), None);
        }
        assert_eq!(limit.permit("two", start), Some(0));
        assert_eq!(limit.permit("one", start + INTERVAL), Some(59));
        assert_eq!(limit.permit("one", start + 2 * INTERVAL), Some(0));
    }

    #[test]
    fn an_interval_of_zero_permits_every_line() {
        let limit = RepeatLimit::new(Duration::ZERO);
        let now = Instant::now();
        assert!((0..10 * MAX_KEYS).all(|_| limit.permit("one", now) == Some(0)));
    }

    #[test]
    fn keys_beyond_the_maximum_are_only_counted() {
        let limit = RepeatLimit::new(INTERVAL);
        let start = Instant::now();
        let permitted =
            (0..10 * MAX_KEYS).filter(|client| limit.permit(*client, start).is_some()).count();
        assert_eq!(permitted, MAX_KEYS);
        assert_eq!(limit.take_dropped(start), Some(9 * MAX_KEYS as u64));
        assert_eq!(limit.permit(10 * MAX_KEYS, start), None);
        assert_eq!(limit.take_dropped(start), None, "once in an interval");
        assert_eq!(limit.take_dropped(start + INTERVAL), Some(1));
        assert_eq!(limit.permit(10 * MAX_KEYS, start + INTERVAL), Some(0));
        assert!(limit.keys.borrow().len() <= MAX_KEYS);
    }
}

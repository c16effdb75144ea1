//! How often the log says the same of the same client.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::hash::Hash;
use std::time::{Duration, Instant};

/// Of more clients than this in one interval nothing is said, and they are counted.
const MOST: usize = 1024;

/// What one worker has said of whom. `K` is the client and what is said of it.
#[derive(Debug)]
pub(super) struct LogLimit<K> {
    /// What was said once is said again after so long at the earliest.
    interval: Duration,
    said: RefCell<HashMap<K, Said>>,
    /// What was not said, and of whom is forgotten.
    lost: Cell<u64>,
    /// When that was told.
    told: Cell<Option<Instant>>,
}

#[derive(Debug)]
struct Said {
    at: Instant,
    left_out: u64,
}

impl<K: Eq + Hash> LogLimit<K> {
    pub(super) fn new(interval: Duration) -> Self {
        Self { interval, said: RefCell::default(), lost: Cell::new(0), told: Cell::new(None) }
    }

    /// Whether it may be said, and how many times it was not since it was said last.
    pub(super) fn ask(&self, key: K, now: Instant) -> Option<u64> {
        if self.interval.is_zero() {
            return Some(0);
        }
        let mut said = self.said.borrow_mut();
        if let Some(said) = said.get_mut(&key) {
            if now.saturating_duration_since(said.at) < self.interval {
                said.left_out = said.left_out.saturating_add(1);
                return None;
            }
            said.at = now;
            return Some(std::mem::take(&mut said.left_out));
        }
        if said.len() >= MOST {
            said.retain(|_, said| {
                let is_recent = now.saturating_duration_since(said.at) < self.interval;
                self.lose(if is_recent { 0 } else { said.left_out });
                is_recent
            });
            if said.len() >= MOST {
                self.lose(1);
                return None;
            }
        }
        said.insert(key, Said { at: now, left_out: 0 });
        Some(0)
    }

    fn lose(&self, count: u64) {
        self.lost.set(self.lost.get().saturating_add(count));
    }

    /// How many things were not said of clients that there was no room for; once in an interval.
    pub(super) fn lost(&self, now: Instant) -> Option<u64> {
        let is_told = |told| now.saturating_duration_since(told) < self.interval;
        if self.lost.get() == 0 || self.told.get().is_some_and(is_told) {
            return None;
        }
        self.told.set(Some(now));
        Some(self.lost.take())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const INTERVAL: Duration = Duration::from_secs(60);

    #[test]
    fn the_same_is_said_once_in_an_interval_with_what_was_left_out() {
        let limit = LogLimit::new(INTERVAL);
        let start = Instant::now();
        assert_eq!(limit.ask("one", start), Some(0));
        for second in 1..60 {
            assert_eq!(limit.ask("one", start + Duration::from_secs(second)), None);
        }
        assert_eq!(limit.ask("two", start), Some(0));
        assert_eq!(limit.ask("one", start + INTERVAL), Some(59));
        assert_eq!(limit.ask("one", start + 2 * INTERVAL), Some(0));
    }

    #[test]
    fn without_an_interval_it_is_said_each_time() {
        let limit = LogLimit::new(Duration::ZERO);
        let now = Instant::now();
        assert!((0..10 * MOST).all(|_| limit.ask("one", now) == Some(0)));
    }

    #[test]
    fn many_clients_take_no_more_room_than_there_is() {
        let limit = LogLimit::new(INTERVAL);
        let start = Instant::now();
        let said = (0..10 * MOST).filter(|client| limit.ask(*client, start).is_some()).count();
        assert_eq!(said, MOST);
        assert_eq!(limit.lost(start), Some(9 * MOST as u64));
        assert_eq!(limit.ask(10 * MOST, start), None);
        assert_eq!(limit.lost(start), None, "not so soon");
        assert_eq!(limit.lost(start + INTERVAL), Some(1));
        assert_eq!(limit.ask(10 * MOST, start + INTERVAL), Some(0));
        assert!(limit.said.borrow().len() <= MOST);
    }
}

//! How often the log says the same of the same client.

use std::cell::RefCell;
use std::collections::HashMap;
use std::hash::Hash;
use std::time::{Duration, Instant};

/// What was said once is said again after so long at the earliest.
const INTERVAL: Duration = Duration::from_secs(60);
/// Of more clients than this in one interval nothing is said, and they are counted.
const MOST: usize = 1024;

/// What one worker has said of whom. `K` is the client and what is said of it.
#[derive(Debug)]
pub(super) struct LogLimit<K> {
    said: RefCell<HashMap<K, Said>>,
}

#[derive(Debug)]
struct Said {
    at: Instant,
    left_out: u64,
}

impl<K> Default for LogLimit<K> {
    fn default() -> Self {
        Self { said: RefCell::default() }
    }
}

impl<K: Eq + Hash> LogLimit<K> {
    /// Whether it may be said, and how many times it was not since it was said last.
    pub(super) fn ask(&self, key: K, now: Instant) -> Option<u64> {
        let mut said = self.said.borrow_mut();
        if let Some(said) = said.get_mut(&key) {
            if now.saturating_duration_since(said.at) < INTERVAL {
                said.left_out = said.left_out.saturating_add(1);
                return None;
            }
            said.at = now;
            return Some(std::mem::take(&mut said.left_out));
        }
        if said.len() >= MOST {
            said.retain(|_, said| now.saturating_duration_since(said.at) < INTERVAL);
            if said.len() >= MOST {
                return None;
            }
        }
        said.insert(key, Said { at: now, left_out: 0 });
        Some(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_is_said_once_in_an_interval_with_what_was_left_out() {
        let limit = LogLimit::default();
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
    fn many_clients_take_no_more_room_than_there_is() {
        let limit = LogLimit::default();
        let start = Instant::now();
        let said = (0..10 * MOST).filter(|client| limit.ask(*client, start).is_some()).count();
        assert_eq!(said, MOST);
        assert_eq!(limit.ask(10 * MOST, start + INTERVAL), Some(0));
        assert!(limit.said.borrow().len() <= MOST);
    }
}

//! The budget of an HTTP/2 connection for control frames of its client: PING, SETTINGS,
//! WINDOW_UPDATE and PRIORITY (CVE-2019-9512, CVE-2019-9515). Each costs its client a few bytes,
//! and some must be acknowledged.

use std::cell::Cell;
use std::time::Instant;

/// Control frames that a connection may send; frames that are made up for do not count.
const MAX: u32 = 10_000;
/// Control frames that are forgotten in one second.
const FORGOTTEN_PER_SECOND: u32 = 100;
/// Control frames that one piece of a body makes up for. A piece has 128 KiB at most, and a client
/// may send two WINDOW_UPDATE frames for each KiB.
const FOR_A_PIECE: u32 = 256;

/// The control frames of one connection.
#[derive(Debug)]
pub(crate) struct GlitchBudget {
    count: Cell<u32>,
    /// Until when frames were forgotten.
    forgotten_until: Cell<Instant>,
}

impl Default for GlitchBudget {
    fn default() -> Self {
        Self { count: Cell::new(0), forgotten_until: Cell::new(Instant::now()) }
    }
}

impl GlitchBudget {
    /// Records a piece of a body that went from or to the client.
    pub(crate) fn record_piece(&self) {
        self.count.set(self.count.get().saturating_sub(FOR_A_PIECE));
    }

    /// Records control frames. Returns whether they are the first above the budget.
    pub(crate) fn record(&self, frames: u32, now: Instant) -> bool {
        let before = self.count.get();
        let mut count = before.saturating_add(frames);
        if count > MAX && before <= MAX {
            let elapsed = now.saturating_duration_since(self.forgotten_until.replace(now));
            let seconds = u32::try_from(elapsed.as_secs()).unwrap_or(u32::MAX);
            count = count.saturating_sub(seconds.saturating_mul(FORGOTTEN_PER_SECOND));
        }
        self.count.set(count);
        count > MAX && before <= MAX
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_budget_ends_once_and_pieces_and_time_make_up_for_frames() {
        let budget = GlitchBudget::default();
        let start = Instant::now();
        assert!(!budget.record(MAX, start));
        assert!(budget.record(1, start) && !budget.record(1, start));

        let budget = GlitchBudget::default();
        for second in 0..1000 {
            assert!(!budget.record(FORGOTTEN_PER_SECOND, start + Duration::from_secs(second)));
        }
        for _ in 0..1000 {
            assert!(!budget.record(FOR_A_PIECE, start));
            budget.record_piece();
        }
    }
}

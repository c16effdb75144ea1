//! The heartbeats of the workers, and the monitor that finds workers that hang.
//!
//! One monitor serves `/livez`, `/readyz` and the watchdog of the service manager. Its result is
//! kept, so that a request for it costs the workers nothing.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{MissedTickBehavior, interval};
use tracing::{error, info};

/// Interval between two looks at the heartbeats, 500 ms. Workers beat at least once a second.
const LOOK_INTERVAL: Duration = Duration::from_millis(500);
/// Looks in a row without a heartbeat after which a worker counts as hanging: 10 s. A flood of
/// handshakes delays heartbeats by one or two seconds. Looks are counted and not the time, because
/// a suspended process has no heartbeats either.
const MAX_SILENT_LOOKS: u32 = 20;
/// Heartbeat count of a worker that has ended normally. A worker that panicked does not set it.
const ENDED: u64 = u64::MAX;

/// The heartbeats of all workers: counters that increase while the workers run.
#[derive(Debug, Clone)]
pub struct Heartbeats(Arc<[AtomicU64]>);

impl Heartbeats {
    /// A counter for each of `workers`.
    #[must_use]
    pub fn new(workers: usize) -> Self {
        Self((0..workers).map(|_| AtomicU64::new(0)).collect())
    }

    /// The heartbeat of the worker with this index.
    #[must_use]
    pub fn of(&self, worker: usize) -> Heartbeat {
        Heartbeat { all: self.clone(), worker }
    }
}

/// The heartbeat of one worker.
#[derive(Debug)]
pub struct Heartbeat {
    all: Heartbeats,
    worker: usize,
}

impl Heartbeat {
    /// Shows that the worker is alive.
    pub fn beat(&self) {
        if let Some(count) = self.all.0.get(self.worker) {
            count.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Shows that the worker has ended normally.
    pub fn end(&self) {
        if let Some(count) = self.all.0.get(self.worker) {
            count.store(ENDED, Ordering::Relaxed);
        }
    }
}

/// The indices of the workers that hang.
pub type HangingWorkers = watch::Receiver<Vec<usize>>;

/// Keeps `hanging` current, until the task is dropped.
pub async fn monitor(heartbeats: Heartbeats, hanging: watch::Sender<Vec<usize>>) {
    let mut ticks = interval(LOOK_INTERVAL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut monitor = HeartbeatMonitor::new(heartbeats);
    loop {
        ticks.tick().await;
        let found = monitor.look();
        hanging.send_if_modified(|known| {
            for worker in found.iter().filter(|worker| !known.contains(worker)) {
                error!(worker, "a worker hangs");
            }
            for worker in known.iter().filter(|worker| !found.contains(worker)) {
                info!(worker, "a worker that hung runs again");
            }
            let is_modified = *known != found;
            *known = found;
            is_modified
        });
    }
}

/// Finds workers whose heartbeat has stopped.
#[derive(Debug)]
struct HeartbeatMonitor {
    heartbeats: Heartbeats,
    last_seen: Vec<LastBeat>,
}

/// The last known heartbeat count of a worker, and for how many looks it has not changed.
#[derive(Debug, Clone, Copy, Default)]
struct LastBeat {
    count: u64,
    silent_looks: u32,
}

impl HeartbeatMonitor {
    fn new(heartbeats: Heartbeats) -> Self {
        let last_seen = vec![LastBeat::default(); heartbeats.0.len()];
        Self { heartbeats, last_seen }
    }

    /// Returns the indices of the workers without a heartbeat in the last [`MAX_SILENT_LOOKS`].
    fn look(&mut self) -> Vec<usize> {
        let mut hanging = Vec::new();
        let counts = self.heartbeats.0.iter().map(|count| count.load(Ordering::Relaxed));
        for (worker, (count, last)) in counts.zip(&mut self.last_seen).enumerate() {
            if count != last.count || count == ENDED {
                *last = LastBeat { count, silent_looks: 0 };
            } else {
                last.silent_looks = last.silent_looks.saturating_add(1);
                if last.silent_looks >= MAX_SILENT_LOOKS {
                    hanging.push(worker);
                }
            }
        }
        hanging
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_worker_hangs_if_its_heartbeat_stops_and_not_if_it_has_ended() {
        let heartbeats = Heartbeats::new(2);
        let mut monitor = HeartbeatMonitor::new(heartbeats.clone());
        let (first, second) = (heartbeats.of(0), heartbeats.of(1));
        second.beat();
        for look in 1..=MAX_SILENT_LOOKS {
            first.beat();
            assert_eq!(monitor.look(), [] as [usize; 0], "after {look} looks");
        }
        first.beat();
        assert_eq!(monitor.look(), [1]);
        second.beat();
        first.end();
        assert_eq!(monitor.look(), [] as [usize; 0]);
        second.end();
        for _ in 0..2 * MAX_SILENT_LOOKS {
            assert_eq!(monitor.look(), [] as [usize; 0]);
        }
    }
}

//! Notifies the service manager, such as systemd, of the state of the process and its threads.
//!
//! Without `NOTIFY_SOCKET`, nothing is sent. Failures are logged and never fatal. Protocol:
//! sd_notify(3).

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use sd_notify::NotifyState;
use tokio::time::{MissedTickBehavior, interval};
use tracing::{error, warn};

/// Minimum time without a heartbeat before a worker counts as hanging, 3 s. Workers beat at least
/// once a second.
const MIN_SILENCE: Duration = Duration::from_secs(3);
/// Heartbeat count of a worker that has ended normally. A worker that panicked does not set it.
const ENDED: u64 = u64::MAX;

/// Notifies that the proxy serves, with `status` as the text that `systemctl status` shows.
pub fn ready(status: &str) {
    notify(&[NotifyState::Ready, NotifyState::Status(status)]);
}

/// Notifies that all files are read again. [`ready`] ends this state.
pub fn reloading() {
    // With `Type=notify-reload`, systemd compares this time with the time of its own request.
    match NotifyState::monotonic_usec_now() {
        Ok(now) => notify(&[NotifyState::Reloading, now, NotifyState::Status("reloading")]),
        Err(error) => warn!(%error, "no monotonic time for the service manager"),
    }
}

/// Notifies that the process ends when its connections have drained.
pub fn stopping() {
    notify(&[NotifyState::Stopping, NotifyState::Status("draining")]);
}

/// Sends watchdog notifications while all workers are alive, if the service manager requires them.
///
/// The interval is half the time after which the service manager kills the process. The thread that
/// runs this function is watched as well, because it must run to send.
pub async fn keep_alive(heartbeats: Heartbeats) {
    let Some(period) = sd_notify::watchdog_enabled() else { return };
    let mut ticks = interval((period / 2).max(Duration::from_millis(1)));
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut monitor = HeartbeatMonitor::new(heartbeats, Instant::now());
    loop {
        ticks.tick().await;
        match monitor.hanging_worker(Instant::now()) {
            None => notify(&[NotifyState::Watchdog]),
            Some(worker) => error!(worker, "a worker hangs, watchdog notifications stop"),
        }
    }
}

fn notify(states: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(states) {
        warn!(%error, "cannot notify the service manager");
    }
}

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

/// Finds workers whose heartbeat has stopped.
#[derive(Debug)]
struct HeartbeatMonitor {
    heartbeats: Heartbeats,
    last_seen: Vec<LastBeat>,
}

/// The last known heartbeat count of a worker, and when it last changed.
#[derive(Debug, Clone, Copy)]
struct LastBeat {
    count: u64,
    changed: Instant,
}

impl HeartbeatMonitor {
    fn new(heartbeats: Heartbeats, now: Instant) -> Self {
        let last_seen = vec![LastBeat { count: 0, changed: now }; heartbeats.0.len()];
        Self { heartbeats, last_seen }
    }

    /// Index of a worker without a heartbeat since the last call and for at least
    /// [`MIN_SILENCE`].
    fn hanging_worker(&mut self, now: Instant) -> Option<usize> {
        let mut hanging = None;
        let counts = self.heartbeats.0.iter().map(|count| count.load(Ordering::Relaxed));
        for (worker, (count, last)) in counts.zip(&mut self.last_seen).enumerate() {
            if count != last.count || count == ENDED {
                *last = LastBeat { count, changed: now };
            } else if now.duration_since(last.changed) >= MIN_SILENCE {
                hanging = Some(worker);
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
        let start = Instant::now();
        let mut monitor = HeartbeatMonitor::new(heartbeats.clone(), start);
        let after = |seconds| start + Duration::from_secs(seconds);
        let (first, second) = (heartbeats.of(0), heartbeats.of(1));
        first.beat();
        second.beat();
        assert_eq!(monitor.hanging_worker(after(15)), None);
        first.beat();
        assert_eq!(monitor.hanging_worker(after(17)), None, "two seconds of silence are allowed");
        first.beat();
        assert_eq!(monitor.hanging_worker(after(30)), Some(1));
        second.beat();
        first.end();
        assert_eq!(monitor.hanging_worker(after(45)), None);
        second.end();
        assert_eq!(monitor.hanging_worker(after(60)), None);
        assert_eq!(monitor.hanging_worker(after(75)), None);
    }
}

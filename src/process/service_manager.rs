//! The service manager, such as systemd: what it is told, and how it learns that a thread hangs.
//!
//! Without `NOTIFY_SOCKET` nobody is there to be told. What cannot be said is logged and never
//! fatal. Protocol: sd_notify(3).

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use sd_notify::NotifyState;
use tokio::time::{MissedTickBehavior, interval};
use tracing::{error, warn};

/// Everything that was asked for is in use.
pub fn ready(status: &str) {
    tell(&[NotifyState::Ready, NotifyState::Status(status)]);
}

/// All files are being read again; [`ready`] ends it.
pub fn reloading() {
    // The time tells the manager whether this answers its own signal, or an earlier one.
    match NotifyState::monotonic_usec_now() {
        Ok(now) => tell(&[NotifyState::Reloading, now, NotifyState::Status("reloading")]),
        Err(error) => warn!(%error, "no monotonic time for the service manager"),
    }
}

/// The process ends once its connections have.
pub fn stopping() {
    tell(&[NotifyState::Stopping, NotifyState::Status("draining")]);
}

/// Tells the manager that all threads are alive, if it wants to know: twice in the time after which
/// it ends the process. The thread that runs this proves its own life by that.
pub async fn keep_alive(heartbeats: Heartbeats) {
    let Some(period) = sd_notify::watchdog_enabled() else { return };
    let mut ticks = interval((period / 2).max(Duration::from_millis(1)));
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut watched = Watched::new(heartbeats, Instant::now());
    loop {
        ticks.tick().await;
        match watched.hanging(Instant::now()) {
            None => tell(&[NotifyState::Watchdog]),
            Some(worker) => error!(worker, "a worker hangs, watchdog notifications stop"),
        }
    }
}

fn tell(states: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(states) {
        warn!(%error, "the service manager cannot be told");
    }
}

/// The heartbeat of each worker: a number that moves as long as the worker does.
#[derive(Debug, Clone)]
pub struct Heartbeats(Arc<[AtomicU64]>);

/// The heartbeat of a worker that has ended as it should. One that panicked does not get here.
const ENDED: u64 = u64::MAX;
/// No worker is called hanging sooner: the longest time between two beats is a second.
const SHORTEST: Duration = Duration::from_secs(3);

impl Heartbeats {
    /// One for each worker.
    #[must_use]
    pub fn new(workers: usize) -> Self {
        Self((0..workers).map(|_| AtomicU64::new(0)).collect())
    }

    /// That of one worker.
    #[must_use]
    pub fn of(&self, worker: usize) -> Heartbeat {
        Heartbeat { all: self.clone(), worker }
    }
}

/// How a worker shows that it is alive.
#[derive(Debug)]
pub struct Heartbeat {
    all: Heartbeats,
    worker: usize,
}

impl Heartbeat {
    /// It is.
    pub fn beat(&self) {
        if let Some(heartbeat) = self.all.0.get(self.worker) {
            heartbeat.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// It has nothing more to do.
    pub fn end(&self) {
        if let Some(heartbeat) = self.all.0.get(self.worker) {
            heartbeat.store(ENDED, Ordering::Relaxed);
        }
    }
}

/// What was seen of the heartbeats, and when each last moved.
#[derive(Debug)]
struct Watched {
    heartbeats: Heartbeats,
    seen: Vec<(u64, Instant)>,
}

impl Watched {
    fn new(heartbeats: Heartbeats, now: Instant) -> Self {
        let seen = heartbeats.0.iter().map(|_| (0, now)).collect();
        Self { heartbeats, seen }
    }

    /// A worker whose heartbeat has not moved since the last look, nor for [`SHORTEST`].
    fn hanging(&mut self, now: Instant) -> Option<usize> {
        let mut hanging = None;
        for (worker, (heartbeat, (seen, moved))) in
            self.heartbeats.0.iter().zip(&mut self.seen).enumerate()
        {
            let found = heartbeat.load(Ordering::Relaxed);
            if found != *seen || found == ENDED {
                (*seen, *moved) = (found, now);
            } else if now.duration_since(*moved) >= SHORTEST {
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
    fn a_worker_hangs_when_its_pulse_stands_still_and_not_when_it_has_ended() {
        let heartbeats = Heartbeats::new(2);
        let start = Instant::now();
        let mut watched = Watched::new(heartbeats.clone(), start);
        let after = |seconds| start + Duration::from_secs(seconds);
        let (first, second) = (heartbeats.of(0), heartbeats.of(1));
        first.beat();
        second.beat();
        assert_eq!(watched.hanging(after(15)), None);
        first.beat();
        assert_eq!(watched.hanging(after(17)), None, "two seconds are not long");
        first.beat();
        assert_eq!(watched.hanging(after(30)), Some(1));
        second.beat();
        first.end();
        assert_eq!(watched.hanging(after(45)), None);
        second.end();
        assert_eq!(watched.hanging(after(60)), None);
        assert_eq!(watched.hanging(after(75)), None);
    }
}

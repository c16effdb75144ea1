//! The end of connections: those that have waited for too long, those whose clients are to be
//! refused by now, and all of them when the worker stops.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::{Duration, Instant, SystemTime};

use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{MissedTickBehavior, interval};

use super::activity::Order;
use super::standing::Standing;
use super::worker::Worker;
use crate::config::Config;

/// What the process is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    /// Accepting and serving.
    Serving,
    /// The same, but not ready for more: load balancers are to look elsewhere.
    Leaving,
    /// Not accepting; connections finish what they have in flight.
    Draining,
    /// Whatever is still open is cut.
    Ended,
}

/// How often a worker looks at its connections: an eighth of the shortest time-out, so that none
/// is late by more than that.
pub(super) fn tick_interval(config: &Config) -> Duration {
    let limits = config.services.iter().map(|service| service.limits);
    let shortest = limits.map(|limits| limits.header_timeout.min(limits.idle_timeout)).min();
    (shortest.unwrap_or_default() / 8).clamp(Duration::from_millis(50), Duration::from_secs(1))
}

/// The same while the worker drains: it ends as soon as the last connection has.
const DRAIN_TICK: Duration = Duration::from_millis(20);

/// Connections that are judged without a pause: some tens of microseconds.
const JUDGED_AT_ONCE: usize = 32;

/// The open connections of one worker.
#[derive(Debug, Default)]
pub(super) struct OpenConnections {
    /// Those that serve requests; one that has ended is found out at the next tick.
    serving: RefCell<Vec<Rc<Standing>>>,
    /// All of them, handshakes included.
    count: Rc<Cell<usize>>,
    draining: Cell<bool>,
}

/// A connection is open as long as this lives.
#[derive(Debug)]
pub(super) struct Open(Rc<Cell<usize>>);

impl Drop for Open {
    fn drop(&mut self) {
        self.0.set(self.0.get().saturating_sub(1));
    }
}

impl OpenConnections {
    /// Counts a connection.
    pub(super) fn enter(&self) -> Open {
        self.count.set(self.count.get().saturating_add(1));
        Open(Rc::clone(&self.count))
    }

    /// Takes a connection that is about to serve requests under its care.
    pub(super) fn watch(&self, standing: &Rc<Standing>) {
        self.serving.borrow_mut().push(Rc::clone(standing));
        if self.draining.get() {
            standing.activity.give(Order::Finish);
        }
    }

    /// Looks after the connections until the process has ended, or is draining and none is left.
    /// `on_tick` is called at every look; `judge` judges them again, whenever `judgements` says that
    /// anything is known that was not known before.
    pub(super) async fn tend(
        &self,
        mut stage: watch::Receiver<Stage>,
        mut judgements: watch::Receiver<u64>,
        tick: Duration,
        accepting: Vec<JoinHandle<()>>,
        on_tick: impl Fn(),
        judge: impl AsyncFn(),
    ) {
        let mut ticks = interval(tick);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                changed = stage.changed() => {
                    let now = *stage.borrow_and_update();
                    match (changed, now) {
                        (Ok(()), Stage::Serving | Stage::Leaving) => {}
                        (Ok(()), Stage::Draining) => {
                            accepting.iter().for_each(JoinHandle::abort);
                            self.finish_all();
                            ticks = interval(DRAIN_TICK);
                        }
                        (Ok(()), Stage::Ended) | (Err(_), _) => return,
                    }
                }
                Ok(()) = judgements.changed() => judge().await,
                _ = ticks.tick() => {
                    self.check_all();
                    on_tick();
                }
            }
            if self.draining.get() && self.count.get() == 0 {
                return;
            }
        }
    }

    /// Judges every connection again by the snapshot of this moment. In between, requests are
    /// served: nobody waits for more than a few judgements.
    pub(super) async fn judge_all(&self, worker: &Worker) {
        let (snapshot, time) = (worker.snapshot(), SystemTime::now());
        self.forget_ended();
        let serving = self.serving.borrow().clone();
        let mut judged = 0;
        for standing in &serving {
            judged += 1;
            if standing.judge_again(&snapshot, worker, time) || judged == JUDGED_AT_ONCE {
                judged = 0;
                tokio::task::yield_now().await;
            }
        }
    }

    fn check_all(&self) {
        let (now, time) = (Instant::now(), SystemTime::now());
        self.forget_ended();
        self.serving.borrow().iter().for_each(|standing| standing.check(now, time));
    }

    fn forget_ended(&self) {
        // The connection itself holds one.
        self.serving.borrow_mut().retain(|standing| Rc::strong_count(standing) > 1);
    }

    fn finish_all(&self) {
        self.draining.set(true);
        let serving = self.serving.borrow();
        serving.iter().for_each(|standing| standing.activity.give(Order::Finish));
    }
}

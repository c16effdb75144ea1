//! The end of connections: those that have waited for too long, those whose clients are to be
//! refused by now, and all of them when the worker stops.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::{Duration, Instant, SystemTime};

use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use tokio::time::{MissedTickBehavior, interval};
use tracing::error;

use super::listener::Share;
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
    /// Those that serve requests, by their addresses.
    serving: RefCell<HashMap<*const Standing, Rc<Standing>>>,
    /// All of them, handshakes included.
    count: Rc<Cell<usize>>,
    leaving: Cell<bool>,
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

/// What a worker is told, and what it does by itself.
pub(super) struct Life {
    pub(super) stage: watch::Receiver<Stage>,
    /// Changes when anything is known that was not known before.
    pub(super) judgements: watch::Receiver<u64>,
    pub(super) orders: mpsc::UnboundedReceiver<Order>,
    /// The tasks that accept connections, by the configured address.
    pub(super) accepting: HashMap<SocketAddr, JoinHandle<()>>,
    pub(super) tick: Duration,
}

/// What changes where a worker listens.
#[derive(Debug)]
pub(super) enum Order {
    /// On this address no more.
    Close(SocketAddr),
    Listen(Share),
}

/// Looks after the connections of a worker until the process has ended, or is draining and none is
/// left.
pub(super) async fn tend(worker: &Rc<Worker>, life: Life) {
    let Life { mut stage, mut judgements, mut orders, mut accepting, tick } = life;
    let open = &worker.open;
    let mut ticks = interval(tick);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            changed = stage.changed() => {
                let now = *stage.borrow_and_update();
                match (changed, now) {
                    (Ok(()), Stage::Serving) => {}
                    (Ok(()), Stage::Leaving) => open.leave(),
                    (Ok(()), Stage::Draining) => {
                        accepting.drain().for_each(|(_, task)| task.abort());
                        open.drain();
                        ticks = interval(DRAIN_TICK);
                    }
                    (Ok(()), Stage::Ended) | (Err(_), _) => return,
                }
            }
            Ok(()) = judgements.changed() => open.judge_all(worker).await,
            Some(order) = orders.recv() => obey(worker, order, &mut accepting),
            _ = ticks.tick() => {
                open.check_all();
                worker.drop_stale_upstreams();
            }
        }
        if open.is_drained() {
            return;
        }
    }
}

fn obey(worker: &Rc<Worker>, order: Order, accepting: &mut HashMap<SocketAddr, JoinHandle<()>>) {
    let replaced = match order {
        Order::Close(address) => accepting.remove(&address),
        // Nobody accepts any more.
        Order::Listen(_) if worker.open.draining.get() => None,
        Order::Listen(share) => {
            let address = share.configured_address();
            match share.accept(Rc::clone(worker)) {
                Ok(task) => accepting.insert(address, task),
                Err(error) => {
                    error!(%address, %error, "a worker cannot accept connections");
                    None
                }
            }
        }
    };
    replaced.iter().for_each(JoinHandle::abort);
}

impl OpenConnections {
    /// Counts a connection.
    pub(super) fn enter(&self) -> Open {
        self.count.set(self.count.get().saturating_add(1));
        Open(Rc::clone(&self.count))
    }

    /// Takes a connection that is about to serve requests under its care.
    pub(super) fn watch(&self, standing: &Rc<Standing>) {
        self.serving.borrow_mut().insert(Rc::as_ptr(standing), Rc::clone(standing));
        if self.draining.get() {
            standing.activity.leave();
        }
    }

    /// Judges every connection again by the snapshot of this moment. In between, requests are
    /// served: nobody waits for more than a few judgements.
    pub(super) async fn judge_all(&self, worker: &Worker) {
        let (snapshot, time) = (worker.snapshot(), SystemTime::now());
        let serving: Vec<Rc<Standing>> = self.serving.borrow().values().cloned().collect();
        let mut judged = 0;
        for standing in &serving {
            // What has ended meanwhile is judged no more.
            if Rc::strong_count(standing) == 1 {
                continue;
            }
            judged += 1;
            if standing.judge_again(&snapshot, worker, time) || judged == JUDGED_AT_ONCE {
                judged = 0;
                tokio::task::yield_now().await;
            }
        }
    }

    /// Looks after a connection no more: it has ended.
    pub(super) fn forget(&self, standing: *const Standing) {
        self.serving.borrow_mut().remove(&standing);
    }

    fn is_drained(&self) -> bool {
        self.draining.get() && self.count.get() == 0
    }

    fn check_all(&self) {
        let (now, time) = (Instant::now(), SystemTime::now());
        self.serving.borrow().values().for_each(|standing| standing.check(now, time));
    }

    /// Whether clients are to make their next connection elsewhere.
    pub(super) fn is_leaving(&self) -> bool {
        self.leaving.get()
    }

    /// From now on every answer of HTTP/1.1 is the last on its connection.
    fn leave(&self) {
        self.leaving.set(true);
    }

    /// Has every connection end, those that are made meanwhile, too.
    fn drain(&self) {
        self.draining.set(true);
        self.leave();
        self.serving.borrow().values().for_each(|standing| standing.activity.leave());
    }
}

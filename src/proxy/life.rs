//! The life of a worker: it accepts, looks after its connections, judges them again, drains, ends.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::{Duration, SystemTime};

use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use tokio::time::{MissedTickBehavior, interval};
use tracing::error;

use super::drain::Stage;
use super::listener::Order;
use super::worker::Worker;
use crate::config::Config;
use crate::process::service_manager::Heartbeat;
use crate::snapshot::Service;

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

/// What a worker is told, and what it does by itself.
pub(super) struct Life<'a> {
    pub(super) stage: watch::Receiver<Stage>,
    /// Changes when anything is known that was not known before.
    pub(super) judgements: watch::Receiver<u64>,
    pub(super) orders: mpsc::UnboundedReceiver<Order>,
    /// The tasks that accept connections, by the configured address.
    pub(super) accepting: HashMap<SocketAddr, JoinHandle<()>>,
    pub(super) tick: Duration,
    pub(super) heartbeat: &'a Heartbeat,
}

/// Looks after the connections of a worker until the process has ended, or is draining and none is
/// left.
pub(super) async fn tend(worker: &Rc<Worker>, life: Life<'_>) {
    let Life { mut stage, mut judgements, mut orders, mut accepting, tick, heartbeat } = life;
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
            Ok(()) = judgements.changed() => judge_all(worker, heartbeat).await,
            Some(order) = orders.recv() => obey(worker, order, &mut accepting),
            _ = ticks.tick() => {
                heartbeat.beat();
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
        Order::Listen(_) if worker.open.is_draining() => None,
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

/// Judges every connection again by the snapshot of this moment. In between, requests are
/// served: nobody waits for more than a few judgements.
async fn judge_all(worker: &Worker, heartbeat: &Heartbeat) {
    let (snapshot, time) = (worker.snapshot(), SystemTime::now());
    let serving = worker.open.serving();
    let metrics_of = |service: &Service| worker.service_metrics(service);
    let mut judged = 0;
    for standing in &serving {
        // What has ended meanwhile is judged no more.
        if Rc::strong_count(standing) == 1 {
            continue;
        }
        judged += 1;
        if standing.judge_again(&snapshot, metrics_of, &worker.reporter, time)
            || judged == JUDGED_AT_ONCE
        {
            judged = 0;
            heartbeat.beat();
            tokio::task::yield_now().await;
        }
    }
}

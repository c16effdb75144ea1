//! The event loop of a worker, beside its connections: lifecycle, new judgements, changed
//! listeners, and the tick that checks timeouts.

use std::collections::HashMap;
use std::rc::Rc;
use std::time::{Duration, SystemTime};

use keygate_core::guard::keys_checked;
use keygate_wire::permit::ledger;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use tokio::time::{Interval, MissedTickBehavior, interval};
use tracing::error;

use super::{Rooms, accept};
use crate::config::{Config, ListenAddress};
use crate::listen::ListenChange;
use crate::process::heartbeat::Heartbeat;
use crate::process::lifecycle::Lifecycle;
use crate::proxy::{NewJudgement, OpenConnection, Worker};
use crate::snapshot::{Service, Snapshot};

/// The interval at which a worker checks the timeouts of its connections: an eighth of the shortest
/// timeout. No timeout expires later than one interval.
pub(crate) fn tick_interval(config: &Config) -> Duration {
    let limits = config.services.iter().map(|service| service.limits);
    let shortest = limits.map(|limits| limits.header_timeout.min(limits.idle_timeout)).min();
    let shortest = shortest.unwrap_or(Duration::MAX);
    (shortest / 8).clamp(Duration::from_millis(50), Duration::from_secs(1))
}

/// The tick of a draining worker. The worker ends at the first tick after its last connection.
const DRAIN_TICK: Duration = Duration::from_millis(20);

/// Number of certificates that are judged without yielding, some tens of microseconds.
const JUDGED_AT_ONCE: usize = 32;

/// The snapshot and the answers by which open connections were judged last.
pub(crate) struct JudgedBy {
    generation: u64,
    /// Number of keys whose compromise is proved. No proof is ever withdrawn.
    proofs: usize,
}

/// The difference to the last judgement of all open connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Change {
    /// Keys were cleared, are to be asked about again, or clearances or exceptions have expired.
    Other,
    /// The compromise of further keys is proved, which concerns every client.
    Proofs,
    /// There is a new snapshot.
    Snapshot,
}

impl JudgedBy {
    /// The basis of judgements by `snapshot`.
    pub(crate) fn new(snapshot: &Snapshot) -> Self {
        let answers = snapshot.guard.answers();
        let proofs = answers.map_or(0, |answers| answers.load().confirmed().len());
        Self { generation: snapshot.generation, proofs }
    }

    /// Records that connections are judged by `snapshot` now.
    fn replace(&mut self, snapshot: &Snapshot) -> Change {
        let before = std::mem::replace(self, Self::new(snapshot));
        if before.generation != self.generation {
            Change::Snapshot
        } else if before.proofs != self.proofs {
            Change::Proofs
        } else {
            Change::Other
        }
    }
}

/// The inputs of a worker's event loop.
pub(crate) struct EventLoop<'a> {
    pub(crate) lifecycle: watch::Receiver<Lifecycle>,
    /// Changes when open connections must be judged again.
    pub(crate) judgements: watch::Receiver<u64>,
    /// The basis of the last judgement of all open connections.
    pub(crate) judged_by: JudgedBy,
    pub(crate) listen_changes: mpsc::UnboundedReceiver<ListenChange>,
    /// The tasks that accept connections, by the configured address.
    pub(crate) accepting: HashMap<ListenAddress, JoinHandle<()>>,
    pub(crate) tick: Duration,
    pub(crate) heartbeat: &'a Heartbeat,
}

impl EventLoop<'_> {
    /// Runs until the process has stopped, or drains and the last connection has closed.
    pub(crate) async fn run(mut self, rooms: &Rooms) {
        let worker = &rooms.proxied;
        let mut ticks = interval(self.tick);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                changed = self.lifecycle.changed() => {
                    let lifecycle = *self.lifecycle.borrow_and_update();
                    if changed.is_err() || lifecycle == Lifecycle::Stopped {
                        return;
                    }
                    self.enter(lifecycle, worker, &mut ticks);
                }
                Ok(()) = self.judgements.changed() => {
                    rooms.asked.follow_snapshot();
                    self.judge_again(worker).await;
                }
                Some(change) = self.listen_changes.recv() => self.apply(change, rooms),
                _ = ticks.tick() => {
                    self.heartbeat.beat();
                    worker.metrics.set_weak_key_checks(keys_checked());
                    worker.metrics.set_buffers(&ledger::usage());
                    let expired = worker.connections.check_all();
                    judge_all(worker, self.heartbeat, expired, NewJudgement::Snapshot).await;
                    worker.drop_stale_upstreams();
                }
            }
            if rooms.is_drained() {
                return;
            }
        }
    }

    /// Judges the connections that a new snapshot, new answers or an expired exception concern.
    async fn judge_again(&mut self, worker: &Worker) {
        worker.connections.held.notify_waiters();
        let mut connections = worker.connections.serving();
        let reason = match self.judged_by.replace(&worker.snapshot()) {
            Change::Other => {
                // A clean key is in no filter, and neither an answer nor an exception covers it.
                connections.retain(|connection| !connection.is_clean());
                NewJudgement::Answers
            }
            Change::Proofs => NewJudgement::Answers,
            Change::Snapshot => NewJudgement::Snapshot,
        };
        judge_all(worker, self.heartbeat, connections, reason).await;
    }

    fn enter(&mut self, lifecycle: Lifecycle, worker: &Worker, ticks: &mut Interval) {
        match lifecycle {
            Lifecycle::Stopped => {}
            Lifecycle::Serving => worker.connections.announces_close.set(false),
            Lifecycle::DrainedByOperator | Lifecycle::NotReady => {
                worker.connections.announces_close.set(true);
            }
            Lifecycle::Draining => {
                self.accepting.drain().for_each(|(_, task)| task.abort());
                worker.connections.drain();
                *ticks = interval(DRAIN_TICK);
            }
        }
    }

    fn apply(&mut self, change: ListenChange, rooms: &Rooms) {
        let replaced = match change {
            ListenChange::Remove(address) => self.accepting.remove(&address),
            ListenChange::Add(_) if rooms.proxied.connections.draining.get() => None,
            ListenChange::Add(socket) => {
                let address = socket.configured_address().clone();
                match accept(socket, rooms.clone()) {
                    Ok(task) => self.accepting.insert(address, task),
                    Err(error) => {
                        error!(%address, %error, "a worker cannot accept connections");
                        None
                    }
                }
            }
        };
        replaced.iter().for_each(JoinHandle::abort);
    }
}

/// The work of the event loop since it yielded, so that no request waits for more than a few
/// judgements.
struct Turn {
    /// Number of judged certificates.
    judged: usize,
    /// Number of keys that the thread had checked when the turn began.
    checked: u64,
}

impl Turn {
    fn begin() -> Self {
        Self { judged: 0, checked: keys_checked() }
    }

    /// Adds `judged` certificates. Yields after [`JUDGED_AT_ONCE`] of them, and after the check of
    /// a new key, which takes as long as hundreds of judgements.
    async fn add(&mut self, judged: usize, heartbeat: &Heartbeat) {
        self.judged += judged;
        if self.judged >= JUDGED_AT_ONCE || keys_checked() != self.checked {
            heartbeat.beat();
            tokio::task::yield_now().await;
            *self = Self::begin();
        }
    }
}

/// Judges open connections by the current snapshot, in several turns.
async fn judge_all(
    worker: &Worker,
    heartbeat: &Heartbeat,
    connections: Vec<Rc<OpenConnection>>,
    reason: NewJudgement,
) {
    let (snapshot, time) = (worker.snapshot(), SystemTime::now());
    let metrics_of = |service: &Service| worker.service_metrics(service);
    let mut turn = Turn::begin();
    for connection in &connections {
        // Only this list still holds the connection: it has closed.
        if Rc::strong_count(connection) == 1 {
            continue;
        }
        let judged =
            connection.judge_again(&snapshot, reason, metrics_of, &worker.refusal_log, time);
        if worker.inquiry.is_enabled() {
            // Answers that come later are applied by a further judgement.
            let _ = worker.inquiry.query(connection.open_questions(&snapshot, time));
        }
        turn.add(judged, heartbeat).await;
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::pin::pin;
    use std::task::{Context, Waker};

    use super::*;
    use crate::ask::check_another_key;
    use crate::process::heartbeat::Heartbeats;

    /// The maximum number of 100 certificates that are judged in one turn.
    fn judged_at_once(check: impl Fn()) -> usize {
        let (judged, heartbeat) = (Cell::new(0), Heartbeats::new(1).of(0));
        let mut judging = pin!(async {
            let mut turn = Turn::begin();
            while judged.get() < 100 {
                check();
                judged.set(judged.get() + 1);
                turn.add(1, &heartbeat).await;
            }
        });
        let mut most = 0;
        while judged.get() < 100 {
            let before = judged.get();
            let _ = judging.as_mut().poll(&mut Context::from_waker(Waker::noop()));
            most = most.max(judged.get() - before);
        }
        most
    }

    #[tokio::test]
    async fn open_connections_are_judged_in_turns() {
        assert_eq!(judged_at_once(|| ()), JUDGED_AT_ONCE);
    }

    #[tokio::test]
    async fn a_turn_has_the_check_of_one_new_key() {
        assert_eq!(judged_at_once(check_another_key), 1);
    }
}

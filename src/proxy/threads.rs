//! One thread for each core: started together, ended together.

use std::collections::HashMap;
use std::convert::Infallible;
use std::io;
use std::rc::Rc;
use std::sync::mpsc;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use tokio::runtime::{Builder, LocalOptions};
use tokio::sync::watch;
use tracing::error;
use tracing_appender::non_blocking::NonBlocking;

use super::access_log::AccessLog;
use super::drain::Stage;
use super::health::HealthBoard;
use super::life::{self, Life};
use super::listener::{self, Addresses, Listener, Order};
use super::peers::Peers;
use super::report::Reporter;
use super::worker::Worker;
use crate::config::Config;
use crate::guard::{RecentKeys, RecentShard};
use crate::metrics::WorkerMetrics;
use crate::process::inherited_sockets::InheritedSockets;
use crate::process::service_manager::{Heartbeat, Heartbeats};
use crate::recent_hits::RecentHits;
use crate::snapshot::Current;
use crate::tls;

/// The running workers.
#[derive(Debug)]
pub struct Workers {
    addresses: Arc<Mutex<Addresses>>,
    threads: Vec<JoinHandle<()>>,
    running: tokio::sync::mpsc::Receiver<Infallible>,
}

/// Why the workers could not be started.
#[derive(Debug, thiserror::Error)]
#[error("cannot start worker {index}: {source}")]
pub struct StartError {
    index: usize,
    source: io::Error,
}

/// What all workers have.
#[derive(Debug, Clone)]
pub struct Shared {
    /// The snapshot in use.
    pub current: Current,
    /// How upstreams are.
    pub board: HealthBoard,
    /// Where the access log goes.
    pub access_log: NonBlocking,
    /// Who was refused or flagged.
    pub recent_hits: RecentHits,
    /// They end when it says so.
    pub stage: watch::Receiver<Stage>,
    /// They judge open connections again when it changes.
    pub judgements: watch::Receiver<u64>,
    /// They show by it that they are alive.
    pub heartbeats: Heartbeats,
}

/// Starts a worker for each of `metrics`, with its share of `listeners`, and returns once all of
/// them accept connections. Later configurations may listen on what is `inherited`, too.
///
/// # Errors
/// The operating system refuses a thread or a runtime.
pub fn start(
    config: &Config,
    (listeners, inherited): (Vec<Listener>, InheritedSockets),
    metrics: &[WorkerMetrics],
    recent: &RecentKeys,
    shared: &Shared,
) -> Result<Workers, StartError> {
    let (ready, started) = mpsc::channel();
    let (sender, running) = tokio::sync::mpsc::channel(1);
    let peers = Peers::new();
    let (orders, ordered): (Vec<_>, Vec<_>) =
        metrics.iter().map(|_| tokio::sync::mpsc::unbounded_channel()).unzip();
    let addresses = Arc::new(Mutex::new(Addresses::new(&listeners, orders, inherited)));
    let mut threads = Vec::with_capacity(metrics.len());
    let mut shares: Vec<_> = listeners.into_iter().map(Listener::into_shares).collect();
    for (index, (metrics, orders)) in metrics.iter().zip(ordered).enumerate() {
        let plan = Plan {
            shares: shares.iter_mut().filter_map(Iterator::next).collect(),
            metrics: metrics.clone(),
            recent: recent.shard(index),
            peers: Arc::clone(&peers),
            heartbeat: shared.heartbeats.of(index),
            shared: shared.clone(),
            orders,
            config: config.clone(),
            ready: ready.clone(),
            _running: sender.clone(),
        };
        let thread = std::thread::Builder::new()
            .name(format!("keygate-worker-{index}"))
            .spawn(move || plan.run())
            .map_err(|source| StartError { index, source })?;
        threads.push(thread);
    }
    drop((ready, sender));
    for index in 0..threads.len() {
        // A worker that died has dropped its sender without a word.
        let died = || io::Error::other("the thread ended before it accepted connections");
        started
            .recv()
            .unwrap_or_else(|_| Err(died()))
            .map_err(|source| StartError { index, source })?;
    }
    Ok(Workers { addresses, threads, running })
}

impl Workers {
    /// Where they listen.
    #[must_use]
    pub fn addresses(&self) -> &Arc<Mutex<Addresses>> {
        &self.addresses
    }

    /// Waits until every worker has ended. Can be given up and called again.
    pub async fn ended(&mut self) {
        let _ = self.running.recv().await; // closed when the last worker drops its sender
        for thread in self.threads.drain(..) {
            if thread.join().is_err() {
                error!("a worker panicked");
            }
        }
    }
}

/// What a worker needs to start, on its way to its thread.
struct Plan {
    shares: Vec<listener::Share>,
    metrics: WorkerMetrics,
    recent: Option<RecentShard>,
    peers: Arc<Peers>,
    heartbeat: Heartbeat,
    shared: Shared,
    orders: tokio::sync::mpsc::UnboundedReceiver<Order>,
    config: Config,
    ready: mpsc::Sender<io::Result<()>>,
    /// Dropped when the worker ends.
    _running: tokio::sync::mpsc::Sender<Infallible>,
}

impl Plan {
    fn run(self) {
        tls::warm_up();
        let runtime =
            Builder::new_current_thread().enable_all().build_local(LocalOptions::default());
        match runtime {
            Ok(runtime) => runtime.block_on(self.serve()),
            Err(error) => {
                let _ = self.ready.send(Err(error)); // nobody listens: the start has failed already
            }
        }
    }

    async fn serve(self) {
        let tick = life::tick_interval(&self.config);
        let Shared { current, board, access_log, recent_hits, stage, judgements, heartbeats: _ } =
            self.shared;
        let worker = Rc::new(Worker::new(
            current,
            self.metrics,
            self.recent,
            (board, self.peers),
            (
                AccessLog::new(self.config.access_log, access_log),
                Reporter::new(recent_hits, self.config.log.repeat_after),
            ),
            self.config.workers.get(),
        ));
        let shares = self.shares.into_iter();
        let accepting: io::Result<HashMap<_, _>> = shares
            .map(|share| Ok((share.configured_address(), share.accept(Rc::clone(&worker))?)))
            .collect();
        let accepting = match accepting {
            Ok(accepting) => accepting,
            Err(error) => {
                let _ = self.ready.send(Err(error));
                return;
            }
        };
        let _ = self.ready.send(Ok(()));
        drop(self.ready);

        let heartbeat = self.heartbeat;
        let life =
            Life { stage, judgements, orders: self.orders, accepting, tick, heartbeat: &heartbeat };
        life::tend(&worker, life).await;
        heartbeat.end();
    }
}

//! The workers: one OS thread per core, each with a current-thread runtime.

mod event_loop;

use std::collections::HashMap;
use std::convert::Infallible;
use std::io;
use std::rc::Rc;
use std::sync::mpsc;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use tokio::runtime::{Builder, LocalOptions};
use tokio::sync::mpsc::{Receiver, Sender, UnboundedReceiver, channel, unbounded_channel};

use self::event_loop::{EventLoop, JudgedBy};
use super::connection;
use super::worker::{Worker, WorkerContext};
use crate::config::Config;
use crate::guard::{RecentKeys, RecentShard};
use crate::listen::{Addresses, ListenChange, ListenSocket, Listener};
use crate::metrics::WorkerMetrics;
use crate::permit::PerIpCounts;
use crate::process::heartbeat::Heartbeat;
use crate::process::inherited_sockets::InheritedSockets;
use crate::process::supervision::Supervisor;
use crate::tls;

/// The sockets that the workers accept on.
#[derive(Debug)]
pub struct Sockets {
    /// The bound addresses of the configuration.
    pub listeners: Vec<Listener>,
    /// Sockets from the service manager, which a later configuration may use.
    pub inherited: InheritedSockets,
}

/// The running workers.
#[derive(Debug)]
pub struct Workers {
    addresses: Arc<Mutex<Addresses>>,
    threads: Vec<JoinHandle<()>>,
    running: Receiver<Infallible>,
}

/// A worker that could not be started.
#[derive(Debug, thiserror::Error)]
#[error("cannot start worker {index}: {source}")]
pub struct StartError {
    index: usize,
    source: io::Error,
}

/// Starts a worker for each of `metrics`, and returns when all of them accept connections.
///
/// # Errors
/// Returns an error if the operating system refuses a thread or a runtime.
pub fn start(
    config: &Config,
    sockets: Sockets,
    metrics: &[WorkerMetrics],
    recent: &RecentKeys,
    context: &WorkerContext,
    supervisor: &Supervisor,
) -> Result<Workers, StartError> {
    let Sockets { listeners, inherited } = sockets;
    let (ready, started) = mpsc::channel();
    let (sender, running) = channel(1);
    let per_ip = PerIpCounts::new();
    let (changes, received): (Vec<_>, Vec<_>) = metrics.iter().map(|_| unbounded_channel()).unzip();
    let addresses = Arc::new(Mutex::new(Addresses::new(&listeners, changes, inherited)));
    let mut threads = Vec::with_capacity(metrics.len());
    let mut sockets: Vec<_> = listeners.into_iter().map(Listener::into_sockets).collect();
    for (index, (metrics, listen_changes)) in metrics.iter().zip(received).enumerate() {
        let plan = Plan {
            sockets: sockets.iter_mut().filter_map(Iterator::next).collect(),
            metrics: metrics.clone(),
            recent: recent.shard(index),
            per_ip: Arc::clone(&per_ip),
            heartbeat: context.heartbeats.of(index),
            context: context.clone(),
            listen_changes,
            config: config.clone(),
            ready: ready.clone(),
            _running: sender.clone(),
        };
        let thread = supervisor
            .spawn(format!("keygate-worker-{index}"), move || plan.run())
            .map_err(|source| StartError { index, source })?;
        threads.push(thread);
    }
    drop((ready, sender));
    for index in 0..threads.len() {
        // A worker that panicked has dropped its sender.
        let ended = || io::Error::other("the thread ended before it accepted connections");
        started
            .recv()
            .unwrap_or_else(|_| Err(ended()))
            .map_err(|source| StartError { index, source })?;
    }
    Ok(Workers { addresses, threads, running })
}

impl Workers {
    /// The addresses that the workers listen on.
    #[must_use]
    pub fn addresses(&self) -> &Arc<Mutex<Addresses>> {
        &self.addresses
    }

    /// Waits until every worker has ended. Cancel-safe.
    pub async fn ended(&mut self) {
        let _ = self.running.recv().await; // closed when the last worker drops its sender
        for thread in self.threads.drain(..) {
            let _ = thread.join(); // the supervisor reports a panic
        }
    }
}

/// Everything a worker needs to start, on the way to its thread.
struct Plan {
    sockets: Vec<ListenSocket>,
    metrics: WorkerMetrics,
    recent: Option<RecentShard>,
    per_ip: Arc<PerIpCounts>,
    heartbeat: Heartbeat,
    context: WorkerContext,
    listen_changes: UnboundedReceiver<ListenChange>,
    config: Config,
    ready: mpsc::Sender<io::Result<()>>,
    /// Dropped when the worker ends.
    _running: Sender<Infallible>,
}

impl Plan {
    fn run(self) {
        tls::warm_up();
        let runtime =
            Builder::new_current_thread().enable_all().build_local(LocalOptions::default());
        match runtime {
            Ok(runtime) => runtime.block_on(self.serve()),
            Err(error) => {
                let _ = self.ready.send(Err(error)); // fails if the start has already failed
            }
        }
    }

    async fn serve(self) {
        let tick = event_loop::tick_interval(&self.config);
        let worker = Rc::new(Worker::new(
            &self.config,
            &self.context,
            self.metrics,
            self.recent,
            self.per_ip,
        ));
        let sockets = self.sockets.into_iter();
        let accepting: io::Result<HashMap<_, _>> = sockets
            .map(|socket| {
                let address = socket.configured_address();
                Ok((address, connection::accept(socket, Rc::clone(&worker))?))
            })
            .collect();
        let accepting = match accepting {
            Ok(accepting) => accepting,
            Err(error) => {
                let _ = self.ready.send(Err(error)); // fails if the start has already failed
                return;
            }
        };
        let _ = self.ready.send(Ok(())); // fails if the start has already failed
        drop(self.ready);

        let heartbeat = self.heartbeat;
        let WorkerContext { lifecycle, judgements, .. } = self.context;
        let event_loop = EventLoop {
            lifecycle,
            judgements,
            judged_by: JudgedBy::new(&worker.snapshot()),
            listen_changes: self.listen_changes,
            accepting,
            tick,
            heartbeat: &heartbeat,
        };
        event_loop.run(&worker).await;
        heartbeat.end();
    }
}

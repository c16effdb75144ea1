//! The worker threads: one per core, each with a current-thread runtime.
//!
//! A worker accepts connections and hands them to [`crate::proxy`], or to `crate::ask` if their
//! address belongs to an authorizer. Nothing here serves a connection.

mod event_loop;

use std::collections::HashMap;
use std::convert::Infallible;
use std::io;
use std::rc::Rc;
use std::sync::mpsc;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use keygate_core::guard::{RecentClients, RecentShard};
use keygate_core::tls;
use keygate_wire::permit::{PerIpCounts, ledger};
use tokio::runtime::{Builder, LocalOptions};
use tokio::sync::mpsc::{Receiver, Sender, UnboundedReceiver, channel, unbounded_channel};

use self::event_loop::{EventLoop, JudgedBy};
use crate::ask::{self, AskContext, AskWorker, AskerShares};
use crate::config::{Config, ListenAddress};
use crate::listen::{AddressLoads, Addresses, AnyAcceptor, ListenChange, ListenSocket, Listener};
use crate::metrics::WorkerMetrics;
use crate::process::heap;
use crate::process::heartbeat::Heartbeat;
use crate::process::inherited_sockets::InheritedSockets;
use crate::process::memory_limit::buffers_of_worker;
use crate::process::supervision::Supervisor;
use crate::proxy::{self, Worker, WorkerContext};

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
    recent: &RecentClients,
    context: &WorkerContext,
    supervisor: &Supervisor,
) -> Result<Workers, StartError> {
    heap::keep_freed_memory();
    let max_buffered = buffers_of_worker(config);
    let Sockets { listeners, inherited } = sockets;
    let (ready, started) = mpsc::channel();
    let (sender, running) = channel(1);
    let (per_ip, shares) = (PerIpCounts::new(), AskerShares::default());
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
            shares: shares.clone(),
            heartbeat: context.heartbeats.of(index),
            context: context.clone(),
            listen_changes,
            config: config.clone(),
            max_buffered,
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

    /// The open connections of each address.
    pub(crate) fn loads(&self) -> AddressLoads {
        self.addresses.lock().unwrap_or_else(PoisonError::into_inner).loads()
    }

    /// Lets go of the addresses, on which a draining worker no longer accepts.
    pub fn close_addresses(&self) {
        self.addresses.lock().unwrap_or_else(PoisonError::into_inner).close();
    }

    /// Waits until every worker has ended. Cancel-safe.
    pub async fn ended(&mut self) {
        let _ = self.running.recv().await; // closed when the last worker drops its sender
        for thread in self.threads.drain(..) {
            let _ = thread.join(); // the supervisor reports a panic
        }
    }
}

/// The state of one worker in each room that serves connections.
#[derive(Clone)]
pub(crate) struct Rooms {
    pub(crate) proxied: Rc<Worker>,
    pub(crate) asked: Rc<AskWorker>,
}

impl Rooms {
    /// Whether the worker drains and its last connection has closed.
    fn is_drained(&self) -> bool {
        self.proxied.connections.is_drained() && self.asked.is_idle()
    }
}

/// Accepts connections on a socket until the task is aborted. Each is served on a task of its own.
///
/// # Errors
/// Returns an error if the operating system refuses to register the socket.
fn accept(socket: ListenSocket, rooms: Rooms) -> io::Result<tokio::task::JoinHandle<()>> {
    Ok(match socket.into_acceptor()? {
        AnyAcceptor::Tcp(mut acceptor) => tokio::task::spawn_local(async move {
            while let Some(accepted) = acceptor.accept().await {
                let address = ListenAddress::Tcp(accepted.listen);
                match rooms.asked.authorizer_on(&address) {
                    None => proxy::serve_accepted(&rooms.proxied, accepted),
                    Some(authorizer) => ask::serve_tcp(&rooms.asked, &authorizer, accepted),
                }
            }
        }),
        AnyAcceptor::Unix(mut acceptor) => tokio::task::spawn_local(async move {
            while let Some(accepted) = acceptor.accept().await {
                let authorizer = rooms.asked.authorizer_on(acceptor.configured_address());
                if let Some(authorizer) = authorizer {
                    ask::serve_unix(&rooms.asked, &authorizer, accepted);
                }
            }
        }),
    })
}

/// The part of the context that authorizers need.
fn ask_context(context: &WorkerContext, shares: AskerShares) -> AskContext {
    AskContext {
        current: Arc::clone(&context.current),
        recent_hits: context.recent_hits.clone(),
        lifecycle: context.lifecycle.clone(),
        inquiry: context.inquiry.clone(),
        shares,
    }
}

/// Everything a worker needs to start, on the way to its thread.
struct Plan {
    sockets: Vec<ListenSocket>,
    metrics: WorkerMetrics,
    recent: Option<RecentShard>,
    per_ip: Arc<PerIpCounts>,
    shares: AskerShares,
    heartbeat: Heartbeat,
    context: WorkerContext,
    listen_changes: UnboundedReceiver<ListenChange>,
    config: Config,
    /// Maximum bytes that the worker buffers for clients.
    max_buffered: usize,
    ready: mpsc::Sender<io::Result<()>>,
    /// Dropped when the worker ends.
    _running: Sender<Infallible>,
}

impl Plan {
    fn run(self) {
        tls::warm_up();
        ledger::set_limit(self.max_buffered);
        self.metrics.buffer_limit.set(i64::try_from(self.max_buffered).unwrap_or(i64::MAX));
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
        let (config, context) = (&self.config, &self.context);
        let (metrics, recent) = (self.metrics.clone(), self.recent.clone());
        let asked = AskWorker::new(config, ask_context(context, self.shares), metrics, recent);
        let proxied = Worker::new(config, context, self.metrics, self.recent, self.per_ip);
        let rooms = Rooms { proxied: Rc::new(proxied), asked: Rc::new(asked) };
        let sockets = self.sockets.into_iter();
        let accepting: io::Result<HashMap<_, _>> = sockets
            .map(|socket| {
                let address = socket.configured_address().clone();
                Ok((address, accept(socket, rooms.clone())?))
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
            judged_by: JudgedBy::new(&rooms.proxied.snapshot()),
            listen_changes: self.listen_changes,
            accepting,
            tick,
            heartbeat: &heartbeat,
        };
        event_loop.run(&rooms).await;
        heartbeat.end();
    }
}

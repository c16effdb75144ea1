//! The admin server: metrics, liveness, readiness, status, and commands to the running proxy.
//!
//! Runs on the control runtime, never on the data path.

mod accept;
mod admissions;
mod attention;
mod chart;
mod command;
mod connection;
mod connections;
mod counters;
mod drain;
mod history;
mod listener;
mod losses;
mod page;
mod plain;
mod readers;
mod recent_hits;
mod rejections;
mod reload;
mod remedy;
mod response;
mod routes;
mod servers;
mod status;
mod traffic;
mod view;

use std::convert::Infallible;
use std::future::pending;
use std::io;
use std::net::IpAddr;
use std::rc::Rc;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use arc_swap::ArcSwap;
use keygate_core::unix_time::now;
use keygate_wire::permit::network_of;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, UnixListener};
use tokio::runtime::{Builder, LocalOptions};
use tokio::sync::{mpsc, oneshot};
use tracing::{debug, warn};

use self::connection::{serve_connection, unix_peer};
use self::connections::Connections;
pub use self::drain::Drain;
pub(crate) use self::drain::DrainedBody;
use self::listener::AdminListener;
pub use self::readers::AdminListeners;
use self::readers::ReadersTls;
use self::view::{Memory, View};
use crate::config::AdminCommands;
use crate::confirm::ConfirmStatus;
use crate::key_uses::KeyUses;
use crate::listen::AddressLoads;
use crate::metrics::Exposition;
use crate::process::heartbeat::HangingWorkers;
use crate::process::lifecycle::Lifecycle;
use crate::proxy::ServerStates;
use crate::recent_hits::RecentHits;
use crate::snapshot::Report;
use crate::snapshot::watch::Command;

/// The commit that `--version` prints; `build.rs` sets it.
const COMMIT: &str = env!("KEYGATE_COMMIT");
/// Interval at which the counters are remembered.
const MEMORY_INTERVAL: Duration = Duration::from_secs(30);

/// The state that the admin server shows, and the commands that it sends.
#[derive(Debug, Clone)]
pub struct AdminSources {
    /// All metrics.
    pub exposition: Exposition,
    /// Loaded files and the results of the last reloads.
    pub report: Arc<ArcSwap<Report>>,
    /// The source of proofs and its answers.
    pub confirm: ConfirmStatus,
    /// Recent clients whose keys were not clean.
    pub recent_hits: RecentHits,
    /// Recent clients with their key exchange.
    pub key_uses: KeyUses,
    /// The states of the upstream servers.
    pub servers: ServerStates,
    /// The open connections of each address.
    pub loads: AddressLoads,
    /// The stage of the proxy, and the drain by an operator; `/readyz` responds 200 while it
    /// serves.
    pub drain: Drain,
    /// Workers that hang; `/livez` and `/readyz` respond 503 while there is one.
    pub hanging: HangingWorkers,
    /// Commands to the task that watches files.
    pub commands: mpsc::Sender<Command>,
    /// The peers that may send them.
    pub commands_from: AdminCommands,
}

/// The sources, and what the admin server remembers.
#[derive(Debug, Clone)]
pub struct AdminState {
    sources: AdminSources,
    /// Start of the process, in seconds since the Unix epoch.
    since: u64,
    /// The address is on loopback, where pages in local browsers may send requests.
    is_loopback: bool,
    /// The peer of the connection may send commands.
    takes_commands: bool,
    /// The address is for readers, which send no commands.
    is_for_readers: bool,
    /// Name of the machine.
    host: String,
    memory: Arc<Mutex<Memory>>,
}

impl AdminState {
    /// Creates the state; its history begins now.
    #[must_use]
    pub fn new(sources: AdminSources) -> Self {
        let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
        Self {
            sources,
            since: now(),
            is_loopback: false,
            takes_commands: false,
            is_for_readers: false,
            host,
            memory: Arc::default(),
        }
    }

    /// Why the process does not live; `None` if it does.
    fn hang(&self) -> Option<String> {
        let hanging = self.sources.hanging.borrow();
        let workers: Vec<String> = hanging.iter().map(ToString::to_string).collect();
        (!workers.is_empty()).then(|| format!("worker {} hangs", workers.join(", ")))
    }

    /// Why the proxy is not ready; `None` if it is.
    fn not_ready(&self) -> Option<String> {
        match self.sources.drain.stage() {
            Lifecycle::DrainedByOperator => Some("drained by an operator".to_owned()),
            Lifecycle::Serving => self.hang(),
            Lifecycle::NotReady | Lifecycle::Draining | Lifecycle::Stopped => {
                Some("shutting down".to_owned())
            }
        }
    }
}

/// Serves the admin address and the address for readers until the task is dropped.
///
/// # Errors
/// Returns an error if the runtime cannot register a listener.
pub async fn serve(listeners: AdminListeners, state: AdminState) -> io::Result<Infallible> {
    let AdminListeners { admin, readers } = listeners;
    let counted = state.clone();
    tokio::task::spawn_local(async move {
        let mut ticks = tokio::time::interval(MEMORY_INTERVAL);
        loop {
            ticks.tick().await;
            drop(View::new(&counted)); // so that counters are remembered without page views
        }
    });
    let of_readers = AdminState { is_for_readers: true, ..state.clone() };
    let read = async {
        let Some((listener, tls)) = readers else { return pending().await };
        serve_readers(listener, tls, of_readers).await
    };
    tokio::select! {
        ended = serve_on(admin, None, state) => ended,
        ended = read => ended,
    }
}

/// Serves readers on a thread of their own until the process ends. Their handshakes would take time from
/// operators.
async fn serve_readers(
    listener: AdminListener,
    tls: Option<ReadersTls>,
    state: AdminState,
) -> io::Result<Infallible> {
    let (failed, failure) = oneshot::channel();
    let serve = move || {
        let runtime =
            Builder::new_current_thread().enable_all().build_local(LocalOptions::default());
        let ended = runtime.and_then(|it| it.block_on(serve_on(listener, tls, state)));
        let _ = failed.send(ended); // nobody waits at the end of the process
    };
    thread::Builder::new().name("keygate-readers".to_owned()).spawn(serve)?;
    failure.await.map_err(io::Error::other)?
}

/// Serves one address, whose connections have limits of their own.
async fn serve_on(
    listener: AdminListener,
    tls: Option<ReadersTls>,
    mut state: AdminState,
) -> io::Result<Infallible> {
    state.is_loopback = listener.is_loopback_tcp();
    let connections = Rc::default();
    match listener {
        AdminListener::Tcp(listener) => {
            let listener = TcpListener::from_std(listener)?;
            let next = async || {
                let (io, peer) = listener.accept().await?;
                let is_local = io.local_addr().is_ok_and(|at| is_local(peer.ip(), at.ip()));
                Ok((io, Some(network_of(peer.ip())), peer.to_string(), is_local))
            };
            accept(&connections, state, tls, next).await
        }
        AdminListener::Unix(listener, _file) => {
            let listener = UnixListener::from_std(listener)?;
            let next = async || {
                let (io, _) = listener.accept().await?;
                let name = unix_peer(&io);
                Ok((io, None, name, true))
            };
            accept(&connections, state, tls, next).await
        }
    }
}

/// Whether a peer is on this machine. Its address alone does not show it: a proxy in the same pod
/// may connect from 127.0.0.6 for peers elsewhere.
fn is_local(peer: IpAddr, address: IpAddr) -> bool {
    let (peer, address) = (peer.to_canonical(), address.to_canonical());
    peer == address || (peer.is_loopback() && address.is_loopback())
}

/// Pause after an error, 100 ms: others wait as long.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

async fn accept<IO: AsyncRead + AsyncWrite + Unpin + 'static>(
    connections: &Rc<Connections>,
    state: AdminState,
    tls: Option<ReadersTls>,
    next: impl AsyncFn() -> io::Result<(IO, Option<IpAddr>, String, bool)>,
) -> io::Result<Infallible> {
    loop {
        let (io, peer, name, is_local) = match next().await {
            Ok(accepted) => accepted,
            Err(error) => {
                warn!(%error, "accept failed on the admin address");
                tokio::time::sleep(ACCEPT_PAUSE).await; // file descriptors may become free
                continue;
            }
        };
        let Some(place) = connections.enter(peer) else { continue };
        let takes_commands = is_local || state.sources.commands_from == AdminCommands::Anywhere;
        let (id, state) = (place.id, AdminState { takes_commands, ..state.clone() });
        let tls = tls.clone();
        let task = tokio::task::spawn_local(async move {
            let is_commanding = Rc::clone(&place.is_commanding);
            match tls {
                None => serve_connection(io, name, state, is_commanding).await,
                Some(tls) => match readers::accept(&tls, io).await {
                    Ok(io) => serve_connection(io, name, state, is_commanding).await,
                    Err(error) => debug!(peer = name, %error, "handshake of a reader failed"),
                },
            }
            drop(place);
        });
        connections.set_task(id, task.abort_handle());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_peer_on_this_machine_is_local_and_a_proxy_of_other_peers_is_not() {
        let is_local =
            |peer: &str, address: &str| is_local(peer.parse().unwrap(), address.parse().unwrap());
        for (peer, address) in [
            ("127.0.0.1", "127.0.0.1"),
            ("127.0.0.9", "127.0.0.1"),
            ("::1", "::1"),
            ("::ffff:127.0.0.1", "::ffff:127.0.0.1"),
            ("10.0.0.5", "10.0.0.5"),
        ] {
            assert!(is_local(peer, address), "{peer}");
        }
        for (peer, address) in [
            ("10.0.0.6", "10.0.0.5"),
            ("127.0.0.6", "10.0.0.5"),
            ("::ffff:127.0.0.6", "::ffff:10.0.0.5"),
            ("2001:db8::1", "2001:db8::2"),
        ] {
            assert!(!is_local(peer, address), "{peer}");
        }
    }
}

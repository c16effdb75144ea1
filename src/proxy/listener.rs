//! Listening sockets: one for each worker on every address, so that the kernel spreads connections.
//! One that was handed over is shared by all workers: its queue outlives the process.

use std::collections::{HashMap, HashSet};
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use socket2::{Domain, Protocol, Socket, Type};
use tokio::net::TcpListener;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::task::JoinHandle;
use tracing::{info, warn};

use super::connection::{self, Via};
use super::worker::Worker;
use crate::config::Config;
use crate::process::inherited_sockets::InheritedSockets;

/// The kernel's queue of connections that nobody has accepted yet; it caps this at its own limit.
const BACKLOG: i32 = 4096;

/// An address that the configuration names, bound once for each worker.
#[derive(Debug)]
pub struct Listener {
    address: Arc<Address>,
    sockets: Vec<std::net::TcpListener>,
}

/// What the connections of one address have in common.
#[derive(Debug)]
struct Address {
    /// As configured; services are found by it.
    configured: SocketAddr,
    /// As bound: with its port where the configuration says 0.
    local: SocketAddr,
    /// The longest of the services' on this address: which one is meant is known only later.
    handshake_timeout: Mutex<Duration>,
    /// Open connections that are still allowed.
    permits: Arc<Semaphore>,
    /// How many are, in all.
    most: AtomicUsize,
    /// How many connections must end before one more is allowed: they became fewer than there are.
    excess: AtomicUsize,
}

impl Address {
    fn set(&self, limits: Limits) {
        *self.handshake_timeout.lock().unwrap_or_else(PoisonError::into_inner) =
            limits.handshake_timeout;
        self.set_most(limits.most);
    }

    fn handshake_timeout(&self) -> Duration {
        *self.handshake_timeout.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes how many connections may be open. If they become fewer, those that are open stay.
    fn set_most(&self, most: usize) {
        let before = self.most.swap(most, Ordering::Relaxed);
        let fewer = before.saturating_sub(most);
        let forgotten = self.permits.forget_permits(fewer);
        self.excess.fetch_add(fewer.saturating_sub(forgotten), Ordering::Relaxed);
        let more = (0..most.saturating_sub(before)).filter(|_| !self.takes_excess()).count();
        self.permits.add_permits(more);
    }

    /// A connection has ended: its permit is for the next, unless there are too many.
    fn take_back(&self, permit: OwnedSemaphorePermit) {
        if self.takes_excess() {
            permit.forget();
        }
    }

    fn takes_excess(&self) -> bool {
        let less = |excess: usize| excess.checked_sub(1);
        self.excess.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less).is_ok()
    }
}

/// What changes where a worker listens.
#[derive(Debug)]
pub(super) enum Order {
    /// On this address no more.
    Close(SocketAddr),
    Listen(Share),
}

/// The addresses that the workers listen on, as configurations follow one another.
#[derive(Debug)]
pub struct Addresses {
    known: HashMap<SocketAddr, Arc<Address>>,
    workers: Vec<mpsc::UnboundedSender<Order>>,
    /// Kept open: a later configuration may name an address again.
    inherited: InheritedSockets,
}

impl Addresses {
    pub(super) fn new(
        listeners: &[Listener],
        workers: Vec<mpsc::UnboundedSender<Order>>,
        inherited: InheritedSockets,
    ) -> Self {
        let known = listeners.iter().map(|listener| &listener.address);
        let known = known.map(|it| (it.configured, Arc::clone(it))).collect();
        Self { known, workers, inherited }
    }

    /// Binds what a configuration has more than the one before. What is returned lets the workers
    /// accept there, and no more where nothing is configured now.
    ///
    /// # Errors
    /// An address cannot be bound; nothing has changed.
    pub fn prepare(
        this: &Arc<Mutex<Self>>,
        config: &Config,
    ) -> Result<impl FnOnce() + Send + use<>, BindError> {
        let addresses = Arc::clone(this);
        let locked = this.lock().unwrap_or_else(PoisonError::into_inner);
        let configured: HashSet<SocketAddr> =
            config.services.iter().map(|service| service.listen).collect();
        let added = configured.iter().filter(|address| !locked.known.contains_key(address));
        let workers = locked.workers.len();
        let added = added.map(|address| {
            Listener::bind(config, workers, *address, &locked.inherited)
                .map_err(|source| BindError { address: *address, source })
        });
        let added = added.collect::<Result<Vec<_>, _>>()?;
        drop(locked);
        let limits = configured.iter().map(|address| (*address, Limits::of(config, *address)));
        let limits: Vec<_> = limits.collect();
        Ok(move || {
            let mut addresses = addresses.lock().unwrap_or_else(PoisonError::into_inner);
            addresses.commit(added, &limits);
        })
    }

    fn commit(&mut self, added: Vec<Listener>, limits: &[(SocketAddr, Limits)]) {
        let is_configured =
            |address: &SocketAddr| limits.iter().any(|(configured, _)| configured == address);
        let closed = self.known.keys().filter(|address| !is_configured(address));
        for address in closed.copied().collect::<Vec<_>>() {
            info!(%address, "no longer listening");
            self.known.remove(&address);
            for worker in &self.workers {
                let _ = worker.send(Order::Close(address)); // or it has ended
            }
        }
        for (address, limits) in limits {
            if let Some(known) = self.known.get(address) {
                known.set(*limits);
            }
        }
        for listener in added {
            let address = Arc::clone(&listener.address);
            info!(address = %address.local, "listening");
            self.known.insert(address.configured, address);
            for (worker, share) in self.workers.iter().zip(listener.into_shares()) {
                let _ = worker.send(Order::Listen(share)); // or it has ended
            }
        }
    }
}

/// What the services of an address have in common.
#[derive(Debug, Clone, Copy)]
struct Limits {
    /// How many connections may be open: they share the sum.
    most: usize,
    /// The longest of theirs: which one is meant is known only later.
    handshake_timeout: Duration,
}

impl Limits {
    fn of(config: &Config, address: SocketAddr) -> Self {
        let services = config.services.iter().filter(|service| service.listen == address);
        let limits = services.map(|service| &service.limits);
        let most = limits.clone().map(|limits| limits.max_connections);
        let timeouts = limits.map(|limits| limits.handshake_timeout);
        Self {
            most: most.fold(0, usize::saturating_add).min(Semaphore::MAX_PERMITS),
            handshake_timeout: timeouts.max().unwrap_or_default(),
        }
    }
}

/// Why an address cannot be listened on.
#[derive(Debug, thiserror::Error)]
#[error("cannot listen on {address}: {source}")]
pub struct BindError {
    address: SocketAddr,
    source: io::Error,
}

/// Binds every address of the configuration, once for each worker; those that were handed over are
/// bound already.
///
/// # Errors
/// An address is in use, not ours, or needs a privilege.
pub fn bind(config: &Config, inherited: &InheritedSockets) -> Result<Vec<Listener>, BindError> {
    let mut addresses: Vec<SocketAddr> =
        config.services.iter().map(|service| service.listen).collect();
    addresses.sort_unstable();
    addresses.dedup();
    addresses
        .into_iter()
        .map(|address| {
            Listener::bind(config, config.workers.get(), address, inherited)
                .map_err(|source| BindError { address, source })
        })
        .collect()
}

impl Listener {
    fn bind(
        config: &Config,
        workers: usize,
        configured: SocketAddr,
        inherited: &InheritedSockets,
    ) -> io::Result<Self> {
        let (local, sockets) = match inherited.tcp(configured, workers)? {
            Some(sockets) => (configured, sockets),
            None => bound_for_each(workers, configured)?,
        };
        let Limits { most, handshake_timeout } = Limits::of(config, configured);
        Ok(Self {
            address: Arc::new(Address {
                configured,
                local,
                handshake_timeout: Mutex::new(handshake_timeout),
                permits: Arc::new(Semaphore::new(most)),
                most: AtomicUsize::new(most),
                excess: AtomicUsize::new(0),
            }),
            sockets,
        })
    }

    /// The address with the port that it really has.
    #[must_use]
    pub fn local_address(&self) -> SocketAddr {
        self.address.local
    }

    /// The address as the configuration has it.
    #[must_use]
    pub fn configured_address(&self) -> SocketAddr {
        self.address.configured
    }

    /// The sockets, one for each worker in their order.
    pub(super) fn into_shares(self) -> impl Iterator<Item = Share> {
        let address = self.address;
        self.sockets.into_iter().map(move |socket| Share { address: Arc::clone(&address), socket })
    }
}

fn bound_for_each(
    workers: usize,
    address: SocketAddr,
) -> io::Result<(SocketAddr, Vec<std::net::TcpListener>)> {
    // With SO_REUSEPORT a second process would silently get half of the connections: this one is
    // without, and fails if anybody listens there.
    drop(bound(address, false)?);
    let first = listening(address)?;
    let local = first.local_addr()?;
    let others = (1..workers).map(|_| listening(local));
    let sockets = std::iter::once(Ok(first)).chain(others).collect::<io::Result<_>>()?;
    Ok((local, sockets))
}

fn listening(address: SocketAddr) -> io::Result<std::net::TcpListener> {
    let socket = bound(address, true)?;
    socket.listen(BACKLOG)?;
    socket.set_nonblocking(true)?;
    Ok(socket.into())
}

fn bound(address: SocketAddr, shared: bool) -> io::Result<Socket> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    socket.set_reuse_address(true)?; // old connections in TIME_WAIT are no hindrance
    socket.set_reuse_port(shared)?;
    if address.is_ipv6() {
        socket.set_only_v6(true)?; // the same on every system: 0.0.0.0 is an address of its own
    }
    socket.bind(&address.into())?;
    Ok(socket)
}

/// One worker's socket on an address.
#[derive(Debug)]
pub(super) struct Share {
    address: Arc<Address>,
    socket: std::net::TcpListener,
}

impl Share {
    /// The address as the configuration has it.
    pub(super) fn configured_address(&self) -> SocketAddr {
        self.address.configured
    }

    /// Accepts connections until the task is aborted.
    pub(super) fn accept(self, worker: Rc<Worker>) -> io::Result<JoinHandle<()>> {
        let listener = TcpListener::from_std(self.socket)?;
        Ok(tokio::task::spawn_local(accept(listener, self.address, worker)))
    }
}

async fn accept(listener: TcpListener, address: Arc<Address>, worker: Rc<Worker>) {
    let mut backoff = Backoff::default();
    loop {
        let (tcp, peer) = match listener.accept().await {
            Ok(accepted) => accepted,
            Err(error) => {
                backoff.pause(&error, &address).await;
                continue;
            }
        };
        backoff = Backoff::default();
        // Over the limit, one connection waits here and the others in the kernel's queue.
        let Ok(permit) = Arc::clone(&address.permits).acquire_owned().await else { return };
        let open = worker.open.enter();
        let via = Via { listen: address.configured, timeout: address.handshake_timeout() };
        let connection = connection::serve(Rc::clone(&worker), via, tcp, peer);
        let address = Arc::clone(&address);
        tokio::task::spawn_local(async move {
            connection.await;
            address.take_back(permit);
            drop(open);
        });
    }
}

/// Pauses after failed `accept`s, longer each time: without descriptors they fail at once.
#[derive(Default)]
struct Backoff(Duration);

impl Backoff {
    async fn pause(&mut self, error: &io::Error, address: &Address) {
        // The client was gone before it was accepted: that is its business alone.
        if error.kind() == io::ErrorKind::ConnectionAborted {
            return;
        }
        self.0 = (self.0 * 2).clamp(Duration::from_millis(10), Duration::from_secs(1));
        warn!(address = %address.local, %error, pause = ?self.0, "accept failed");
        tokio::time::sleep(self.0).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(most: usize) -> Address {
        Address {
            configured: ([127, 0, 0, 1], 0).into(),
            local: ([127, 0, 0, 1], 0).into(),
            handshake_timeout: Mutex::default(),
            permits: Arc::new(Semaphore::new(most)),
            most: AtomicUsize::new(most),
            excess: AtomicUsize::new(0),
        }
    }

    #[test]
    fn a_limit_that_falls_below_what_is_open_and_rises_again_is_what_it_says() {
        let address = address(10);
        let connect = || Arc::clone(&address.permits).try_acquire_owned().ok();
        let mut open: Vec<_> = std::iter::from_fn(connect).collect();
        assert_eq!(open.len(), 10);
        address.set_most(4);
        while open.len() > 4 {
            address.take_back(open.pop().unwrap());
            assert!(connect().is_none(), "{} are open", open.len());
        }
        address.take_back(open.pop().unwrap());
        open.extend(connect());
        assert_eq!(open.len(), 4);
        address.set_most(2);
        address.set_most(7);
        open.extend(std::iter::from_fn(connect));
        assert_eq!(open.len(), 7);
        open.drain(..).for_each(|permit| address.take_back(permit));
        open.extend(std::iter::from_fn(connect));
        assert_eq!(open.len(), 7);
    }
}

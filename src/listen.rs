//! Listening sockets: one per worker and address, so that the kernel spreads connections.
//!
//! An inherited socket is shared by all workers, because its queue outlives the process. A Unix
//! socket is shared too, because a path names one socket. A reload adds and removes addresses
//! ([`Addresses`]). Nothing here reads a byte of a connection.

mod addresses;
mod bind;
mod check;
mod loads;
mod unix;

use std::future::poll_fn;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::pin::pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use socket2::SockRef;
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;
use tracing::{debug, warn};

pub use self::addresses::Addresses;
pub(crate) use self::addresses::ListenChange;
pub use self::bind::{BindError, bind};
pub use self::check::{foreign_addresses, unusable_addresses};
pub use self::loads::{AddressLoad, AddressLoads};
pub use self::unix::SocketFile;
pub(crate) use self::unix::{SocketOwner, UnixAccepted, UnixAcceptor, bind_unix};
use crate::config::{AuthorizerLimits, Config, LimitsConfig, ListenAddress};
use crate::keep_alive::detect_dead_peer;
use crate::permit::{Permit, ResizableSemaphore, UnprovenConnections};

/// Length of the queue of connections that are not accepted yet. The kernel caps it at
/// `net.core.somaxconn`.
const BACKLOG: i32 = 4096;

/// Maximum number of connections in the kernel's queue, and one that was taken from it. The queue
/// of an inherited socket may be longer if `net.core.somaxconn` is.
const MAX_QUEUED: usize = BACKLOG.unsigned_abs() as usize + 1;

/// Maximum time for the TLS handshake of an asker, 10 s.
const ASKER_HANDSHAKE: Duration = Duration::from_secs(10);
/// Minimum time without an acknowledgement from an asker after which its connection is aborted,
/// 5 s.
const MIN_UNACKNOWLEDGED: Duration = Duration::from_secs(5);

/// Time that an evicted connection has to return its permit before another one is evicted, 100 ms.
const EVICTION: Duration = Duration::from_millis(100);

/// A configured address, bound once per worker.
#[derive(Debug)]
pub struct Listener {
    address: Arc<Address>,
    sockets: Vec<BoundSocket>,
}

/// A bound socket of one worker.
#[derive(Debug)]
enum BoundSocket {
    Tcp { socket: std::net::TcpListener, configured: SocketAddr },
    Unix(std::os::unix::net::UnixListener),
}

/// The state that all sockets of one address share.
#[derive(Debug)]
struct Address {
    /// The address in the configuration, by which services are found.
    configured: ListenAddress,
    /// The bound address: its port is the real one if the configuration has port 0.
    local: ListenAddress,
    /// The file of a Unix socket that this process has bound. Removed with the last socket.
    file: Option<SocketFile>,
    timeouts: Mutex<Timeouts>,
    /// One permit for each open connection.
    permits: ResizableSemaphore,
    /// The connections that are evicted while no permit is free.
    unproven: Arc<UnprovenConnections>,
}

/// The limits of one address, from all services that share it.
#[derive(Debug, Clone, Copy)]
struct AddressLimits {
    /// Maximum number of open connections: the sum over the services.
    max_connections: usize,
    timeouts: Timeouts,
}

/// The longest timeouts of the services on one address. SNI chooses the service only after the
/// handshake has begun.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Timeouts {
    handshake: Duration,
    /// Maximum time without an acknowledgement from a client. The connection is aborted then.
    unacknowledged: Duration,
}

impl AddressLimits {
    fn new(config: &Config, address: &ListenAddress) -> Self {
        let mut authorizers = config.authorizers.iter();
        if let Some(authorizer) = authorizers.find(|it| it.listen == *address) {
            return Self::of_authorizer(&authorizer.limits);
        }
        let services = config.services.iter();
        let services = services.filter(|it| ListenAddress::Tcp(it.listen) == *address);
        let limits = services.map(|service| &service.limits);
        let connections = limits.clone().map(|limits| limits.max_connections);
        let handshake = limits.clone().map(|limits| limits.handshake_timeout);
        let unacknowledged = limits.map(LimitsConfig::unacknowledged_timeout);
        Self {
            max_connections: connections.fold(0, usize::saturating_add),
            timeouts: Timeouts {
                handshake: handshake.max().unwrap_or_default(),
                unacknowledged: unacknowledged.max().unwrap_or_default(),
            },
        }
    }
}

impl AddressLimits {
    /// The limits of an authorizer, which has its address for itself.
    fn of_authorizer(limits: &AuthorizerLimits) -> Self {
        let unacknowledged = limits.idle_timeout.max(MIN_UNACKNOWLEDGED);
        // One asker may have `max_connections`, and must leave some to others.
        let of_others = (limits.max_connections / 4).max(1);
        Self {
            max_connections: limits.max_connections.saturating_add(of_others),
            timeouts: Timeouts { handshake: ASKER_HANDSHAKE, unacknowledged },
        }
    }
}

impl Address {
    fn new(
        configured: ListenAddress,
        local: ListenAddress,
        limits: AddressLimits,
        file: Option<SocketFile>,
    ) -> Self {
        Self {
            configured,
            local,
            file,
            timeouts: Mutex::new(limits.timeouts),
            permits: ResizableSemaphore::new(limits.max_connections),
            unproven: Arc::default(),
        }
    }

    fn set_limits(&self, limits: AddressLimits) {
        *self.timeouts.lock().unwrap_or_else(PoisonError::into_inner) = limits.timeouts;
        self.permits.set_limit(limits.max_connections);
    }

    fn set_owner(&self, owner: &SocketOwner) {
        if let Some(Err(error)) = self.file.as_ref().map(|file| file.set_owner(owner)) {
            let address = &self.local;
            warn!(%address, %error, "mode and group of the socket cannot be changed");
        }
    }

    /// Waits for a permit for a connection from `peer`, and evicts others if none is free. Returns
    /// the number of evicted ones as well; `None` if the address is closed. Behind a trusted proxy,
    /// `peer` is the proxy, because its PROXY header is read later.
    async fn permit(&self, peer: IpAddr) -> Option<(Permit, usize)> {
        let mut acquire = pin!(self.permits.acquire());
        let mut evicted = 0;
        loop {
            let mut may_evict = true;
            let permit = poll_fn(|context| {
                let permit = acquire.as_mut().poll(context);
                // Above a lowered limit, an eviction returns no permit.
                let may_evict = std::mem::take(&mut may_evict) && !self.permits.is_over_limit();
                if permit.is_pending() && may_evict {
                    evicted += usize::from(self.unproven.evict(peer));
                }
                permit
            });
            if let Ok(permit) = timeout(EVICTION, permit).await {
                return Some((permit.ok()?, evicted));
            }
        }
    }

    fn timeouts(&self) -> Timeouts {
        *self.timeouts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Listener {
    /// The bound address, with its real port.
    #[must_use]
    pub fn local_address(&self) -> &ListenAddress {
        &self.address.local
    }

    /// The address in the configuration.
    #[must_use]
    pub fn configured_address(&self) -> &ListenAddress {
        &self.address.configured
    }

    /// The sockets, one per worker, in the order of the workers.
    pub(crate) fn into_sockets(self) -> impl Iterator<Item = ListenSocket> {
        let address = self.address;
        self.sockets
            .into_iter()
            .map(move |socket| ListenSocket { address: Arc::clone(&address), socket })
    }
}

/// One worker's socket of an address.
#[derive(Debug)]
pub(crate) struct ListenSocket {
    address: Arc<Address>,
    socket: BoundSocket,
}

impl ListenSocket {
    /// The address in the configuration.
    pub(crate) fn configured_address(&self) -> &ListenAddress {
        &self.address.configured
    }

    /// Registers the socket with the runtime of this thread, and sets the options that accepted
    /// connections inherit. Six system calls for each connection would cost 2 to 5 % of a
    /// handshake.
    ///
    /// # Errors
    /// Returns an error if the operating system refuses the registration.
    pub(crate) fn into_acceptor(self) -> io::Result<AnyAcceptor> {
        let Self { address, socket } = self;
        match socket {
            BoundSocket::Tcp { socket, configured } => {
                Acceptor::new(address, configured, socket).map(AnyAcceptor::Tcp)
            }
            BoundSocket::Unix(socket) => UnixAcceptor::new(address, socket).map(AnyAcceptor::Unix),
        }
    }
}

/// Accepts the connections of one socket.
#[derive(Debug)]
pub(crate) enum AnyAcceptor {
    Tcp(Acceptor),
    Unix(UnixAcceptor),
}

/// Accepts the connections of one TCP socket.
#[derive(Debug)]
pub(crate) struct Acceptor {
    listener: TcpListener,
    /// The address in the configuration.
    configured: SocketAddr,
    address: Arc<Address>,
    /// `TCP_USER_TIMEOUT` of the socket, which accepted connections inherit. `None` if the socket
    /// rejects an option, such as an inherited MPTCP socket; each connection gets them then.
    inherited: Option<Duration>,
    /// Number of further connections that may have been in the kernel's queue when `inherited`
    /// changed. Each of them gets its options after `accept`.
    uninherited: usize,
    backoff: Backoff,
}

/// A connection that was accepted.
#[derive(Debug)]
pub(crate) struct Accepted {
    pub(crate) tcp: TcpStream,
    pub(crate) peer: SocketAddr,
    /// The address in the configuration that the connection came in on.
    pub(crate) listen: SocketAddr,
    pub(crate) handshake_timeout: Duration,
    /// The longest [`LimitsConfig::unacknowledged_timeout`] of the services on the address, which
    /// the connection has.
    pub(crate) unacknowledged: Duration,
    /// Held while the connection is open.
    pub(crate) permit: Permit,
    /// The connections of the address without a proof of a key.
    pub(crate) unproven: Arc<UnprovenConnections>,
    /// Number of connections that were evicted for this one.
    pub(crate) evicted: usize,
}

impl Acceptor {
    fn new(
        address: Arc<Address>,
        configured: SocketAddr,
        socket: std::net::TcpListener,
    ) -> io::Result<Self> {
        let mut acceptor = Self {
            listener: TcpListener::from_std(socket)?,
            configured,
            inherited: None,
            uninherited: 0,
            address,
            backoff: Backoff::default(),
        };
        acceptor.set_inherited(acceptor.address.timeouts().unacknowledged);
        Ok(acceptor)
    }

    /// Waits for the next connection and for its permit. A failed `accept` is retried after a
    /// pause.
    ///
    /// At the limit, a connection without a proof of a key is evicted for it. If none can be evicted,
    /// one connection waits here and the others in the kernel's queue. `None` means that the address
    /// is closed.
    pub(crate) async fn accept(&mut self) -> Option<Accepted> {
        let (tcp, peer) = loop {
            match self.listener.accept().await {
                Ok(accepted) => break accepted,
                Err(error) => self.backoff.pause(&error, &self.address).await,
            }
        };
        self.backoff = Backoff::default();
        let (permit, evicted) = self.address.permit(peer.ip()).await?;
        let unproven = Arc::clone(&self.address.unproven);
        let listen = self.configured;
        let timeouts = self.address.timeouts();
        let unacknowledged = timeouts.unacknowledged;
        if self.inherited.is_some_and(|inherited| inherited != unacknowledged) {
            self.set_inherited(unacknowledged);
            self.uninherited = MAX_QUEUED;
        }
        if self.inherited.is_none() || self.uninherited > 0 {
            self.uninherited = self.uninherited.saturating_sub(1);
            if let Err(error) = set_options(&tcp, unacknowledged) {
                debug!(%error, "keep-alive not set"); // MPTCP, or the client has closed
            }
        }
        let handshake_timeout = timeouts.handshake;
        Some(Accepted {
            tcp,
            peer,
            listen,
            handshake_timeout,
            unacknowledged,
            permit,
            unproven,
            evicted,
        })
    }

    /// Sets the options that later connections inherit.
    fn set_inherited(&mut self, unacknowledged: Duration) {
        let result = set_options(&self.listener, unacknowledged);
        self.inherited = result.is_ok().then_some(unacknowledged);
        if let Err(error) = result {
            warn!(address = %self.address.local, %error, "keep-alive not set");
        }
    }
}

fn set_options<'a>(socket: impl Into<SockRef<'a>>, unacknowledged: Duration) -> io::Result<()> {
    let socket = socket.into();
    socket.set_tcp_nodelay(true)?;
    detect_dead_peer(socket, Some(unacknowledged))
}

/// The pause after a failed `accept`, doubled each time, because without file descriptors `accept`
/// fails at once.
#[derive(Debug, Default)]
struct Backoff(Duration);

impl Backoff {
    async fn pause(&mut self, error: &io::Error, address: &Address) {
        // The client closed the connection before it was accepted: no reason to pause.
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
    use socket2::{Domain, Protocol, Socket, Type};

    use super::*;

    fn limits(unacknowledged: Duration) -> AddressLimits {
        let timeouts = Timeouts { handshake: Duration::from_secs(1), unacknowledged };
        AddressLimits { max_connections: 10, timeouts }
    }

    fn acceptor(socket: std::net::TcpListener, unacknowledged: Duration) -> Acceptor {
        socket.set_nonblocking(true).unwrap();
        let local = socket.local_addr().unwrap();
        let at = ListenAddress::Tcp(local);
        let address = Arc::new(Address::new(at.clone(), at, limits(unacknowledged), None));
        Acceptor::new(address, local, socket).unwrap()
    }

    async fn client(acceptor: &Acceptor) -> TcpStream {
        TcpStream::connect(acceptor.configured).await.unwrap()
    }

    #[tokio::test]
    async fn connections_have_the_longest_timeout_after_a_reload_also_those_in_the_queue() {
        let (before, after) = (Duration::from_secs(60), Duration::from_secs(90));
        let socket = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let mut acceptor = acceptor(socket, before);
        let _first = client(&acceptor).await;
        let mut accepted = vec![(acceptor.accept().await.unwrap(), before)];
        // These connections are in the queue before the acceptor follows.
        let _queued = [client(&acceptor).await, client(&acceptor).await];
        acceptor.address.set_limits(limits(after));
        accepted.push((acceptor.accept().await.unwrap(), after));
        accepted.push((acceptor.accept().await.unwrap(), after));
        // Later connections inherit the options.
        acceptor.uninherited = 0;
        let _last = client(&acceptor).await;
        accepted.push((acceptor.accept().await.unwrap(), after));
        for (accepted, timeout) in accepted {
            let socket = SockRef::from(&accepted.tcp);
            assert!(socket.tcp_nodelay().unwrap() && socket.keepalive().unwrap());
            assert_eq!(socket.tcp_user_timeout().unwrap(), Some(timeout));
            assert_eq!(accepted.unacknowledged, timeout);
        }
    }

    #[tokio::test]
    async fn connections_get_their_options_if_the_listening_socket_rejects_one() {
        // Linux has no TCP_USER_TIMEOUT for MPTCP sockets; a client without MPTCP gets plain TCP.
        let socket = Socket::new(Domain::IPV4, Type::STREAM, Some(Protocol::MPTCP));
        let Ok(socket) = socket else { return }; // a kernel without MPTCP
        socket.bind(&SocketAddr::from(([127, 0, 0, 1], 0)).into()).unwrap();
        socket.listen(10).unwrap();
        let timeout = Duration::from_secs(60);
        let mut acceptor = acceptor(socket.into(), timeout);
        for _ in 0..2 {
            let _client = client(&acceptor).await;
            let accepted = acceptor.accept().await.unwrap();
            let socket = SockRef::from(&accepted.tcp);
            assert!(socket.tcp_nodelay().unwrap() && socket.keepalive().unwrap());
            assert_eq!(socket.tcp_user_timeout().unwrap(), Some(timeout));
        }
    }
}

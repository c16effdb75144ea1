//! Listening sockets: one per worker and address, so that the kernel spreads connections.
//!
//! An inherited socket is shared by all workers, because its queue outlives the process. A Unix
//! socket is shared too, because a path names one socket. A reload adds and removes addresses
//! ([`Addresses`]). Nothing here reads a byte of a connection.

mod address;
mod addresses;
mod bind;
mod check;
mod loads;
mod unix;
mod unix_acceptor;

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use keygate_wire::keep_alive::detect_dead_peer;
use keygate_wire::permit::{Permit, UnprovenConnections};
use socket2::SockRef;
use tokio::net::{TcpListener, TcpStream};
use tracing::{debug, warn};

use self::address::{Address, AddressLimits};
pub use self::addresses::Addresses;
pub(crate) use self::addresses::ListenChange;
pub use self::bind::{BindError, bind};
pub use self::check::{foreign_addresses, unusable_addresses};
pub use self::loads::{AddressLoad, AddressLoads};
pub use self::unix::SocketFile;
pub(crate) use self::unix::{SocketOwner, bind_unix};
pub(crate) use self::unix_acceptor::{UnixAccepted, UnixAcceptor};
use crate::config::ListenAddress;

/// Length of the queue of connections that are not accepted yet. The kernel caps it at
/// `net.core.somaxconn`.
const BACKLOG: i32 = 4096;

/// Maximum number of connections in the kernel's queue, and one that was taken from it. The queue
/// of an inherited socket may be longer if `net.core.somaxconn` is.
const MAX_QUEUED: usize = BACKLOG.unsigned_abs() as usize + 1;

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
    /// The longest `unacknowledged_timeout` of the services on the address, which
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

    use super::address::Timeouts;
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

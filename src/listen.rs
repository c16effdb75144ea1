//! Listening sockets: one per worker and address, so that the kernel spreads connections.
//!
//! An inherited socket is shared by all workers, because its queue outlives the process. A reload
//! adds and removes addresses ([`Addresses`]). Nothing here knows what is served.

mod addresses;
mod bind;

use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use socket2::SockRef;
use tokio::net::{TcpListener, TcpStream};
use tracing::warn;

pub use self::addresses::Addresses;
pub(crate) use self::addresses::ListenChange;
pub use self::bind::{BindError, bind};
use crate::config::{Config, LimitsConfig};
use crate::keep_alive::detect_dead_peer;
use crate::permit::{Permit, ResizableSemaphore};

/// A configured address, bound once per worker.
#[derive(Debug)]
pub struct Listener {
    address: Arc<Address>,
    sockets: Vec<std::net::TcpListener>,
}

/// The state that all sockets of one address share.
#[derive(Debug)]
struct Address {
    /// The address in the configuration, by which services are found.
    configured: SocketAddr,
    /// The bound address: its port is the real one if the configuration has port 0.
    local: SocketAddr,
    timeouts: Mutex<Timeouts>,
    /// One permit for each open connection.
    permits: ResizableSemaphore,
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
    fn new(config: &Config, address: SocketAddr) -> Self {
        let services = config.services.iter().filter(|service| service.listen == address);
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

impl Address {
    fn new(configured: SocketAddr, local: SocketAddr, limits: AddressLimits) -> Self {
        Self {
            configured,
            local,
            timeouts: Mutex::new(limits.timeouts),
            permits: ResizableSemaphore::new(limits.max_connections),
        }
    }

    fn set_limits(&self, limits: AddressLimits) {
        *self.timeouts.lock().unwrap_or_else(PoisonError::into_inner) = limits.timeouts;
        self.permits.set_limit(limits.max_connections);
    }

    fn timeouts(&self) -> Timeouts {
        *self.timeouts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Listener {
    /// The bound address, with its real port.
    #[must_use]
    pub fn local_address(&self) -> SocketAddr {
        self.address.local
    }

    /// The address in the configuration.
    #[must_use]
    pub fn configured_address(&self) -> SocketAddr {
        self.address.configured
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
    socket: std::net::TcpListener,
}

impl ListenSocket {
    /// The address in the configuration.
    pub(crate) fn configured_address(&self) -> SocketAddr {
        self.address.configured
    }

    /// Registers the socket with the runtime of this thread, and sets the options that accepted
    /// connections inherit. Six system calls for each connection would cost 2 to 5 % of a
    /// handshake.
    ///
    /// # Errors
    /// Returns an error if the operating system refuses the registration or an option.
    pub(crate) fn into_acceptor(self) -> io::Result<Acceptor> {
        let unacknowledged = self.address.timeouts().unacknowledged;
        SockRef::from(&self.socket).set_tcp_nodelay(true)?;
        detect_dead_peer(&self.socket, Some(unacknowledged))?;
        let listener = TcpListener::from_std(self.socket)?;
        let (address, backoff) = (self.address, Backoff::default());
        Ok(Acceptor { listener, address, unacknowledged, backoff })
    }
}

/// Accepts the connections of one socket.
#[derive(Debug)]
pub(crate) struct Acceptor {
    listener: TcpListener,
    address: Arc<Address>,
    /// `TCP_USER_TIMEOUT` of the socket, which accepted connections inherit.
    unacknowledged: Duration,
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
}

impl Acceptor {
    /// Waits for the next connection and for its permit. A failed `accept` is retried after a pause.
    ///
    /// At the limit, one connection waits here and the others in the kernel's queue. `None` means
    /// that the address is closed.
    pub(crate) async fn accept(&mut self) -> Option<Accepted> {
        let (tcp, peer) = loop {
            match self.listener.accept().await {
                Ok(accepted) => break accepted,
                Err(error) => self.backoff.pause(&error, &self.address).await,
            }
        };
        self.backoff = Backoff::default();
        let permit = self.address.permits.acquire().await.ok()?;
        let listen = self.address.configured;
        let timeouts = self.address.timeouts();
        let unacknowledged = self.unacknowledged;
        if timeouts.unacknowledged != unacknowledged {
            self.set_unacknowledged(timeouts.unacknowledged);
        }
        let handshake_timeout = timeouts.handshake;
        Some(Accepted { tcp, peer, listen, handshake_timeout, unacknowledged, permit })
    }

    /// Follows a reload, for the connections that come later.
    fn set_unacknowledged(&mut self, timeout: Duration) {
        match detect_dead_peer(&self.listener, Some(timeout)) {
            Ok(()) => self.unacknowledged = timeout,
            Err(error) => warn!(address = %self.address.local, %error, "keep-alive not set"),
        }
    }
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
    use super::*;

    async fn accepted(acceptor: &mut Acceptor) -> (TcpStream, Accepted) {
        let client = TcpStream::connect(acceptor.address.local).await.unwrap();
        (client, acceptor.accept().await.unwrap())
    }

    #[tokio::test]
    async fn connections_inherit_their_options_and_the_longest_timeout_after_a_reload() {
        let socket = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        socket.set_nonblocking(true).unwrap();
        let local = socket.local_addr().unwrap();
        let limits = |unacknowledged| AddressLimits {
            max_connections: 10,
            timeouts: Timeouts { handshake: Duration::from_secs(1), unacknowledged },
        };
        let (before, after) = (Duration::from_secs(60), Duration::from_secs(90));
        let address = Arc::new(Address::new(local, local, limits(before)));
        let socket = ListenSocket { address: Arc::clone(&address), socket };
        let mut acceptor = socket.into_acceptor().unwrap();
        let (_client, first) = accepted(&mut acceptor).await;
        address.set_limits(limits(after));
        // This connection is in the queue before the acceptor follows.
        let (_client, second) = accepted(&mut acceptor).await;
        let (_client, third) = accepted(&mut acceptor).await;
        for (accepted, timeout) in [(first, before), (second, before), (third, after)] {
            let socket = SockRef::from(&accepted.tcp);
            assert!(socket.tcp_nodelay().unwrap() && socket.keepalive().unwrap());
            assert_eq!(socket.tcp_user_timeout().unwrap(), Some(timeout));
            assert_eq!(accepted.unacknowledged, timeout);
        }
    }
}

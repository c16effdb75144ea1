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

use tokio::net::{TcpListener, TcpStream};
use tracing::warn;

pub use self::addresses::Addresses;
pub(crate) use self::addresses::ListenChange;
pub use self::bind::{BindError, bind};
use crate::config::Config;
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
    /// The longest handshake timeout of the services on this address. SNI chooses the service only
    /// after the handshake has begun.
    handshake_timeout: Mutex<Duration>,
    /// One permit for each open connection.
    permits: ResizableSemaphore,
}

/// The limits of one address, from all services that share it.
#[derive(Debug, Clone, Copy)]
struct AddressLimits {
    /// Maximum number of open connections: the sum over the services.
    max_connections: usize,
    /// The longest handshake timeout of the services.
    handshake_timeout: Duration,
}

impl AddressLimits {
    fn new(config: &Config, address: SocketAddr) -> Self {
        let services = config.services.iter().filter(|service| service.listen == address);
        let limits = services.map(|service| &service.limits);
        let connections = limits.clone().map(|limits| limits.max_connections);
        let timeouts = limits.map(|limits| limits.handshake_timeout);
        Self {
            max_connections: connections.fold(0, usize::saturating_add),
            handshake_timeout: timeouts.max().unwrap_or_default(),
        }
    }
}

impl Address {
    fn new(configured: SocketAddr, local: SocketAddr, limits: AddressLimits) -> Self {
        Self {
            configured,
            local,
            handshake_timeout: Mutex::new(limits.handshake_timeout),
            permits: ResizableSemaphore::new(limits.max_connections),
        }
    }

    fn set_limits(&self, limits: AddressLimits) {
        *self.handshake_timeout.lock().unwrap_or_else(PoisonError::into_inner) =
            limits.handshake_timeout;
        self.permits.set_limit(limits.max_connections);
    }

    fn handshake_timeout(&self) -> Duration {
        *self.handshake_timeout.lock().unwrap_or_else(PoisonError::into_inner)
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

    /// Registers the socket with the runtime of this thread.
    ///
    /// # Errors
    /// Returns an error if the operating system refuses the registration.
    pub(crate) fn into_acceptor(self) -> io::Result<Acceptor> {
        let listener = TcpListener::from_std(self.socket)?;
        Ok(Acceptor { listener, address: self.address, backoff: Backoff::default() })
    }
}

/// Accepts the connections of one socket.
#[derive(Debug)]
pub(crate) struct Acceptor {
    listener: TcpListener,
    address: Arc<Address>,
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
        let handshake_timeout = self.address.handshake_timeout();
        Some(Accepted { tcp, peer, listen, handshake_timeout, permit })
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

//! Binding: every address once per worker, unless its socket was inherited.

use std::collections::BTreeSet;
use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;

use keygate_core::regular_file::cause;
use socket2::{Domain, Protocol, Socket, Type};

use super::unix::{SocketOwner, bind_unix};
use super::{Address, AddressLimits, BACKLOG, BoundSocket, Listener};
use crate::config::{AdminConfig, Config, KeyPlace, ListenAddress, PlacedProblem};
use crate::process::inherited_sockets::InheritedSockets;

/// An address that cannot be listened on.
#[derive(Debug, thiserror::Error)]
#[error("cannot listen on {}{address}: {}", self.role(), explain(address, source))]
pub struct BindError {
    address: ListenAddress,
    place: Option<KeyPlace>,
    source: io::Error,
}

impl BindError {
    /// The error of an address in `config`.
    pub(super) fn new(config: &Config, address: &ListenAddress, source: io::Error) -> Self {
        Self { address: address.clone(), place: place_of(config, address), source }
    }

    /// The error of the admin address, or of the address for readers, which the key `place` has.
    pub(crate) fn from_admin(address: &ListenAddress, place: KeyPlace, source: io::Error) -> Self {
        Self { address: address.clone(), place: Some(place), source }
    }

    /// The words before the address.
    fn role(&self) -> &'static str {
        if self.place == Some(KeyPlace::new(AdminConfig::LISTEN)) {
            "the admin address "
        } else {
            ""
        }
    }

    /// The error with the key that has the address.
    #[must_use]
    pub fn placed(&self) -> PlacedProblem {
        PlacedProblem { place: self.place.clone(), problem: self.to_string() }
    }
}

/// The key of the first service or authorizer with this address, or the key of the admin address.
fn place_of(config: &Config, address: &ListenAddress) -> Option<KeyPlace> {
    let listens = |listen| ListenAddress::Tcp(listen) == *address;
    if let Some(service) = config.services.iter().find(|it| listens(it.listen)) {
        return Some(service.listen_place());
    }
    match config.authorizers.iter().find(|it| it.listen == *address) {
        Some(authorizer) => Some(authorizer.listen_place()),
        None => config.admin.addresses().find(|(it, _)| *it == address).map(|(_, place)| place),
    }
}

/// Why an address cannot be bound, and the remedy.
fn explain(address: &ListenAddress, error: &io::Error) -> String {
    let kind = error.kind();
    let remedy = if error.get_ref().is_some() {
        "" // an error with words of its own has its remedy
    } else if kind == io::ErrorKind::AddrInUse {
        "; stop the process that listens there, or give another address"
    } else if kind == io::ErrorKind::AddrNotAvailable {
        "; give an address of this machine"
    } else if kind == io::ErrorKind::PermissionDenied {
        match address {
            ListenAddress::Tcp(_) => "; give a port above 1023, or CAP_NET_BIND_SERVICE",
            ListenAddress::Unix(_) => "; correct the owner or the mode of the directory",
        }
    } else {
        ""
    };
    format!("{}{remedy}", cause(error))
}

/// Binds every address of the configuration, once per worker; inherited sockets are bound already.
///
/// # Errors
/// Returns an error if an address is in use, does not exist here, or needs a privilege.
pub fn bind(config: &Config, inherited: &InheritedSockets) -> Result<Vec<Listener>, BindError> {
    let workers = config.workers.get();
    let addresses = configured_addresses(config);
    addresses.iter().map(|address| bind_listener(config, workers, address, inherited)).collect()
}

/// The addresses of all services and authorizers.
pub(super) fn configured_addresses(config: &Config) -> BTreeSet<ListenAddress> {
    let services = config.services.iter().map(|service| ListenAddress::Tcp(service.listen));
    services.chain(config.authorizers.iter().map(|it| it.listen.clone())).collect()
}

/// Binds one address for `workers` workers.
pub(super) fn bind_listener(
    config: &Config,
    workers: usize,
    configured: &ListenAddress,
    inherited: &InheritedSockets,
) -> Result<Listener, BindError> {
    let limits = AddressLimits::new(config, configured);
    let bound = match configured {
        ListenAddress::Tcp(address) => bind_tcp(workers, *address, inherited, limits),
        ListenAddress::Unix(path) => {
            let owner = socket_owner(config, configured);
            bind_shared(workers, configured, path, &owner, inherited, limits)
        }
    };
    bound.map_err(|source| BindError::new(config, configured, source))
}

/// Group and mode of the Unix socket on `address`.
fn socket_owner(config: &Config, address: &ListenAddress) -> SocketOwner {
    let authorizer = config.authorizers.iter().find(|it| it.listen == *address);
    authorizer.map(SocketOwner::new).unwrap_or_default()
}

/// [`socket_owner`] with the id of the group.
pub(super) fn resolved_owner(
    config: &Config,
    address: &ListenAddress,
) -> Result<SocketOwner, BindError> {
    let owner = socket_owner(config, address).resolved();
    owner.map_err(|source| BindError::new(config, address, source))
}

fn bind_tcp(
    workers: usize,
    configured: SocketAddr,
    inherited: &InheritedSockets,
    limits: AddressLimits,
) -> io::Result<Listener> {
    let (local, sockets) = match inherited.tcp(configured, workers)? {
        Some(sockets) => (configured, sockets),
        None => bind_for_each(workers, configured)?,
    };
    let [at, local] = [configured, local].map(ListenAddress::Tcp);
    let sockets = sockets.into_iter().map(|socket| BoundSocket::Tcp { socket, configured });
    let address = Arc::new(Address::new(at, local, limits, None));
    Ok(Listener { address, sockets: sockets.collect() })
}

/// Binds a Unix socket that all workers share, because a path names one socket.
fn bind_shared(
    workers: usize,
    configured: &ListenAddress,
    path: &Path,
    owner: &SocketOwner,
    inherited: &InheritedSockets,
    limits: AddressLimits,
) -> io::Result<Listener> {
    let (socket, file) = bind_unix(path, owner, inherited)?;
    let copies = (1..workers).map(|_| socket.try_clone()).collect::<io::Result<Vec<_>>>()?;
    let sockets = std::iter::once(socket).chain(copies).map(BoundSocket::Unix).collect();
    let address = Address::new(configured.clone(), configured.clone(), limits, file);
    Ok(Listener { address: Arc::new(address), sockets })
}

fn bind_for_each(
    workers: usize,
    address: SocketAddr,
) -> io::Result<(SocketAddr, Vec<std::net::TcpListener>)> {
    // With SO_REUSEPORT a second process would silently get half of the connections. A socket
    // without it fails if another process listens on the address.
    drop(bind_socket(address, ReusePort::Off)?);
    let first = listen(address)?;
    let local = first.local_addr()?;
    let others = (1..workers).map(|_| listen(local));
    let sockets = std::iter::once(Ok(first)).chain(others).collect::<io::Result<_>>()?;
    Ok((local, sockets))
}

fn listen(address: SocketAddr) -> io::Result<std::net::TcpListener> {
    let socket = bind_socket(address, ReusePort::On)?;
    socket.listen(BACKLOG)?;
    socket.set_nonblocking(true)?;
    Ok(socket.into())
}

/// Whether several sockets of this process may be bound to one address (`SO_REUSEPORT`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ReusePort {
    Off,
    On,
}

fn bind_socket(address: SocketAddr, reuse_port: ReusePort) -> io::Result<Socket> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    socket.set_reuse_address(true)?; // old connections in TIME_WAIT do not block the address
    socket.set_reuse_port(reuse_port == ReusePort::On)?;
    if address.is_ipv6() {
        socket.set_only_v6(true)?; // independent of net.ipv6.bindv6only
    }
    socket.bind(&address.into())?;
    Ok(socket)
}

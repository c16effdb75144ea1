//! Binding: every address once per worker, unless its socket was inherited.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use socket2::{Domain, Protocol, Socket, Type};

use super::{Address, AddressLimits, Listener};
use crate::config::Config;
use crate::process::inherited_sockets::InheritedSockets;

/// Length of the queue of connections that are not accepted yet. The kernel caps it at
/// `net.core.somaxconn`.
pub(super) const BACKLOG: i32 = 4096;

/// An address that cannot be listened on.
#[derive(Debug, thiserror::Error)]
#[error("cannot listen on {address}: {source}")]
pub struct BindError {
    address: SocketAddr,
    source: io::Error,
}

/// Binds every address of the configuration, once per worker; inherited sockets are bound already.
///
/// # Errors
/// Returns an error if an address is in use, does not exist here, or needs a privilege.
pub fn bind(config: &Config, inherited: &InheritedSockets) -> Result<Vec<Listener>, BindError> {
    let mut addresses: Vec<SocketAddr> =
        config.services.iter().map(|service| service.listen).collect();
    addresses.sort_unstable();
    addresses.dedup();
    let workers = config.workers.get();
    addresses
        .into_iter()
        .map(|address| bind_listener(config, workers, address, inherited))
        .collect()
}

/// Binds one address for `workers` workers.
pub(super) fn bind_listener(
    config: &Config,
    workers: usize,
    configured: SocketAddr,
    inherited: &InheritedSockets,
) -> Result<Listener, BindError> {
    let bound = match inherited.tcp(configured, workers) {
        Ok(Some(sockets)) => Ok((configured, sockets)),
        Ok(None) => bind_for_each(workers, configured),
        Err(error) => Err(error),
    };
    let (local, sockets) = bound.map_err(|source| BindError { address: configured, source })?;
    let limits = AddressLimits::new(config, configured);
    Ok(Listener { address: Arc::new(Address::new(configured, local, limits)), sockets })
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

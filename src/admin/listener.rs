//! The listening socket of the admin server: TCP or a Unix socket, bound or inherited.

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;

use crate::config::AdminAddress;
use crate::process::inherited_sockets::InheritedSockets;

/// A bound admin address.
#[derive(Debug)]
pub enum AdminListener {
    /// TCP.
    Tcp(TcpListener),
    /// A Unix socket.
    Unix(UnixListener),
}

/// Error while the admin address is bound.
#[derive(Debug, thiserror::Error)]
#[error("cannot listen on the admin address {address}: {source}")]
pub struct AdminBindError {
    address: String,
    source: io::Error,
}

impl AdminListener {
    /// Takes the socket from the inherited ones, or binds the address. Replaces a stale socket
    /// file.
    ///
    /// # Errors
    /// Returns an error if the address is in use, is not local or needs a privilege.
    pub fn bind(
        address: &AdminAddress,
        inherited: &InheritedSockets,
    ) -> Result<Self, AdminBindError> {
        let bound = match address {
            AdminAddress::Tcp(address) => bind_tcp(*address, inherited).map(Self::Tcp),
            AdminAddress::Unix(path) => bind_unix(path, inherited).map(Self::Unix),
        };
        bound.map_err(|source| AdminBindError { address: address.to_string(), source })
    }

    /// Whether browsers reach this address on loopback. Browsers cannot reach a Unix socket.
    pub(super) fn is_loopback_tcp(&self) -> bool {
        match self {
            Self::Tcp(listener) => listener.local_addr().is_ok_and(|at| at.ip().is_loopback()),
            Self::Unix(_) => false,
        }
    }

    /// The address, with the actual port.
    #[must_use]
    pub fn local_address(&self) -> String {
        match self {
            Self::Tcp(listener) => {
                listener.local_addr().map_or_else(|error| error.to_string(), |at| at.to_string())
            }
            Self::Unix(listener) => listener
                .local_addr()
                .ok()
                .and_then(|at| at.as_pathname().map(|path| format!("unix:{}", path.display())))
                .unwrap_or_else(|| "unix:".to_owned()),
        }
    }
}

fn bind_tcp(address: SocketAddr, inherited: &InheritedSockets) -> io::Result<TcpListener> {
    if let Some(listener) = inherited.tcp(address, 1)?.into_iter().flatten().next() {
        return Ok(listener);
    }
    let listener = TcpListener::bind(address)?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}

fn bind_unix(path: &Path, inherited: &InheritedSockets) -> io::Result<UnixListener> {
    if let Some(listener) = inherited.unix(path)? {
        return Ok(listener);
    }
    if path.exists() && is_stale(path) {
        std::fs::remove_file(path)?;
    }
    let listener = UnixListener::bind(path)?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}

/// Whether no process listens on the socket file at `path`. A killed process leaves such a file.
fn is_stale(path: &Path) -> bool {
    UnixStream::connect(path).is_err_and(|error| error.kind() == io::ErrorKind::ConnectionRefused)
}

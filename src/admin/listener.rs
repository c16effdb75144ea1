//! The listening socket of the admin server: TCP or a Unix socket, bound or inherited.

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::unix::net::UnixListener;

use crate::config::ListenAddress;
use crate::listen::{SocketFile, SocketOwner, bind_unix};
use crate::process::inherited_sockets::InheritedSockets;

/// A bound admin address.
#[derive(Debug)]
pub(super) enum AdminListener {
    /// TCP.
    Tcp(TcpListener),
    /// A Unix socket, and its file unless it was inherited.
    Unix(UnixListener, Option<SocketFile>),
}

impl AdminListener {
    /// Takes the socket from the inherited ones, or binds the address. Replaces a stale socket
    /// file.
    ///
    /// # Errors
    /// Returns an error if the address is in use, is not local or needs a privilege.
    pub(super) fn bind(
        address: &ListenAddress,
        owner: &SocketOwner,
        inherited: &InheritedSockets,
    ) -> io::Result<Self> {
        match address {
            ListenAddress::Tcp(address) => bind_tcp(*address, inherited).map(Self::Tcp),
            ListenAddress::Unix(path) => {
                bind_unix(path, owner, inherited).map(|(socket, file)| Self::Unix(socket, file))
            }
        }
    }

    /// Whether browsers reach this address on loopback. Browsers cannot reach a Unix socket.
    pub(super) fn is_loopback_tcp(&self) -> bool {
        match self {
            Self::Tcp(listener) => listener.local_addr().is_ok_and(|at| at.ip().is_loopback()),
            Self::Unix(..) => false,
        }
    }

    /// The address, with the actual port.
    #[must_use]
    pub(super) fn local_address(&self) -> String {
        match self {
            Self::Tcp(listener) => {
                listener.local_addr().map_or_else(|error| error.to_string(), |at| at.to_string())
            }
            Self::Unix(listener, _) => listener
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

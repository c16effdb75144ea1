//! Listening sockets that the service manager made and hands over (systemd's socket activation).
//!
//! They outlive the process: who connects while it is restarted waits in the kernel's queue for the
//! next one. Protocol: sd_listen_fds(3).

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

use listenfd::ListenFd;

use crate::config::{AdminAddress, Config};

/// The sockets that were handed over, by the address that each listens on.
#[derive(Debug, Default)]
pub struct InheritedSockets {
    tcp: Vec<(SocketAddr, TcpListener)>,
    unix: Vec<(PathBuf, UnixListener)>,
}

/// Why sockets that were handed over cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum InheritedSocketsError {
    /// Neither a TCP nor a Unix socket that listens.
    #[error(
        "socket {position} of those that the service manager passed cannot be used: {source}; give it ListenStream= addresses only"
    )]
    Kind {
        /// Counted from 1.
        position: usize,
        /// Why.
        source: io::Error,
    },
    /// No address of the configuration.
    #[error(
        "the service manager passed a socket that listens on {address}, and the configuration listens on {configured}: make ListenStream= and the configuration name the same addresses"
    )]
    Unwanted {
        /// Where it listens.
        address: String,
        /// All addresses of the configuration.
        configured: String,
    },
}

impl InheritedSockets {
    /// Takes the sockets that were passed to this process, if any were.
    ///
    /// # Errors
    /// One of them is of another kind.
    pub fn take() -> Result<Self, InheritedSocketsError> {
        let mut passed = ListenFd::from_env();
        let mut inherited = Self::default();
        for index in 0..passed.len() {
            let unusable = |source| InheritedSocketsError::Kind { position: index + 1, source };
            if let Ok(Some(socket)) = passed.take_unix_listener(index) {
                let path = socket.local_addr().and_then(|address| {
                    let path = address.as_pathname().map(Path::to_owned);
                    path.ok_or_else(|| io::Error::other("it has no path"))
                });
                socket.set_nonblocking(true).map_err(unusable)?;
                inherited.unix.push((path.map_err(unusable)?, socket));
            } else if let Some(socket) = passed.take_tcp_listener(index).map_err(unusable)? {
                socket.set_nonblocking(true).map_err(unusable)?;
                inherited.tcp.push((socket.local_addr().map_err(unusable)?, socket));
            }
        }
        Ok(inherited)
    }

    /// Whether the configuration listens where these do.
    ///
    /// # Errors
    /// The first that it does not name.
    pub fn check(&self, config: &Config) -> Result<(), InheritedSocketsError> {
        let services = config.services.iter().map(|service| service.listen);
        let mut addresses: Vec<SocketAddr> = services.collect();
        addresses.sort_unstable();
        addresses.dedup();
        let is_wanted = |address: &SocketAddr| {
            addresses.contains(address) || config.admin == AdminAddress::Tcp(*address)
        };
        let tcp = self.tcp.iter().map(|(address, _)| address).find(|it| !is_wanted(it));
        let is_admin = |path: &Path| matches!(&config.admin, AdminAddress::Unix(it) if it == path);
        let unix = self.unix.iter().map(|(path, _)| path).find(|path| !is_admin(path));
        let unwanted = tcp.map(ToString::to_string);
        let unwanted = unwanted.or_else(|| Some(format!("unix:{}", unix?.display())));
        match unwanted {
            None => Ok(()),
            Some(address) => {
                let services = addresses.iter().map(ToString::to_string);
                let all: Vec<_> = services.chain([format!("{} (admin)", config.admin)]).collect();
                Err(InheritedSocketsError::Unwanted { address, configured: all.join(", ") })
            }
        }
    }

    /// The sockets on an address, so many of them; each a handle of its own. `None`: none was
    /// handed over for it.
    ///
    /// # Errors
    /// The process has no descriptors left.
    pub fn tcp(&self, address: SocketAddr, count: usize) -> io::Result<Option<Vec<TcpListener>>> {
        let here = self.tcp.iter().filter(|(found, _)| *found == address);
        let here: Vec<_> = here.map(|(_, socket)| socket).collect();
        if here.is_empty() {
            return Ok(None);
        }
        here.into_iter()
            .cycle()
            .take(count)
            .map(TcpListener::try_clone)
            .collect::<io::Result<_>>()
            .map(Some)
    }

    /// The Unix socket at a path.
    ///
    /// # Errors
    /// The process has no descriptors left.
    pub fn unix(&self, path: &Path) -> io::Result<Option<UnixListener>> {
        let found = self.unix.iter().find(|(found, _)| found == path);
        found.map(|(_, socket)| socket.try_clone()).transpose()
    }
}

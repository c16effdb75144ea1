//! Listening sockets from the service manager (systemd's socket activation).
//!
//! These sockets outlive the process. Clients that connect during a restart wait in the kernel's
//! queue for the next process. Protocol: sd_listen_fds(3).

use std::collections::BTreeSet;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

use listenfd::ListenFd;

use crate::config::{Config, ListenAddress};

/// The inherited sockets, each with the address that it listens on.
#[derive(Debug, Default)]
pub struct InheritedSockets {
    tcp: Vec<(SocketAddr, TcpListener)>,
    unix: Vec<(PathBuf, UnixListener)>,
}

/// Why the inherited sockets cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum InheritedSocketsError {
    /// A socket that is neither a TCP nor a Unix listener.
    #[error(
        "socket {position} from the service manager cannot be used: {source}; give it ListenStream= addresses only"
    )]
    Kind {
        /// Position of the socket, counted from 1.
        position: usize,
        /// Why the socket cannot be used.
        source: io::Error,
    },
    /// A socket that listens on an address outside the configuration.
    #[error(
        "the service manager passed a socket that listens on {address}, and the configuration listens on {configured}: make ListenStream= and the configuration name the same addresses"
    )]
    Unwanted {
        /// Address of the socket.
        address: String,
        /// All addresses in the configuration.
        configured: String,
    },
}

impl InheritedSockets {
    /// Takes the sockets that the service manager passed, if there are any.
    ///
    /// # Errors
    /// Returns an error if a socket is not a TCP or Unix listener.
    pub fn take() -> Result<Self, InheritedSocketsError> {
        let mut passed = ListenFd::from_env();
        let mut inherited = Self::default();
        for index in 0..passed.len() {
            let taken = inherited.take_one(&mut passed, index);
            let position = index + 1;
            taken.map_err(|source| InheritedSocketsError::Kind { position, source })?;
        }
        Ok(inherited)
    }

    fn take_one(&mut self, passed: &mut ListenFd, index: usize) -> io::Result<()> {
        if let Ok(Some(socket)) = passed.take_unix_listener(index) {
            socket.set_nonblocking(true)?;
            let address = socket.local_addr()?;
            let path = address.as_pathname().ok_or_else(|| io::Error::other("it has no path"))?;
            self.unix.push((path.to_owned(), socket));
        } else if let Some(socket) = passed.take_tcp_listener(index)? {
            socket.set_nonblocking(true)?;
            self.tcp.push((socket.local_addr()?, socket));
        }
        Ok(())
    }

    /// Checks that every inherited socket listens on an address of `config`.
    ///
    /// # Errors
    /// Returns the first socket that does not.
    pub fn check(&self, config: &Config) -> Result<(), InheritedSocketsError> {
        let services = config.services.iter().map(|service| ListenAddress::Tcp(service.listen));
        let authorizers = config.authorizers.iter().map(|it| it.listen.clone());
        let readers = config.admin.readers.iter().map(|it| it.listen.clone());
        let addresses: BTreeSet<ListenAddress> =
            services.chain(authorizers).chain(readers).collect();
        let tcp = self.tcp.iter().map(|(address, _)| ListenAddress::Tcp(*address));
        let unix = self.unix.iter().map(|(path, _)| ListenAddress::Unix(path.clone()));
        let mut all = tcp.chain(unix);
        match all.find(|address| !addresses.contains(address) && config.admin.listen != *address) {
            None => Ok(()),
            Some(address) => {
                let address = address.to_string();
                let services = addresses.iter().map(ToString::to_string);
                let all: Vec<_> =
                    services.chain([format!("{} (admin)", config.admin.listen)]).collect();
                let configured = all.join(", ");
                Err(InheritedSocketsError::Unwanted { address, configured })
            }
        }
    }

    /// Duplicates the TCP sockets on `address` until there are `count`. `None` if none was
    /// inherited.
    ///
    /// # Errors
    /// Returns an error if the process has no file descriptor left.
    pub fn tcp(&self, address: SocketAddr, count: usize) -> io::Result<Option<Vec<TcpListener>>> {
        let here = self.tcp.iter().filter(|(found, _)| *found == address);
        let here: Vec<_> = here.map(|(_, socket)| socket).collect();
        if here.is_empty() {
            return Ok(None);
        }
        let sockets = here.into_iter().cycle().take(count).map(TcpListener::try_clone);
        sockets.collect::<io::Result<_>>().map(Some)
    }

    /// Duplicates the Unix socket at `path`. `None` if none was inherited.
    ///
    /// # Errors
    /// Returns an error if the process has no file descriptor left.
    pub fn unix(&self, path: &Path) -> io::Result<Option<UnixListener>> {
        let found = self.unix.iter().find(|(found, _)| found == path);
        found.map(|(_, socket)| socket.try_clone()).transpose()
    }
}

//! Accepting on Unix sockets.

use std::io;
use std::os::unix::net::UnixListener as StdListener;
use std::sync::Arc;

use keygate_wire::permit::Permit;
use tokio::net::{UnixListener, UnixStream};

use super::{Address, Backoff};

/// Accepts the connections of one worker's copy of a Unix socket.
#[derive(Debug)]
pub(crate) struct UnixAcceptor {
    listener: UnixListener,
    address: Arc<Address>,
    backoff: Backoff,
}

/// A connection to a Unix socket that was accepted.
#[derive(Debug)]
pub(crate) struct UnixAccepted {
    pub(crate) stream: UnixStream,
    /// Held while the connection is open.
    pub(crate) permit: Permit,
}

impl UnixAcceptor {
    pub(super) fn new(address: Arc<Address>, socket: StdListener) -> io::Result<Self> {
        let listener = UnixListener::from_std(socket)?;
        Ok(Self { listener, address, backoff: Backoff::default() })
    }

    /// The address in the configuration.
    pub(crate) fn configured_address(&self) -> &crate::config::ListenAddress {
        &self.address.configured
    }

    /// Waits for the next connection and for its permit. Nothing is evicted, because the kernel
    /// proves the user of the peer.
    pub(crate) async fn accept(&mut self) -> Option<UnixAccepted> {
        let stream = loop {
            match self.listener.accept().await {
                Ok((stream, _)) => break stream,
                Err(error) => self.backoff.pause(&error, &self.address).await,
            }
        };
        self.backoff = Backoff::default();
        let permit = self.address.permits.acquire().await.ok()?;
        Some(UnixAccepted { stream, permit })
    }
}

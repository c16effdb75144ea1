//! The address for readers: a listener of its own, with TLS and client certificates on TCP.

use std::io;
use std::sync::Arc;

use arc_swap::ArcSwapOption;
use rustls::ServerConfig;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

use super::AdminListener;
use super::connection::HEADER_TIMEOUT;
use crate::config::{AdminConfig, KeyPlace};
use crate::listen::{BindError, SocketOwner};
use crate::process::inherited_sockets::InheritedSockets;

/// TLS towards readers with the files in use.
pub(super) type ReadersTls = Arc<ArcSwapOption<ServerConfig>>;

/// The bound admin address, and the address for readers.
#[derive(Debug)]
pub struct AdminListeners {
    pub(super) admin: AdminListener,
    /// `None` if no address for readers is configured.
    pub(super) readers: Option<(AdminListener, Option<ReadersTls>)>,
}

impl AdminListeners {
    /// Binds the addresses. Readers use `tls` if the configuration has it.
    ///
    /// # Errors
    /// Returns an error if an address is in use, is not local or needs a privilege, or if the group
    /// of the socket is unknown.
    pub(crate) fn bind(
        config: &AdminConfig,
        tls: ReadersTls,
        inherited: &InheritedSockets,
    ) -> Result<Self, BindError> {
        let bind = |address, owner, key| {
            let bound = AdminListener::bind(address, &owner, inherited);
            bound.map_err(|source| BindError::from_admin(address, KeyPlace::new(key), source))
        };
        let admin = bind(&config.listen, SocketOwner::default(), AdminConfig::LISTEN)?;
        let readers = config.readers.as_ref().map(|readers| {
            let owner = SocketOwner::for_readers(readers);
            let listener = bind(&readers.listen, owner, AdminConfig::READERS)?;
            Ok::<_, BindError>((listener, readers.tls.is_some().then_some(tls)))
        });
        Ok(Self { admin, readers: readers.transpose()? })
    }

    /// The admin address and the address for readers, with the actual ports.
    pub(crate) fn local_addresses(&self) -> (String, Option<String>) {
        let readers = self.readers.as_ref().map(|(listener, _)| listener.local_address());
        (self.admin.local_address(), readers)
    }
}

/// Performs the handshake, which verifies and judges the certificate of the reader.
pub(super) async fn accept<IO: AsyncRead + AsyncWrite + Unpin>(
    tls: &ReadersTls,
    io: IO,
) -> io::Result<TlsStream<IO>> {
    let config = tls.load_full().ok_or(io::ErrorKind::NotConnected)?;
    timeout(HEADER_TIMEOUT, TlsAcceptor::from(config).accept(io)).await?
}

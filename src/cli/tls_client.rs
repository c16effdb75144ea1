//! Connections over mutual TLS, for `demo` and `probe`.

use std::io;
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use rustls::crypto::aws_lc_rs::default_provider;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};

/// A client with these credentials.
pub(super) fn client_config(
    trust_anchors: RootCertStore,
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
) -> Result<Arc<ClientConfig>, rustls::Error> {
    let config = ClientConfig::builder_with_provider(Arc::new(default_provider()))
        .with_safe_default_protocol_versions()?
        .with_root_certificates(trust_anchors)
        .with_client_auth_cert(chain, key)?;
    Ok(Arc::new(config))
}

/// Connects, and completes the handshake. `timeout` is the maximum time to connect, and to wait for
/// bytes.
pub(super) fn connect(
    config: &Arc<ClientConfig>,
    address: SocketAddr,
    name: ServerName<'static>,
    timeout: Duration,
) -> io::Result<StreamOwned<ClientConnection, TcpStream>> {
    let mut tcp = TcpStream::connect_timeout(&address, timeout)?;
    tcp.set_read_timeout(Some(timeout))?;
    tcp.set_write_timeout(Some(timeout))?;
    let mut tls = ClientConnection::new(Arc::clone(config), name).map_err(io::Error::other)?;
    while tls.is_handshaking() {
        tls.complete_io(&mut tcp)?;
    }
    Ok(StreamOwned::new(tls, tcp))
}

/// The TLS alert that ended a connection.
pub(super) fn alert(error: &io::Error) -> Option<rustls::AlertDescription> {
    let error: &rustls::Error = error.get_ref()?.downcast_ref()?;
    if let rustls::Error::AlertReceived(alert) = error { Some(*alert) } else { None }
}

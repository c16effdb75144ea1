//! Connections over mutual TLS, for `demo`, `probe` and readers of several instances.

use std::fmt::Display;
use std::io;
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rustls::crypto::aws_lc_rs::default_provider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};

use super::CliError;

/// A client with these files: the CAs of the server, and certificate chain and private key of the
/// client. Returns the certificate as well.
pub(super) fn load(
    ca: &Path,
    files: &[PathBuf],
) -> Result<(Arc<ClientConfig>, CertificateDer<'static>), CliError> {
    let [path, key] = files else {
        return Err(CliError::Usage("give a certificate and a private key".to_owned()));
    };
    let chain = certificates(path)?;
    let certificate = chain.first().cloned().ok_or_else(|| failed(path, "no certificate"))?;
    let mut anchors = RootCertStore::empty();
    anchors.add_parsable_certificates(certificates(ca)?);
    if anchors.is_empty() {
        return Err(failed(ca, "no certificate of a CA"));
    }
    let private_key = PrivateKeyDer::from_pem_file(key).map_err(|error| failed(key, error))?;
    let config = client_config(anchors, chain, private_key).map_err(|error| {
        if matches!(error, rustls::Error::InconsistentKeys(_)) {
            return failed(key, format!("not the private key of {}", path.display()));
        }
        failed(key, error)
    })?;
    Ok((config, certificate))
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, CliError> {
    let read = CertificateDer::pem_file_iter(path).and_then(Iterator::collect);
    read.map_err(|error| failed(path, error))
}

/// The file at `path` cannot be used.
pub(super) fn failed(path: &Path, error: impl Display) -> CliError {
    CliError::file(path, error.to_string())
}

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

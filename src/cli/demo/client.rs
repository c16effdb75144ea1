//! Client of the demo: one GET over mutual TLS.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use rustls::crypto::aws_lc_rs::default_provider;
use rustls::{AlertDescription, ClientConfig, ClientConnection, Error, RootCertStore, StreamOwned};

use super::pki::{DemoParty, DemoPki};

/// Maximum time to wait for bytes of the response, 60 s: longer than every timeout of the demo's
/// configuration.
const READ_TIMEOUT: Duration = Duration::from_secs(60);

/// Sends GET `/` with the certificate of `party`, and returns the whole response.
pub(super) fn get(pki: &DemoPki, party: &DemoParty, address: SocketAddr) -> io::Result<String> {
    let mut trust_anchors = RootCertStore::empty();
    trust_anchors.add(pki.ca.clone()).map_err(io::Error::other)?;
    let (chain, key) = party.credentials();
    let config = ClientConfig::builder_with_provider(Arc::new(default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(io::Error::other)?
        .with_root_certificates(trust_anchors)
        .with_client_auth_cert(chain, key)
        .map_err(io::Error::other)?;
    let name = address.ip().into();
    let connection = ClientConnection::new(Arc::new(config), name).map_err(io::Error::other)?;
    let tcp = TcpStream::connect(address)?;
    tcp.set_read_timeout(Some(READ_TIMEOUT))?;
    let mut tls = StreamOwned::new(connection, tcp);
    write!(tls, "GET / HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n")?;
    let mut response = String::new();
    tls.read_to_string(&mut response)?;
    Ok(response)
}

/// The TLS alert that rejects a compromised key, if the error is one.
pub(super) fn rejecting_alert(error: &io::Error) -> Option<&'static str> {
    let error = error.get_ref().and_then(|inner| inner.downcast_ref::<Error>())?;
    let Error::AlertReceived(alert) = error else { return None };
    let names = [
        (AlertDescription::AccessDenied, "access_denied"),
        (AlertDescription::CertificateRevoked, "certificate_revoked"),
    ];
    names.into_iter().find(|(known, _)| known == alert).map(|(_, name)| name)
}

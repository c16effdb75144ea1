//! A client of the probe: one GET over mutual TLS.

use std::fmt;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rustls::crypto::aws_lc_rs::default_provider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};

use super::super::CliError;
use super::Args;

/// Maximum length of a response that is read, in bytes.
const MAX_RESPONSE: u64 = 256 << 10;

/// A client with its certificate.
pub(super) struct ProbeClient {
    config: Arc<ClientConfig>,
    /// HOST:PORT.
    host: String,
    name: ServerName<'static>,
    timeout: Duration,
}

/// The response to a request.
pub(super) enum Outcome {
    /// The connection was closed without a response.
    Closed,
    Response(String),
}

impl ProbeClient {
    /// The client with these files: certificate chain and private key.
    pub(super) fn new(args: &Args, files: &[PathBuf]) -> Result<Self, CliError> {
        let [certificate, key] = files else {
            return Err(CliError::Usage("a certificate and a private key are due".to_owned()));
        };
        let mut anchors = RootCertStore::empty();
        anchors.add_parsable_certificates(certificates(&args.ca)?);
        let private_key = PrivateKeyDer::from_pem_file(key)
            .map_err(|error| CliError::Operation(format!("{}: {error}", key.display())))?;
        let config = ClientConfig::builder_with_provider(Arc::new(default_provider()))
            .with_safe_default_protocol_versions()
            .map_err(|error| CliError::system("TLS", error))?
            .with_root_certificates(anchors)
            .with_client_auth_cert(certificates(certificate)?, private_key)
            .map_err(|error| CliError::Operation(format!("{}: {error}", key.display())))?;
        let has_port =
            args.host.rsplit_once(':').is_some_and(|(_, port)| port.parse::<u16>().is_ok());
        let host = if has_port { args.host.clone() } else { format!("{}:443", args.host) };
        let name = host.rsplit_once(':').map_or("", |(name, _)| name.trim_matches(['[', ']']));
        let name = ServerName::try_from(name.to_owned())
            .map_err(|_| CliError::Usage(format!("{:?} is no host", args.host)))?;
        Ok(Self { config: Arc::new(config), host, name, timeout: args.timeout })
    }

    /// Sends a GET with more words of `Connection` and more fields.
    ///
    /// # Errors
    /// Returns an error if the proxy cannot be reached, or if its certificate is not one of the CAs.
    pub(super) fn get(&self, path: &str, named: &str, fields: &str) -> Result<Outcome, CliError> {
        let failed = |error: io::Error| CliError::Operation(format!("{}: {error}", self.host));
        let addresses = self.host.to_socket_addrs().map_err(failed)?;
        let unresolved = || io::Error::new(ErrorKind::NotFound, "no address");
        let connect = |address| TcpStream::connect_timeout(&address, self.timeout);
        let connected = addresses.map(connect);
        let tcp =
            connected.reduce(Result::or).unwrap_or_else(|| Err(unresolved())).map_err(failed)?;
        tcp.set_read_timeout(Some(self.timeout)).map_err(failed)?;
        tcp.set_write_timeout(Some(self.timeout)).map_err(failed)?;
        let connection = ClientConnection::new(Arc::clone(&self.config), self.name.clone());
        let connection = connection.map_err(|error| failed(io::Error::other(error)))?;
        let mut tls = StreamOwned::new(connection, tcp);
        let request = format!(
            "GET {path} HTTP/1.1\r\nHost: {}\r\nConnection: close{named}\r\n{fields}\r\n",
            self.host
        );
        let mut response = Vec::new();
        let sent = tls.write_all(request.as_bytes());
        // The response may come before the whole request was sent.
        let read = Read::by_ref(&mut tls).take(MAX_RESPONSE).read_to_end(&mut response);
        match sent.and(read.map(drop)) {
            Err(error) if response.is_empty() && !is_close(&error) => Err(failed(error)),
            _ if response.is_empty() => Ok(Outcome::Closed),
            _ => Ok(Outcome::Response(String::from_utf8_lossy(&response).into_owned())),
        }
    }
}

/// Whether the proxy has closed the connection, with an alert or without.
fn is_close(error: &io::Error) -> bool {
    let inner = error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>());
    let kinds = [ErrorKind::UnexpectedEof, ErrorKind::ConnectionReset, ErrorKind::BrokenPipe];
    matches!(inner, Some(rustls::Error::AlertReceived(_))) || kinds.contains(&error.kind())
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, CliError> {
    let read = CertificateDer::pem_file_iter(path).and_then(Iterator::collect);
    let read: Vec<_> =
        read.map_err(|error| CliError::Operation(format!("{}: {error}", path.display())))?;
    if read.is_empty() {
        return Err(CliError::Operation(format!("{}: no certificate", path.display())));
    }
    Ok(read)
}

impl Outcome {
    fn status(&self) -> Option<&str> {
        match self {
            Self::Closed => None,
            Self::Response(text) => text.split(' ').nth(1).and_then(|status| status.get(..3)),
        }
    }

    /// Whether the client was rejected: 403, or no response at all.
    pub(super) fn is_rejected(&self) -> bool {
        matches!(self.status(), None | Some("403"))
    }

    /// Whether the proxy failed, as it does without an answer of keygate.
    pub(super) fn is_failure(&self) -> bool {
        self.status().is_some_and(|status| status.starts_with('5'))
    }

    /// Whether head or body have this text, without case.
    pub(super) fn contains(&self, text: &str) -> bool {
        match self {
            Self::Closed => false,
            Self::Response(response) => {
                response.to_ascii_lowercase().contains(&text.to_ascii_lowercase())
            }
        }
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.status().unwrap_or("closed"))
    }
}

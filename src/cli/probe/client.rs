//! A client of the probe: one GET over mutual TLS.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use humantime::format_duration;
use keygate_core::{spki, unix_time};
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{AlertDescription, ClientConfig};

use super::Args;
use crate::cli::CliError;
use crate::cli::tls_client::{self, connect, failed};

/// Maximum length of a response that is read, in bytes.
const MAX_RESPONSE: u64 = 256 << 10;

/// A client with its certificate, and the address of the proxy.
pub(super) struct ProbeClient {
    config: Arc<ClientConfig>,
    pub(super) address: SocketAddr,
    /// The value of `Host`.
    host: String,
    name: ServerName<'static>,
    timeout: Duration,
    pub(super) certificate: CertificateDer<'static>,
}

/// The end of a request.
pub(super) struct Outcome {
    /// Status line, fields and content; empty without a response.
    pub(super) response: String,
    /// The error that ended the connection, unless the proxy closed it.
    error: Option<String>,
}

impl ProbeClient {
    /// The client with these files: certificate chain and private key. The address is the first one
    /// of the name that accepts a connection.
    ///
    /// # Errors
    /// Returns an error if the proxy cannot be reached, if a file cannot be used, or if the
    /// certificate is not valid at this time: a proxy rejects it whatever its key is.
    pub(super) fn new(args: &Args, files: &[PathBuf]) -> Result<Self, CliError> {
        let (config, certificate) = tls_client::load(&args.ca, files)?;
        let path = files.first().map_or(Path::new(""), PathBuf::as_path);
        let now = Duration::from_secs(unix_time::now());
        if !spki::validity(&certificate).map_err(|error| failed(path, error))?.contains(now) {
            return Err(failed(path, "the certificate has expired or is not valid yet: renew it"));
        }
        if args.host.contains('/') {
            let problem = format!("{:?} is a URL; give HOST or HOST:PORT, and --path", args.host);
            return Err(CliError::Usage(problem));
        }
        let port = args.host.rsplit_once(':').and_then(|(name, it)| Some((name, it.parse().ok()?)));
        let (name, port) = port.unwrap_or((&args.host, 443_u16));
        let bare = name.trim_matches(['[', ']']);
        let unreachable = |error| failed(Path::new(&args.host), error);
        let mut addresses = (bare, port).to_socket_addrs().map_err(unreachable)?;
        let accepts = |it: &SocketAddr| TcpStream::connect_timeout(it, args.timeout).is_ok();
        let address = addresses.find(accepts);
        Ok(Self {
            config,
            address: address.ok_or_else(|| unreachable(ErrorKind::ConnectionRefused.into()))?,
            host: if port == 443 { name.to_owned() } else { args.host.clone() },
            name: ServerName::try_from(bare.to_owned())
                .map_err(|_| CliError::Usage(format!("{:?} is no host", args.host)))?,
            timeout: args.timeout,
            certificate,
        })
    }

    /// Sends a GET with more words of `Connection` and more fields.
    pub(super) fn get(&self, path: &str, named: &str, fields: &str) -> Outcome {
        let mut response = Vec::new();
        let result = self.exchange(path, named, fields, &mut response);
        let error = result.err().filter(|error| !is_close(error));
        let error = error.map(|error| match is_timeout(&error) {
            true => format!("no response within {}", format_duration(self.timeout)),
            false => error.to_string(),
        });
        Outcome { response: String::from_utf8_lossy(&response).into_owned(), error }
    }

    fn exchange(&self, path: &str, named: &str, fields: &str, to: &mut Vec<u8>) -> io::Result<()> {
        let connected = connect(&self.config, self.address, self.name.clone(), self.timeout);
        // An authorizer is asked after the handshake: an alert before is not about the key.
        let other = |error: io::Error| io::Error::other(error.to_string());
        let mut tls = connected.map_err(|it| if is_timeout(&it) { it } else { other(it) })?;
        let host = &self.host;
        let sent = write!(
            tls,
            "GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close{named}\r\n{fields}\r\n"
        );
        // The response may come before the whole request was sent.
        Read::by_ref(&mut tls).take(MAX_RESPONSE).read_to_end(to).and(sent)
    }
}

/// Whether the proxy has closed the connection. Any alert other than `access_denied` is about the
/// certificate, not about its key, and a reset may have discarded such an alert.
fn is_close(error: &io::Error) -> bool {
    tls_client::alert(error) == Some(AlertDescription::AccessDenied)
        || error.kind() == ErrorKind::UnexpectedEof
}

fn is_timeout(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::TimedOut | ErrorKind::WouldBlock)
}

impl Outcome {
    /// The status code, `closed`, or the error.
    pub(super) fn status(&self) -> &str {
        let without = self.error.as_deref().unwrap_or("closed");
        self.response.get(9..12).unwrap_or(without)
    }

    /// The error of a client that rejects the certificate of the proxy.
    pub(super) fn untrusted(&self) -> Option<&str> {
        self.error.as_deref().filter(|error| error.starts_with("invalid peer certificate"))
    }

    /// Whether the client was served: 2xx or 3xx.
    pub(super) fn is_served(&self) -> bool {
        !self.response.is_empty() && self.error.is_none() && self.status().starts_with(['2', '3'])
    }

    /// Whether the request has passed the proxy: it was served, or the application has no such path.
    pub(super) fn has_passed(&self) -> bool {
        self.is_served() || (self.error.is_none() && self.status() == "404")
    }

    /// The word after a field name, in any notation of an application.
    pub(super) fn word_of(&self, name: &str) -> Option<String> {
        let (text, name) = (self.response.to_ascii_lowercase(), name.to_ascii_lowercase());
        let after = text.split(&name).nth(1)?.trim_start_matches(|it: char| !it.is_alphanumeric());
        Some(after.chars().take_while(char::is_ascii_alphabetic).collect())
    }
}

//! A rustls server without an async runtime whose clients' keys are checked against a filter.
//!
//! ```sh
//! cargo run -p keygate-core --example rustls_server -- \
//!     127.0.0.1:8443 server.pem server.key.pem clients-ca.pem lost.pkbf
//! ```
//!
//! The server greets each client over HTTP/1.1 and closes the connection. A client whose key is in
//! the filter gets the TLS alert `access_denied`.
//!
//! Sessions cannot be resumed, because `KeyVerifier::server_config` turns resumption off: rustls
//! calls no client verifier on resumption, so a resumed session would outlive a change of the
//! filter.

#![allow(clippy::print_stderr, reason = "a command-line program")]

use std::error::Error;
use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use keygate_core::guard::{CurrentGuard, Guard, NamedFilter, Policy};
use keygate_core::pkbf;
use keygate_core::tls::{ClientVerifier, KeyVerifier, TrustAnchors};
use rustls::crypto::aws_lc_rs::default_provider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use rustls::{ServerConfig, ServerConnection, StreamOwned};

/// Maximum size of the filter file, in bytes; a larger file is an error.
const MAX_FILTER_SIZE: u64 = 4 << 30;
/// Maximum time that one read or write may take; the connection is closed after it.
const IO_TIMEOUT: Duration = Duration::from_secs(10);
/// Pause after a connection could not be accepted.
const RETRY_ACCEPT: Duration = Duration::from_millis(100);
/// Maximum size of a request head, in bytes; a longer one is an error.
const MAX_HEAD_SIZE: usize = 8 << 10;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [address, certificate, private_key, trust_anchors, filter] = arguments.as_slice() else {
        eprintln!("usage: rustls_server ADDRESS CERTIFICATE PRIVATE_KEY TRUST_ANCHORS FILTER");
        return ExitCode::from(2);
    };
    let files = Files {
        certificate: certificate.into(),
        private_key: private_key.into(),
        trust_anchors: trust_anchors.into(),
        filter: filter.into(),
    };
    match files.server_config().and_then(|config| serve(address, config)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("rustls_server: {error}");
            ExitCode::FAILURE
        }
    }
}

/// The files that the server reads, once at startup.
struct Files {
    certificate: PathBuf,
    private_key: PathBuf,
    trust_anchors: PathBuf,
    filter: PathBuf,
}

impl Files {
    fn server_config(&self) -> Result<Arc<ServerConfig>, Box<dyn Error>> {
        let trust_anchors = TrustAnchors::new(certificates(&self.trust_anchors)?)?;
        let clients = Arc::new(ClientVerifier::new(Arc::new(trust_anchors)));
        // `Policy::default()` rejects every key that is not known to be clean.
        let verifier = KeyVerifier::new(clients, self.guard()?, Policy::default());
        let private_key = PrivateKeyDer::from_pem_file(&self.private_key)
            .map_err(|error| format!("{}: {error}", self.private_key.display()))?;
        let chain = certificates(&self.certificate)?;
        let certificate = CertifiedKey::from_der(chain, private_key, &default_provider())?;
        let config = verifier.server_config(Arc::new(SingleCertAndKey::from(certificate)))?;
        Ok(Arc::new(config))
    }

    /// A guard with the one filter. A program that reloads the filter keeps a clone and calls
    /// [`CurrentGuard::replace`].
    fn guard(&self) -> Result<CurrentGuard, Box<dyn Error>> {
        let file = pkbf::read(&self.filter, MAX_FILTER_SIZE)
            .map_err(|error| format!("{}: {error}", self.filter.display()))?;
        let sha256 = *file.sha256();
        let named = NamedFilter { name: "lost".into(), filter: file.filter, sha256 };
        Ok(CurrentGuard::from(Guard::new(vec![Arc::new(named)])))
    }
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, Box<dyn Error>> {
    let certificates: Result<Vec<_>, _> =
        CertificateDer::pem_file_iter(path).and_then(Iterator::collect);
    Ok(certificates.map_err(|error| format!("{}: {error}", path.display()))?)
}

/// Accepts connections and serves each on its own thread. Returns only if it cannot listen.
fn serve(address: &str, config: Arc<ServerConfig>) -> Result<(), Box<dyn Error>> {
    let listener = TcpListener::bind(address).map_err(|error| format!("{address}: {error}"))?;
    eprintln!("listening on {}", listener.local_addr()?);
    loop {
        let (tcp, peer) = match listener.accept() {
            Ok(accepted) => accepted,
            Err(error) => {
                eprintln!("cannot accept a connection: {error}");
                thread::sleep(RETRY_ACCEPT); // for example, too many files are open
                continue;
            }
        };
        let config = Arc::clone(&config);
        thread::spawn(move || match greet(tcp, config) {
            Ok(()) => eprintln!("{peer}: served"),
            Err(error) => eprintln!("{peer}: {error}"),
        });
    }
}

/// Completes the handshake, reads one request head, and sends the response.
fn greet(tcp: TcpStream, config: Arc<ServerConfig>) -> Result<(), Box<dyn Error>> {
    tcp.set_read_timeout(Some(IO_TIMEOUT))?;
    tcp.set_write_timeout(Some(IO_TIMEOUT))?;
    let mut stream = StreamOwned::new(ServerConnection::new(config)?, tcp);
    read_head(&mut stream)?;
    stream
        .write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 6\r\nconnection: close\r\n\r\nhello\n")?;
    stream.conn.send_close_notify();
    stream.flush()?;
    Ok(())
}

fn read_head(stream: &mut impl Read) -> io::Result<()> {
    let mut head: Vec<u8> = Vec::new();
    let mut buffer = [0; 1024];
    while !head.windows(4).any(|window| window == b"\r\n\r\n") {
        if head.len() > MAX_HEAD_SIZE {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "the request head is too long"));
        }
        match stream.read(&mut buffer)? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            length => head.extend(buffer.iter().take(length)),
        }
    }
    Ok(())
}

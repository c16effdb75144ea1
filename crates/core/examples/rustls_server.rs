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
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use keygate_core::guard::{CurrentGuard, Guard, NamedFilter, Policy};
use keygate_core::pkbf;
use keygate_core::tls::{self, ClientVerifier, KeyVerifier};
use rustls::sign::SingleCertAndKey;
use rustls::{ServerConfig, ServerConnection, StreamOwned};

/// Maximum size of the filter file, in bytes; a larger file is an error.
const MAX_FILTER_SIZE: u64 = 4 << 30;
/// Maximum time that one read or write may take; the connection is closed after it.
const IO_TIMEOUT: Duration = Duration::from_secs(10);
/// Pause after a connection could not be accepted.
const RETRY_ACCEPT: Duration = Duration::from_millis(100);
/// Maximum size of a request head, in bytes; the rest of a longer one is not read.
const MAX_HEAD_SIZE: u64 = 8 << 10;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [address, certificate, private_key, trust_anchors, filter] = arguments.as_slice() else {
        eprintln!("usage: rustls_server ADDRESS CERTIFICATE PRIVATE_KEY TRUST_ANCHORS FILTER");
        return ExitCode::from(2);
    };
    let files = [certificate, private_key, trust_anchors, filter];
    match server_config(files).and_then(|config| serve(address, config)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("rustls_server: {error}");
            ExitCode::FAILURE
        }
    }
}

/// The configuration of the server. Its files are read once.
fn server_config(files: [&String; 4]) -> Result<Arc<ServerConfig>, Box<dyn Error>> {
    let [certificate, private_key, trust_anchors, filter] = files;
    let read = |path: &String| std::fs::read(path).map_err(|error| format!("{path}: {error}"));
    let file = pkbf::read(Path::new(filter), MAX_FILTER_SIZE);
    let file = file.map_err(|error| format!("{filter}: {error}"))?;
    let sha256 = *file.sha256();
    let lost = NamedFilter { name: "lost".into(), filter: file.filter, sha256 };
    // A program that reloads the filter keeps a clone and calls `CurrentGuard::replace`.
    let guard = CurrentGuard::from(Guard::new(vec![Arc::new(lost)]));
    let trust_anchors = tls::trust_anchors(&read(trust_anchors)?)?;
    let clients = Arc::new(ClientVerifier::new(Arc::new(trust_anchors)));
    // `Policy::default()` rejects every key that is not known to be clean.
    let verifier = KeyVerifier::new(clients, guard, Policy::default());
    let credentials = tls::credentials(&read(certificate)?, &read(private_key)?)?;
    let config = verifier.server_config(Arc::new(SingleCertAndKey::from(credentials)))?;
    Ok(Arc::new(config))
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
    for line in BufReader::new((&mut stream).take(MAX_HEAD_SIZE)).lines() {
        if line?.is_empty() {
            break;
        }
    }
    stream
        .write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 6\r\nconnection: close\r\n\r\nhello\n")?;
    stream.conn.send_close_notify();
    stream.flush()?;
    Ok(())
}

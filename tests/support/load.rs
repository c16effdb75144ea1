//! Clients that send requests continuously and record every failure.

use std::fmt::Display;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection, StreamOwned};

use super::TIMEOUT;
use super::client::config;
use super::pki::{Party, Pki};
use super::wait::wait_for;

pub type Connection = BufReader<StreamOwned<ClientConnection, TcpStream>>;

pub fn connect(address: SocketAddr, config: &Arc<ClientConfig>) -> io::Result<Connection> {
    connect_to(address.ip().into(), address, config)
}

/// Connects to a server of this name.
fn connect_to(
    server: ServerName<'static>,
    address: SocketAddr,
    config: &Arc<ClientConfig>,
) -> io::Result<Connection> {
    let tls = ClientConnection::new(Arc::clone(config), server).unwrap();
    let tcp = TcpStream::connect(address)?;
    tcp.set_read_timeout(Some(TIMEOUT))?;
    tcp.set_nodelay(true)?;
    Ok(BufReader::new(StreamOwned::new(tls, tcp)))
}

/// One request and its response; returns whether the connection may be used again.
pub fn send_get(connection: &mut Connection, host: impl Display, close: bool) -> io::Result<bool> {
    let field = if close { "connection: close\r\n" } else { "" };
    let request = format!("GET / HTTP/1.1\r\nhost: {host}\r\n{field}\r\n");
    connection.get_mut().write_all(request.as_bytes())?;
    let mut reusable = !close;
    let mut line = String::new();
    if connection.read_line(&mut line)? == 0 {
        // The connection ended with close_notify. Without it, rustls returns an error.
        return Err(io::ErrorKind::ConnectionAborted.into());
    }
    if !line.starts_with("HTTP/1.1 200 ") {
        // The fields show whether the response comes from a host or from keygate.
        let mut head = line.clone();
        while !head.ends_with("\r\n\r\n") && connection.read_line(&mut head)? > 0 {}
        return Err(io::Error::other(format!("the response begins with {head:?}")));
    }
    while line != "\r\n" {
        reusable &= !line.eq_ignore_ascii_case("connection: close\r\n");
        line.clear();
        if connection.read_line(&mut line)? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
    }
    let mut body = [0; 6];
    connection.read_exact(&mut body)?;
    if &body == b"hello\n" { Ok(reusable) } else { Err(io::Error::other("another body")) }
}

/// Threads that send requests of an admitted client until the end of the test. Half of them keep
/// their connections open, half open a new one for each request.
pub struct Load {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

#[derive(Default)]
struct Shared {
    stop: AtomicBool,
    response: AtomicUsize,
    failures: Mutex<Vec<String>>,
}

impl Load {
    pub fn start(address: SocketAddr, pki: &Pki, client_of: &Party) -> Self {
        Self::to(&address.ip().to_string(), address, pki, client_of)
    }

    /// Requests to a server of this name, which is in SNI and `Host`.
    pub fn to(host: &str, address: SocketAddr, pki: &Pki, client_of: &Party) -> Self {
        let config = Arc::new(config(pki, client_of));
        let host: ServerName<'static> = host.to_owned().try_into().unwrap();
        let shared = Arc::new(Shared::default());
        let threads = (0..4).map(|number| {
            let (shared, config) = (Arc::clone(&shared), Arc::clone(&config));
            let host = host.clone();
            std::thread::spawn(move || {
                shared.keep_requesting(&host, address, &config, number % 2 == 0);
            })
        });
        Self { threads: threads.collect(), shared }
    }

    /// Waits for this number of further responses.
    pub fn wait_for(&self, responses: usize) {
        let wanted = self.shared.response.load(Ordering::Relaxed) + responses;
        wait_for("more responses", || {
            let response = self.shared.response.load(Ordering::Relaxed);
            if response < wanted { Err(format!("{:?}", self.failures())) } else { Ok(()) }
        });
    }

    pub fn failures(&self) -> Vec<String> {
        self.shared.failures.lock().unwrap().clone()
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            let _ = thread.join(); // what it met is among the failures
        }
    }
}

impl Shared {
    fn keep_requesting(
        &self,
        host: &ServerName<'static>,
        address: SocketAddr,
        config: &Arc<ClientConfig>,
        keeps: bool,
    ) {
        let mut kept = None;
        while !self.stop.load(Ordering::Relaxed) {
            let connection =
                kept.take().map_or_else(|| connect_to(host.clone(), address, config), Ok);
            let requested = connection.and_then(|mut connection| {
                let reusable = send_get(&mut connection, host.to_str(), !keeps)?;
                Ok(reusable.then_some(connection))
            });
            match requested {
                Ok(connection) => {
                    kept = connection;
                    self.response.fetch_add(1, Ordering::Relaxed);
                }
                Err(error) => self.failures.lock().unwrap().push(error.to_string()),
            }
        }
    }
}

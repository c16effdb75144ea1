//! Clients that send requests continuously and record every failure.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use rustls::{ClientConfig, ClientConnection, StreamOwned};

use super::TIMEOUT;
use super::client::config;
use super::pki::{Party, Pki};
use super::wait::wait_for;

pub type Connection = BufReader<StreamOwned<ClientConnection, TcpStream>>;

pub fn connect(address: SocketAddr, config: &Arc<ClientConfig>) -> io::Result<Connection> {
    let tls = ClientConnection::new(Arc::clone(config), address.ip().into()).unwrap();
    let tcp = TcpStream::connect(address)?;
    tcp.set_read_timeout(Some(TIMEOUT))?;
    tcp.set_nodelay(true)?;
    Ok(BufReader::new(StreamOwned::new(tls, tcp)))
}

/// One request and its response; returns whether the connection may be used again.
pub fn send_get(connection: &mut Connection, address: SocketAddr, close: bool) -> io::Result<bool> {
    let field = if close { "connection: close\r\n" } else { "" };
    let request = format!("GET / HTTP/1.1\r\nhost: {address}\r\n{field}\r\n");
    connection.get_mut().write_all(request.as_bytes())?;
    let mut reusable = !close;
    let mut line = String::new();
    if connection.read_line(&mut line)? == 0 {
        // The connection ended with close_notify. Without it, rustls returns an error.
        return Err(io::ErrorKind::ConnectionAborted.into());
    }
    if !line.starts_with("HTTP/1.1 200 ") {
        return Err(io::Error::other(format!("the response begins with {line:?}")));
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
        let config = Arc::new(config(pki, client_of));
        let shared = Arc::new(Shared::default());
        let threads = (0..4).map(|number| {
            let (shared, config) = (Arc::clone(&shared), Arc::clone(&config));
            std::thread::spawn(move || shared.keep_requesting(address, &config, number % 2 == 0))
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
    fn keep_requesting(&self, address: SocketAddr, config: &Arc<ClientConfig>, keeps: bool) {
        let mut kept = None;
        while !self.stop.load(Ordering::Relaxed) {
            let connection = kept.take().map_or_else(|| connect(address, config), Ok);
            let requested = connection.and_then(|mut connection| {
                let reusable = send_get(&mut connection, address, !keeps)?;
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

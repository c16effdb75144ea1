//! An origin that records every request to the byte. It reads HTTP/1.1 itself: what a library would
//! make of a request is not what was received.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};

use super::TIMEOUT;

/// A request as it was received.
#[derive(Debug, Clone)]
pub struct Received {
    /// Request line and fields, with every CR and LF, up to and with the empty line.
    pub head: String,
    pub body: Vec<u8>,
}

impl Received {
    /// The values of a field, by its name in lower case.
    pub fn fields(&self, name: &str) -> Vec<&str> {
        let lines = self.head.lines().skip(1).filter_map(|line| line.split_once(": "));
        lines.filter(|(found, _)| found.to_ascii_lowercase() == name).map(|(_, it)| it).collect()
    }

    /// The head without a field, by its name in lower case.
    pub fn head_without(&self, name: &str) -> String {
        let lines = self.head.split_inclusive("\r\n");
        let is_it = |line: &str| line.split(':').next().unwrap().eq_ignore_ascii_case(name);
        lines.filter(|line| !is_it(line)).collect()
    }

    /// The names of all fields, in lower case, sorted.
    pub fn names(&self) -> Vec<String> {
        let lines = self.head.lines().skip(1).filter_map(|line| line.split_once(": "));
        let mut names: Vec<_> = lines.map(|(name, _)| name.to_ascii_lowercase()).collect();
        names.sort();
        names
    }
}

type Responder = dyn Fn(&Received, &mut TcpStream) -> std::io::Result<()> + Send + Sync;

/// A listening origin; its threads end with the process.
pub struct Origin {
    address: SocketAddr,
    received: Mutex<Receiver<Received>>,
}

impl Origin {
    /// Responds to every request with 200 and `hello`.
    pub fn start() -> Self {
        Self::responding(|_, tcp| {
            tcp.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 6\r\n\r\nhello\n")
        })
    }

    /// Responds like [`Origin::start`], to HEAD without content, and to a WebSocket upgrade with
    /// 101.
    pub fn with_upgrades() -> Self {
        Self::responding(|request, tcp| {
            let response: &[u8] = if request.head.starts_with("HEAD ") {
                b"HTTP/1.1 200 OK\r\ncontent-length: 6\r\n\r\n"
            } else if request.fields("upgrade") == ["websocket"] {
                b"HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: websocket\r\n\
                    sec-websocket-accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n\r\n"
            } else {
                b"HTTP/1.1 200 OK\r\ncontent-length: 6\r\n\r\nhello\n"
            };
            tcp.write_all(response)
        })
    }

    /// Responds with `respond`, whose error closes the connection.
    pub fn responding(
        respond: impl Fn(&Received, &mut TcpStream) -> std::io::Result<()> + Send + Sync + 'static,
    ) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let address = listener.local_addr().unwrap();
        let (sender, received) = channel();
        let respond: Arc<Responder> = Arc::new(respond);
        std::thread::spawn(move || {
            for tcp in listener.incoming() {
                let (sender, respond) = (sender.clone(), Arc::clone(&respond));
                // One thread a connection: there are few.
                std::thread::spawn(move || drop(serve(&tcp.unwrap(), &sender, &*respond)));
            }
        });
        Self { address, received: Mutex::new(received) }
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The next request that was received.
    pub fn next(&self) -> Received {
        let received = self.received.lock().unwrap().recv_timeout(TIMEOUT);
        received.expect("the origin should have received a request")
    }

    /// Takes all requests that were received, and counts those that are wanted.
    pub fn taken(&self, wanted: impl Fn(&Received) -> bool) -> usize {
        self.received.lock().unwrap().try_iter().filter(wanted).count()
    }

    /// How many requests were received and not taken with [`Origin::next`].
    pub fn untaken(&self) -> usize {
        self.received.lock().unwrap().try_iter().count()
    }
}

fn serve(tcp: &TcpStream, sender: &Sender<Received>, respond: &Responder) -> std::io::Result<()> {
    tcp.set_nodelay(true)?;
    let mut reader = BufReader::new(tcp.try_clone()?);
    let mut writer = tcp.try_clone()?;
    while let Some(request) = read_request(&mut reader)? {
        let _ = sender.send(request.clone()); // the test may have ended
        respond(&request, &mut writer)?;
    }
    Ok(())
}

fn read_request(reader: &mut impl BufRead) -> std::io::Result<Option<Received>> {
    let mut head = String::new();
    loop {
        let start = head.len();
        if reader.read_line(&mut head)? == 0 {
            return Ok(None);
        }
        if &head[start..] == "\r\n" {
            break;
        }
    }
    let mut request = Received { head, body: Vec::new() };
    if let Some(length) = request.fields("content-length").first() {
        let length: usize = length.parse().unwrap();
        request.body = vec![0; length];
        reader.read_exact(&mut request.body)?; // half a request is none
    } else if request.fields("transfer-encoding") == ["chunked"] {
        read_chunks(reader, &mut request)?;
    }
    Ok(Some(request))
}

/// Trailers are kept at the end of the body, as they came.
fn read_chunks(reader: &mut impl BufRead, request: &mut Received) -> std::io::Result<()> {
    loop {
        let mut line = String::new();
        reader.read_line(&mut line)?;
        let size = u64::from_str_radix(line.trim(), 16).map_err(std::io::Error::other)?;
        if size == 0 {
            break;
        }
        reader.take(size).read_to_end(&mut request.body)?;
        reader.read_line(&mut line)?;
    }
    loop {
        let mut line = String::new();
        reader.read_line(&mut line)?;
        if line == "\r\n" || line.is_empty() {
            return Ok(());
        }
        request.body.extend(line.bytes());
    }
}

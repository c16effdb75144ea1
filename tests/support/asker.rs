//! A host that asks an authorizer over HTTP/1.1, byte by byte.

use std::fmt::Write as _;
use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;

use data_encoding::BASE64;
use rustls::{ClientConfig, ClientConnection, StreamOwned};
use socket2::{Domain, Socket, Type};

use super::TIMEOUT;
use super::keygate::Keygate;
use super::pki::{Kind, Party, Pki};
use super::write_filter;

trait Stream: Read + Write {}
impl<S: Read + Write> Stream for S {}

/// A connection of a host.
pub struct Asker(Box<dyn Stream>);

/// An answer over HTTP.
#[derive(Debug)]
pub struct HttpReply {
    pub status: u16,
    pub head: String,
    pub body: String,
}

impl HttpReply {
    /// The value of a field, if it is there once.
    pub fn field(&self, name: &str) -> Option<&str> {
        let mut fields = self.head.lines().filter_map(|line| line.split_once(": "));
        let mut of_name = fields.by_ref().filter(|(found, _)| found.eq_ignore_ascii_case(name));
        let first = of_name.next().map(|(_, value)| value);
        assert!(of_name.next().is_none(), "{name} is there twice: {}", self.head);
        first
    }
}

impl Asker {
    pub fn unix(path: &Path) -> Self {
        let stream = UnixStream::connect(path).unwrap();
        stream.set_read_timeout(Some(TIMEOUT)).unwrap();
        Self(Box::new(stream))
    }

    pub fn tcp(address: SocketAddr) -> Self {
        Self(Box::new(tcp(address)))
    }

    /// A connection of a host with the address `source`.
    pub fn tcp_from(source: IpAddr, address: SocketAddr) -> Self {
        let socket = Socket::new(Domain::for_address(address), Type::STREAM, None).unwrap();
        socket.bind(&SocketAddr::new(source, 0).into()).unwrap();
        socket.connect(&address.into()).unwrap();
        socket.set_read_timeout(Some(TIMEOUT)).unwrap();
        Self(Box::new(TcpStream::from(socket)))
    }

    pub fn tls(config: ClientConfig, address: SocketAddr) -> Self {
        let name = "localhost".try_into().unwrap();
        let connection = ClientConnection::new(Arc::new(config), name).unwrap();
        Self(Box::new(StreamOwned::new(connection, tcp(address))))
    }

    /// Asks about a client whose certificates the host puts into `Client-Cert` and
    /// `Client-Cert-Chain` (RFC 9440), leaf first.
    pub fn ask(&mut self, chain: &[&[u8]]) -> HttpReply {
        self.try_ask(chain).expect("an answer")
    }

    /// [`Asker::ask`] about the certificate of a client.
    pub fn ask_about(&mut self, client: &Party) -> HttpReply {
        self.ask(&[client.der.as_ref()])
    }

    /// [`Asker::ask`], or `None` if the connection is closed instead.
    pub fn try_ask(&mut self, chain: &[&[u8]]) -> Option<HttpReply> {
        let mut head = "GET /any HTTP/1.1\r\nHost: keygate\r\nX-Real-IP: 192.0.2.7\r\n".to_owned();
        if let Some((leaf, issuers)) = chain.split_first() {
            write!(head, "Client-Cert: :{}:\r\n", BASE64.encode(leaf)).unwrap();
            if !issuers.is_empty() {
                let issuers = issuers.iter().map(|it| format!(":{}:", BASE64.encode(it)));
                let issuers = issuers.collect::<Vec<_>>().join(", ");
                write!(head, "Client-Cert-Chain: {issuers}\r\n").unwrap();
            }
        }
        self.exchange(&format!("{head}\r\n"))
    }

    /// Sends bytes and reads a response; `None` if the connection is closed instead.
    pub fn exchange(&mut self, request: &str) -> Option<HttpReply> {
        self.0.write_all(request.as_bytes()).ok()?;
        self.0.flush().ok()?;
        self.response()
    }

    /// Reads a response; `None` if the connection is closed instead.
    pub fn response(&mut self) -> Option<HttpReply> {
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            let mut byte = [0];
            match self.0.read(&mut byte) {
                Ok(1) => head.push(byte[0]),
                Ok(_) => return None,
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {
                    panic!("neither a response nor a close within {TIMEOUT:?}")
                }
                Err(_) => return None,
            }
        }
        let head = String::from_utf8(head).unwrap();
        let mut reply =
            HttpReply { status: head[9..12].parse().unwrap(), head, body: String::new() };
        let length = reply.field("content-length").map_or(0, |it| it.parse().unwrap());
        let mut body = vec![0; length];
        self.0.read_exact(&mut body).unwrap();
        reply.body = String::from_utf8(body).unwrap();
        Some(reply)
    }
}

fn tcp(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(TIMEOUT)).unwrap();
    stream
}

/// A running keygate without services and with one authorizer, `edge`, which reads `Client-Cert`.
pub struct AskedKeygate {
    pub pki: Pki,
    pub good: Party,
    pub lost: Party,
    pub keygate: Keygate,
}

/// The configuration of [`AskedKeygate`]: `edge` is the table of the authorizer without `name` and
/// `protocol`.
pub fn configuration(edge: &str) -> String {
    format!(
        r#"
workers = 2
admin = {{ listen = "127.0.0.1:0" }}
log = {{ repeat_after = "0s" }}
shutdown = {{ readiness_delay = "0s", drain_timeout = "5s" }}
filters = [{{ name = "lost", path = "lost.pkbf" }}]

[[authorizers]]
name = "edge"
protocol = "http"
certificate_from = "client-cert"
address_from = "X-Real-IP"
{edge}
"#
    )
}

/// A Unix socket in the directory of the configuration.
pub const UNIX: &str = "listen = \"unix:ask.sock\"\n";
/// TCP on any free port.
pub const TCP: &str = "listen = \"127.0.0.1:0\"\n";

impl AskedKeygate {
    pub fn start(edge: &str) -> Self {
        Self::with_pki(Pki::new(), edge)
    }

    pub fn with_pki(pki: Pki, edge: &str) -> Self {
        Self::configured(pki, &configuration(edge))
    }

    /// Starts with a whole configuration, such as one of [`configuration`].
    pub fn configured(pki: Pki, text: &str) -> Self {
        let [good, lost] = ["good", "lost"].map(|name| pki.client(name, Kind::P256));
        write_filter(&pki.path("lost.pkbf"), &[&lost.spki]);
        let keygate = Keygate::configured(&pki, text);
        Self { pki, good, lost, keygate }
    }

    /// A connection to the Unix socket.
    pub fn connect(&self) -> Asker {
        Asker::unix(&self.pki.path("ask.sock"))
    }

    /// The TCP address of the authorizer.
    pub fn address(&self) -> SocketAddr {
        self.keygate.authorizer_address("edge").parse().unwrap()
    }

    /// Replaces the table of the authorizer, and waits until the next snapshot is in use.
    pub fn reconfigure(&self, edge: &str, generation: u64) {
        std::fs::write(self.pki.path("keygate.toml"), configuration(edge)).unwrap();
        self.keygate.wait_for_generation(generation);
    }

    /// The number of questions with a result.
    pub fn questions(&self, result: &str) -> f64 {
        self.keygate
            .metric(&format!("keygate_questions_total{{result=\"{result}\",service=\"edge\"}}"))
    }
}

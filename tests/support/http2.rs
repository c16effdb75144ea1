//! A client that sends HTTP/2 frame by frame, also frames that no library would send.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;

use rustls::{ClientConnection, StreamOwned};

use super::TIMEOUT;
use super::client::config;
use super::pki::{Party, Pki};

/// The first bytes of a client (section 3.4), before its SETTINGS.
pub const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// Types of frames (RFC 9113, section 6).
pub const DATA: u8 = 0;
pub const HEADERS: u8 = 1;
pub const RST_STREAM: u8 = 3;
pub const SETTINGS: u8 = 4;
pub const PING: u8 = 6;
pub const GOAWAY: u8 = 7;
pub const WINDOW_UPDATE: u8 = 8;
pub const CONTINUATION: u8 = 9;
/// Flags.
pub const END_STREAM: u8 = 1;
pub const END_HEADERS: u8 = 4;

/// A frame (section 4.1).
pub fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    [&length[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
}

/// Reads a frame: type, flags, stream and payload.
pub fn read_frame(from: &mut impl Read) -> io::Result<(u8, u8, u32, Vec<u8>)> {
    let mut header = [0; 9];
    from.read_exact(&mut header)?;
    let length = u32::from_be_bytes([0, header[0], header[1], header[2]]);
    let stream = u32::from_be_bytes(*header.last_chunk().unwrap());
    let mut payload = vec![0; length as usize];
    from.read_exact(&mut payload)?;
    Ok((header[3], header[4], stream, payload))
}

/// A number in groups of seven bits, the lowest first.
pub fn varint(mut number: usize) -> Vec<u8> {
    let mut bytes = Vec::new();
    while number >= 0x80 {
        bytes.push(u8::try_from(number % 0x80).unwrap() | 0x80);
        number /= 0x80;
    }
    bytes.push(u8::try_from(number).unwrap());
    bytes
}

/// A field as a literal without indexing (RFC 7541, section 6.2.2).
pub fn field(name: &str, value: &str) -> Vec<u8> {
    let text = |text: &str| {
        // A prefix of seven bits, and the rest of the number (section 5.1).
        let length = match text.len() {
            length @ 0..127 => varint(length),
            length => [vec![127], varint(length - 127)].concat(),
        };
        [&length, text.as_bytes()].concat()
    };
    [vec![0], text(name), text(value)].concat()
}

/// The fields of a request.
pub fn request(method: &str, more: &[(&str, &str)]) -> Vec<u8> {
    let pseudo =
        [(":method", method), (":scheme", "https"), (":path", "/"), (":authority", "localhost")];
    pseudo.iter().chain(more).flat_map(|(name, value)| field(name, value)).collect()
}

/// A frame from the proxy, or the end of the connection.
#[derive(Debug, PartialEq, Eq)]
pub enum Came {
    /// The first byte of a field block, and the stream.
    Response(u8, u32),
    /// The code of GOAWAY.
    GoAway(u32),
    /// The connection ended.
    Nothing,
    /// Stream and code.
    Reset(u32, u32),
}

pub struct Http2 {
    tls: StreamOwned<ClientConnection, TcpStream>,
}

impl Http2 {
    /// Connects, and has sent its preface.
    pub fn connect(pki: &Pki, address: SocketAddr, party: &Party) -> Self {
        let mut config = config(pki, party);
        config.alpn_protocols = vec![b"h2".to_vec()];
        let name = "localhost".try_into().unwrap();
        let tcp = TcpStream::connect(address).unwrap();
        tcp.set_read_timeout(Some(TIMEOUT)).unwrap();
        let tls = StreamOwned::new(ClientConnection::new(Arc::new(config), name).unwrap(), tcp);
        let mut client = Self { tls };
        client.send(PREFACE);
        client.send(&frame(SETTINGS, 0, 0, b""));
        client
    }

    pub fn send(&mut self, bytes: &[u8]) {
        let _ = self.tls.write_all(bytes).and_then(|()| self.tls.flush()); // the connection may be closed
    }

    /// Sends a GET on a stream.
    pub fn send_get(&mut self, stream: u32) {
        self.send(&frame(HEADERS, END_STREAM | END_HEADERS, stream, &request("GET", &[])));
    }

    /// The next frame: type, flags, stream and payload. `None` after the end of the connection.
    /// Fails if nothing arrives.
    pub fn frame(&mut self) -> Option<(u8, u8, u32, Vec<u8>)> {
        let frame = read_frame(&mut self.tls).inspect_err(|error| {
            assert_ne!(error.kind(), ErrorKind::WouldBlock, "the connection is still open");
        });
        frame.ok()
    }

    /// The socket below.
    pub fn tcp(&self) -> &TcpStream {
        self.tls.get_ref()
    }

    /// The next HEADERS, RST_STREAM or GOAWAY frame, or the end of the connection.
    pub fn next(&mut self) -> Came {
        while let Some((kind, _, stream, payload)) = self.frame() {
            let code = |at: usize| u32::from_be_bytes(payload[at..at + 4].try_into().unwrap());
            match kind {
                HEADERS => return Came::Response(payload[0], stream),
                RST_STREAM => return Came::Reset(stream, code(0)),
                GOAWAY => return Came::GoAway(code(4)),
                _ => {}
            }
        }
        Came::Nothing
    }
}

//! A server whose bytes the test reads and writes.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::mpsc::{Receiver, channel};

use super::TIMEOUT;
use super::http2::{DATA, END_STREAM, HEADERS, PING, RST_STREAM, SETTINGS, frame, read_frame};

/// A server that passes its connections to the test.
pub struct Server {
    pub address: SocketAddr,
    connections: Receiver<TcpStream>,
}

impl Server {
    pub fn start() -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let address = listener.local_addr().unwrap();
        let (sender, connections) = channel();
        std::thread::spawn(move || {
            // Ends when the test drops the receiver.
            listener.incoming().try_for_each(|tcp| sender.send(tcp.unwrap()))
        });
        Self { address, connections }
    }

    pub fn connection(&self) -> TcpStream {
        let tcp = self.connections.recv_timeout(TIMEOUT).unwrap();
        tcp.set_read_timeout(Some(TIMEOUT)).unwrap();
        tcp
    }

    /// The next connection, however late; `None` if there will be none.
    pub fn next(&self) -> Option<TcpStream> {
        self.connections.recv().ok()
    }

    /// An HTTP/2 connection after the exchange of prefaces.
    pub fn http2(&self) -> TcpStream {
        self.http2_with(&[])
    }

    /// An HTTP/2 connection with these settings of the server (RFC 9113, section 6.5.2).
    pub fn http2_with(&self, settings: &[(u16, u32)]) -> TcpStream {
        let mut tcp = self.connection();
        tcp.read_exact(&mut [0; 24]).unwrap(); // the preface
        tcp.write_all(&self::settings(settings)).unwrap();
        tcp
    }
}

/// A frame with these settings (RFC 9113, section 6.5.2).
pub fn settings(settings: &[(u16, u32)]) -> Vec<u8> {
    let settings = settings
        .iter()
        .flat_map(|(name, value)| [&name.to_be_bytes()[..], &value.to_be_bytes()].concat());
    frame(SETTINGS, 0, 0, &settings.collect::<Vec<_>>())
}

/// The next frame of a request: type, stream, whether it ends the request, payload.
pub fn next_frame(tcp: &mut TcpStream) -> (u8, u32, bool, Vec<u8>) {
    loop {
        let (kind, flags, stream, payload) = read_frame(tcp).unwrap();
        if [HEADERS, DATA, RST_STREAM].contains(&kind) {
            let ends = kind != RST_STREAM && flags & END_STREAM != 0;
            return (kind, stream, ends, payload);
        }
    }
}

/// Reads up to and including `end`.
pub fn read_until(tcp: &mut TcpStream, end: &str) -> String {
    let mut read = Vec::new();
    while !read.ends_with(end.as_bytes()) {
        let mut byte = [0];
        tcp.read_exact(&mut byte).unwrap();
        read.push(byte[0]);
    }
    String::from_utf8(read).unwrap()
}

/// Waits until the HTTP/2 peer has read all frames sent so far.
pub fn settle(tcp: &mut TcpStream) {
    tcp.write_all(&frame(PING, 0, 0, &[0; 8])).unwrap();
    loop {
        let mut header = [0; 9];
        tcp.read_exact(&mut header).unwrap();
        let length = u32::from_be_bytes([0, header[0], header[1], header[2]]);
        tcp.read_exact(&mut vec![0; length as usize]).unwrap();
        assert_ne!(header[3], HEADERS, "a request that was not expected");
        if header[3] == PING {
            return;
        }
    }
}

//! The questions of Envoy: calls of gRPC, as frames of HTTP/2.

use std::io::Write;
use std::os::unix::net::UnixStream;

use super::peer::Peer;
use super::support::grpc::{CHECK, field, prefixed};
use super::support::http_host::escaped_pem;
use super::support::http2::{
    DATA, END_HEADERS, END_STREAM, GOAWAY, HEADERS, PREFACE, RST_STREAM, SETTINGS, WINDOW_UPDATE,
    frame, read_frame,
};
use super::support::pki::Party;

/// A connection of Envoy, with the configuration of `deploy/authorizer/envoy`.
pub struct GrpcPeer {
    /// A `CheckRequest` with its prefix.
    message: Vec<u8>,
    stream: u32,
}

/// The request head that adds its fields to the dynamic table (RFC 7541, section 6.2.1).
fn first_head() -> Vec<u8> {
    let indexed = |name: &[u8], value: &str| {
        [name, &[u8::try_from(value.len()).unwrap()], value.as_bytes()].concat()
    };
    [
        vec![0x83, 0x86],            // `:method: POST`, `:scheme: http`
        indexed(&[0x44], CHECK),     // `:path`
        indexed(&[0x41], "keygate"), // `:authority`
        indexed(&[0x40, 2, b't', b'e'], "trailers"),
        indexed(&[0x5f], "application/grpc"), // `content-type`
    ]
    .concat()
}

/// The same head by the index of each field.
const HEAD: [u8; 6] = [0x83, 0x86, 0x80 | 65, 0x80 | 64, 0x80 | 63, 0x80 | 62];

impl GrpcPeer {
    pub fn about(client: &Party) -> Self {
        Self { message: prefixed(&check_request(&escaped_pem(&client.der))), stream: 1 }
    }
}

/// A `CheckRequest` with the attributes that Envoy 1.40 sends about a GET.
fn check_request(certificate: &str) -> Vec<u8> {
    let address = |address: &str, port: u8| {
        // `Address.socket_address` with `address` and `port_value`.
        field(1, &field(1, &[field(2, address.as_bytes()), vec![3 << 3, port]].concat()))
    };
    let source = [address("192.0.2.7", 99), field(4, b"CN=good"), field(5, certificate.as_bytes())];
    let destination = [address("192.0.2.1", 98), field(4, b"CN=localhost")];
    let accept = field(3, &[field(1, b"accept"), field(2, b"*/*")].concat());
    let http = [
        field(1, b"13359530607844510314"),
        field(2, b"GET"),
        accept,
        field(4, b"/a/path"),
        field(5, b"localhost"),
        field(6, b"https"),
        field(10, b"HTTP/1.1"),
    ];
    let time = field(1, &[1 << 3, 100, 2 << 3, 100]);
    let request = [time, field(2, &http.concat())];
    let attributes = [
        field(1, &source.concat()),
        field(2, &destination.concat()),
        field(4, &request.concat()),
        field(12, &field(1, b"localhost")),
    ];
    field(1, &attributes.concat())
}

impl Peer for GrpcPeer {
    fn greet(&mut self, stream: &mut UnixStream) {
        // No WINDOW_UPDATE is due within 2 GiB of responses.
        let window = (0x7fff_ffff_u32 - 0xffff).to_be_bytes();
        stream.write_all(PREFACE).unwrap();
        stream.write_all(&frame(SETTINGS, 0, 0, &[])).unwrap();
        stream.write_all(&frame(WINDOW_UPDATE, 0, 0, &window)).unwrap();
        loop {
            let (kind, flags, ..) = read_frame(stream).unwrap();
            if (kind, flags) == (SETTINGS, 0) {
                return stream.write_all(&frame(SETTINGS, 1, 0, &[])).unwrap();
            }
        }
    }

    fn ask(&mut self, bytes: &mut Vec<u8>) {
        let first = if self.stream == 1 { first_head() } else { Vec::new() };
        let head = if self.stream == 1 { &first[..] } else { &HEAD };
        bytes.extend(frame(HEADERS, END_HEADERS, self.stream, head));
        bytes.extend(frame(DATA, END_STREAM, self.stream, &self.message));
        self.stream += 2;
    }

    fn answers(&mut self, bytes: &mut Vec<u8>) -> usize {
        let (mut start, mut answers) = (0, 0);
        while let Some(header) = bytes[start..].first_chunk::<9>() {
            let length = u32::from_be_bytes([0, header[0], header[1], header[2]]);
            let end = start + 9 + length as usize;
            if end > bytes.len() {
                break;
            }
            assert!(!matches!(header[3], GOAWAY | RST_STREAM), "{:?}", &bytes[start..end]);
            let is_end = matches!(header[3], DATA | HEADERS) && header[4] & END_STREAM != 0;
            answers += usize::from(is_end);
            start = end;
        }
        bytes.drain(..start);
        answers
    }
}

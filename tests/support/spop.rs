//! A scripted HAProxy: the frames of SPOP 2.0, written and read apart from keygate's own code.

use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::Path;

use super::TIMEOUT;

pub const HAPROXY_HELLO: u8 = 1;
pub const HAPROXY_DISCONNECT: u8 = 2;
pub const NOTIFY: u8 = 3;
pub const AGENT_HELLO: u8 = 101;
pub const AGENT_DISCONNECT: u8 = 102;
pub const ACK: u8 = 103;

/// The flag of a frame that is not continued.
pub const FINAL: u32 = 1;

/// Frame size of HAProxy with its default `tune.bufsize`.
pub const FRAME_SIZE: u64 = 16_380;

/// A value with its type.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Value {
    Null,
    Bool(bool),
    Uint32(u64),
    Int64(u64),
    Ipv4([u8; 4]),
    Text(String),
    Binary(Vec<u8>),
    /// Bytes that follow as they are.
    Raw(Vec<u8>),
}

impl Value {
    pub fn text(text: &str) -> Self {
        Self::Text(text.to_owned())
    }

    fn written(&self) -> Vec<u8> {
        match self {
            Self::Null => vec![0],
            Self::Bool(value) => vec![1 | u8::from(*value) << 4],
            Self::Uint32(value) => [vec![3], integer(*value)].concat(),
            Self::Int64(value) => [vec![4], integer(*value)].concat(),
            Self::Ipv4(address) => [&[6][..], address].concat(),
            Self::Text(text) => [vec![8], string(text.as_bytes())].concat(),
            Self::Binary(bytes) => [vec![9], string(bytes)].concat(),
            Self::Raw(bytes) => bytes.clone(),
        }
    }
}

/// An integer of variable length (HAProxy, `doc/SPOE.txt`, section 3.1).
pub fn integer(value: u64) -> Vec<u8> {
    let byte = |value: u64| u8::try_from(value & 0xff).unwrap();
    if value < 240 {
        return vec![byte(value)];
    }
    let mut bytes = vec![byte(value | 0xf0)];
    let mut rest = (value - 240) >> 4;
    while rest >= 128 {
        bytes.push(byte(rest | 0x80));
        rest = (rest - 128) >> 7;
    }
    bytes.push(byte(rest));
    bytes
}

fn string(bytes: &[u8]) -> Vec<u8> {
    [integer(bytes.len() as u64), bytes.to_vec()].concat()
}

/// Names with values, as in HELLO and in the arguments of a message.
pub fn items(items: &[(&str, Value)]) -> Vec<u8> {
    items
        .iter()
        .flat_map(|(name, value)| [string(name.as_bytes()), value.written()].concat())
        .collect()
}

/// A frame with its length.
pub fn frame(kind: u8, flags: u32, stream: u64, number: u64, payload: &[u8]) -> Vec<u8> {
    let body =
        [&[kind][..], &flags.to_be_bytes(), &integer(stream), &integer(number), payload].concat();
    [&u32::try_from(body.len()).unwrap().to_be_bytes()[..], &body].concat()
}

/// A HELLO frame of HAProxy 2.6.
pub fn hello(frame_size: u64, health_check: bool) -> Vec<u8> {
    let mut list = vec![
        ("supported-versions", Value::text("2.0")),
        ("max-frame-size", Value::Uint32(frame_size)),
        ("capabilities", Value::text("pipelining,async")),
    ];
    match health_check {
        true => list.push(("healthcheck", Value::Bool(true))),
        false => list.push(("engine-id", Value::text("A1-B2"))),
    }
    frame(HAPROXY_HELLO, FINAL, 0, 0, &items(&list))
}

/// A message with its arguments.
pub fn message(name: &str, arguments: &[(&str, Value)]) -> Vec<u8> {
    let count = u8::try_from(arguments.len()).unwrap();
    [string(name.as_bytes()), vec![count], items(arguments)].concat()
}

/// A NOTIFY frame with one message.
pub fn notify(stream: u64, name: &str, arguments: &[(&str, Value)]) -> Vec<u8> {
    frame(NOTIFY, FINAL, stream, 1, &message(name, arguments))
}

/// The arguments of the deployed configuration for a client with this certificate.
pub fn arguments(certificate: &[u8]) -> Vec<(&'static str, Value)> {
    vec![
        ("cert", Value::Binary(certificate.to_vec())),
        ("used", Value::Bool(true)),
        ("verify", Value::Int64(0)),
        ("src", Value::Ipv4([192, 0, 2, 7])),
        ("sni", Value::text("localhost")),
    ]
}

/// A frame of the agent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Frame {
    pub kind: u8,
    pub stream: u64,
    pub number: u64,
    pub payload: Vec<u8>,
}

impl Frame {
    fn read(body: &[u8]) -> Self {
        let mut rest = &body[5..];
        assert_eq!(body[1..5], FINAL.to_be_bytes());
        let (stream, number) = (take_integer(&mut rest), take_integer(&mut rest));
        Self { kind: body[0], stream, number, payload: rest.to_vec() }
    }

    /// The items of HELLO or DISCONNECT.
    pub fn items(&self) -> BTreeMap<String, Value> {
        let mut rest = self.payload.as_slice();
        let mut items = BTreeMap::new();
        while !rest.is_empty() {
            let name = take_text(&mut rest);
            items.insert(name, take_value(&mut rest));
        }
        items
    }

    /// The status code of a DISCONNECT.
    pub fn status_code(&self) -> u64 {
        assert_eq!(self.kind, AGENT_DISCONNECT, "{self:?}");
        let items = self.items();
        assert!(matches!(items["message"], Value::Text(_)));
        let Value::Uint32(code) = items["status-code"] else { panic!("{items:?}") };
        code
    }

    /// The variables of an ACK by `scope.name`; `Null` for one that is removed.
    pub fn variables(&self) -> BTreeMap<String, Value> {
        assert_eq!(self.kind, ACK, "{self:?}");
        let mut rest = self.payload.as_slice();
        let mut variables = BTreeMap::new();
        while !rest.is_empty() {
            let [action, count, scope] = take::<3>(&mut rest);
            let scope = ["proc", "sess", "txn", "req", "res"][usize::from(scope)];
            let name = format!("{scope}.{}", take_text(&mut rest));
            let value = match (action, count) {
                (1, 3) => take_value(&mut rest),
                (2, 2) => Value::Null,
                _ => panic!("action {action} with {count} arguments"),
            };
            assert_eq!(variables.insert(name, value), None, "{self:?}");
        }
        assert!(!variables.is_empty(), "an ACK without action");
        variables
    }

    /// The text of a variable.
    pub fn text(&self, variable: &str) -> String {
        match self.variables().remove(variable) {
            Some(Value::Text(text)) => text,
            other => panic!("{variable} is {other:?} in {self:?}"),
        }
    }
}

fn take<const N: usize>(rest: &mut &[u8]) -> [u8; N] {
    let (array, after) = rest.split_first_chunk().unwrap();
    *rest = after;
    *array
}

fn take_integer(rest: &mut &[u8]) -> u64 {
    let [first] = take(rest);
    let mut value = u64::from(first);
    let mut shift = 4;
    while value >= 240 {
        let [byte] = take(rest);
        value += u64::from(byte) << shift;
        shift += 7;
        if byte < 128 {
            break;
        }
    }
    value
}

fn take_bytes(rest: &mut &[u8]) -> Vec<u8> {
    let length = usize::try_from(take_integer(rest)).unwrap();
    let (bytes, after) = rest.split_at(length);
    *rest = after;
    bytes.to_vec()
}

fn take_text(rest: &mut &[u8]) -> String {
    String::from_utf8(take_bytes(rest)).unwrap()
}

fn take_value(rest: &mut &[u8]) -> Value {
    let [kind] = take(rest);
    match kind {
        3 => Value::Uint32(take_integer(rest)),
        8 => Value::Text(take_text(rest)),
        _ => panic!("a value of type {kind}"),
    }
}

/// The stream of an asker.
pub trait AskerStream: Read + Write {
    fn end(&self) -> io::Result<()>;
}

impl AskerStream for UnixStream {
    fn end(&self) -> io::Result<()> {
        self.shutdown(Shutdown::Write)
    }
}

impl AskerStream for TcpStream {
    fn end(&self) -> io::Result<()> {
        self.shutdown(Shutdown::Write)
    }
}

/// One connection of a HAProxy that the test scripts.
pub struct SpopPeer<S = UnixStream> {
    stream: S,
}

impl SpopPeer {
    /// Connects, without HELLO.
    pub fn silent(socket: &Path) -> Self {
        let stream = UnixStream::connect(socket).unwrap();
        stream.set_read_timeout(Some(TIMEOUT)).unwrap();
        stream.set_write_timeout(Some(TIMEOUT)).unwrap();
        Self { stream }
    }

    /// Connects and exchanges HELLO with the frame size of HAProxy's default configuration.
    pub fn connect(socket: &Path) -> Self {
        let mut peer = Self::silent(socket);
        peer.exchange_hello(FRAME_SIZE);
        peer
    }
}

impl<S: AskerStream> SpopPeer<S> {
    /// A connection without HELLO.
    pub fn over(stream: S) -> Self {
        Self { stream }
    }

    /// Exchanges HELLO and returns the frame size that the agent announces.
    pub fn exchange_hello(&mut self, frame_size: u64) -> u64 {
        self.send(hello(frame_size, false));
        let hello = self.frame();
        assert_eq!((hello.kind, hello.stream, hello.number), (AGENT_HELLO, 0, 0));
        let items = hello.items();
        assert_eq!(items["version"], Value::text("2.0"));
        assert_eq!(items["capabilities"], Value::text("pipelining"));
        let Value::Uint32(size) = items["max-frame-size"] else { panic!("{items:?}") };
        size
    }

    pub fn send(&mut self, bytes: impl AsRef<[u8]>) {
        self.stream.write_all(bytes.as_ref()).unwrap();
    }

    /// Sends until the agent has closed the connection, or all is sent.
    pub fn try_send(&mut self, bytes: impl AsRef<[u8]>) {
        let _ = self.stream.write_all(bytes.as_ref()); // the agent may have closed
    }

    /// Asks about a request with these arguments.
    pub fn ask(&mut self, arguments: &[(&str, Value)]) -> Frame {
        self.send(notify(7, "keygate-request", arguments));
        let ack = self.frame();
        assert_eq!((ack.kind, ack.stream, ack.number), (ACK, 7, 1), "{ack:?}");
        ack
    }

    /// The action for the client with this certificate.
    pub fn action(&mut self, certificate: &[u8]) -> String {
        self.ask(&arguments(certificate)).text("txn.action")
    }

    /// The next frame.
    pub fn frame(&mut self) -> Frame {
        self.frame_or_end().unwrap().expect("the agent has closed the connection")
    }

    /// The next frame, or `None` at the end of the connection.
    pub fn frame_or_end(&mut self) -> io::Result<Option<Frame>> {
        let mut length = [0; 4];
        match self.stream.read_exact(&mut length) {
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
            read => read?,
        }
        let mut body = vec![0; usize::try_from(u32::from_be_bytes(length)).unwrap()];
        self.stream.read_exact(&mut body)?;
        Ok(Some(Frame::read(&body)))
    }

    /// The frames until the agent closes the connection. Asserts that the last is a DISCONNECT, and
    /// returns its status code.
    pub fn disconnected(&mut self) -> u64 {
        let code = self.frame().status_code();
        assert_eq!(self.frame_or_end().unwrap(), None);
        code
    }

    /// Closes the write side.
    pub fn finish(&self) {
        self.stream.end().unwrap();
    }

    pub fn stream(&self) -> &S {
        &self.stream
    }
}

//! The ClientHello: it is parsed for the server name, then the handshake gets the same bytes.

use std::future::poll_fn;
use std::io;
use std::sync::Arc;

use rustls::server::Acceptor;
use rustls::{NamedGroup, ServerConfig};
use tokio::io::{AsyncRead, AsyncWrite};

use super::TlsStream;
use super::buffer::{Buffer, SMALL};
use crate::permit::ledger::Holder;

/// Maximum payload of a record, in bytes (RFC 8446, section 5.1).
const MAX_PAYLOAD: usize = 16 << 10;
/// The content type of a record with handshake messages (RFC 8446, section 5.1).
const HANDSHAKE: u8 = 22;
/// The type of a ClientHello (section 4).
const CLIENT_HELLO: u8 = 1;
/// Length of a handshake message's header, in bytes: its type and its length.
const MESSAGE_HEADER: usize = 4;
/// A fatal `decode_error` alert (RFC 8446, section 6) as a TLS record, as rustls sends it for bytes
/// that are not TLS.
pub const DECODE_ERROR: [u8; 7] = [21, 3, 3, 0, 2, 2, 50];

/// A connection that begins with a ClientHello.
pub struct ClientHello<IO> {
    io: IO,
    /// Every byte that the client has sent, at most [`SMALL`]. Browsers send 2 KiB with a post-quantum
    /// key share; a session ticket is the rest.
    incoming: Buffer,
    holder: Holder,
    server_name: Option<Box<str>>,
    groups: Box<[NamedGroup]>,
}

/// A ClientHello that is not acceptable.
pub struct HelloError {
    /// The error of rustls.
    pub error: io::Error,
    /// The alert as a TLS record; empty if there is none.
    pub alert: Vec<u8>,
}

impl<IO: AsyncRead + AsyncWrite + Unpin> ClientHello<IO> {
    /// The bytes before the end of the handshake are held by `holder`.
    pub fn new(io: IO, holder: Holder) -> Self {
        Self {
            io,
            incoming: Buffer::new(holder),
            holder,
            server_name: None,
            groups: Box::default(),
        }
    }

    /// Waits for bytes of the client. Returns their number; 0 if the client has closed.
    ///
    /// # Errors
    /// Returns an error if the connection fails, or if there is no memory for its handshake.
    pub async fn read(&mut self) -> io::Result<usize> {
        poll_fn(|context| {
            let limit = SMALL.saturating_sub(self.incoming.len());
            let polled = self.incoming.poll_fill(&mut self.io, limit, context);
            if polled.is_pending() {
                self.incoming.settle(context)?; // only a client that sends pieces holds memory
            }
            polled
        })
        .await
    }

    /// The bytes that the client has sent.
    pub fn bytes(&self) -> &[u8] {
        self.incoming.filled()
    }

    /// Parses the bytes that were read. Returns whether the ClientHello is complete. rustls' parser
    /// copies the bytes, so it gets them at once and only when they are complete. It decides nothing
    /// that the handshake does not decide again.
    ///
    /// # Errors
    /// Returns an error if the bytes begin no acceptable ClientHello.
    pub fn parse(&mut self) -> Result<bool, HelloError> {
        let mut bytes = self.incoming.filled();
        if !is_complete(bytes) {
            if bytes.len() < SMALL {
                return Ok(false);
            }
            let error = io::Error::new(io::ErrorKind::InvalidData, "the ClientHello is too long");
            return Err(HelloError { error, alert: DECODE_ERROR.into() });
        }
        let mut acceptor = Acceptor::default();
        while !bytes.is_empty() {
            let read = acceptor.read_tls(&mut bytes);
            read.map_err(|error| HelloError { error, alert: Vec::new() })?;
            match acceptor.accept() {
                Ok(Some(accepted)) => {
                    let hello = accepted.client_hello();
                    self.server_name = hello.server_name().map(Box::from);
                    self.groups = hello.named_groups().unwrap_or_default().into();
                    return Ok(true);
                }
                Ok(None) => {}
                Err((error, mut message)) => {
                    let mut alert = Vec::new();
                    let _ = message.write_all(&mut alert); // writing to memory does not fail
                    let error = io::Error::new(io::ErrorKind::InvalidData, error);
                    return Err(HelloError { error, alert });
                }
            }
        }
        // rustls would take the bytes as the start of another message, and read them again each time.
        let error =
            io::Error::new(io::ErrorKind::InvalidData, "the first message is no ClientHello");
        Err(HelloError { error, alert: DECODE_ERROR.into() })
    }

    /// The server name of a complete ClientHello, in lower case.
    pub fn server_name(&self) -> Option<&str> {
        self.server_name.as_deref()
    }

    /// The groups of the key exchange that a complete ClientHello offers, in its order.
    pub fn groups(&self) -> &[NamedGroup] {
        &self.groups
    }

    /// The connection. The bytes that were read are lost.
    pub fn into_io(self) -> IO {
        self.io
    }

    /// Performs the handshake. rustls gets the bytes that the server name was taken from.
    ///
    /// # Errors
    /// Returns the connection with the error if the handshake fails. The alert has been sent.
    pub async fn accept(
        self,
        config: Arc<ServerConfig>,
    ) -> Result<Box<TlsStream<IO>>, (io::Error, IO)> {
        let Self { io, incoming, holder, server_name, groups: _ } = self;
        match TlsStream::new(io, incoming, server_name, config, holder) {
            Ok(stream) => TlsStream::handshake(Box::new(stream)).await,
            Err((error, io)) => Err((io::Error::other(error), io)),
        }
    }
}

/// Whether all of a ClientHello has arrived, or bytes that rustls rejects. Looks at the headers of the
/// records and of the message, and at nothing else.
fn is_complete(mut bytes: &[u8]) -> bool {
    let (mut received, mut header) = (0_usize, 0_u32);
    while let [kind, rest @ ..] = bytes {
        let [_, _, high, low, payload @ ..] = rest else { return *kind != HANDSHAKE };
        let size: usize = u16::from_be_bytes([*high, *low]).into();
        if *kind != HANDSHAKE || size == 0 || size > MAX_PAYLOAD {
            return true; // rustls rejects it
        }
        let part = payload.get(..size).unwrap_or(payload);
        for byte in part.iter().take(MESSAGE_HEADER.saturating_sub(received)) {
            header = header << 8 | u32::from(*byte);
        }
        received = received.saturating_add(part.len());
        if received >= MESSAGE_HEADER {
            let [kind, length @ ..] = header.to_be_bytes();
            let length = length.iter().fold(0, |length, byte| length << 8 | usize::from(*byte));
            if kind != CLIENT_HELLO || received >= MESSAGE_HEADER.saturating_add(length) {
                return true;
            }
        }
        let Some(next) = payload.get(size..) else { return false };
        bytes = next;
    }
    false
}

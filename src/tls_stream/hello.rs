//! The ClientHello: it is parsed for the server name, then the handshake gets the same bytes.

use std::future::poll_fn;
use std::io;
use std::sync::Arc;

use rustls::ServerConfig;
use rustls::server::Acceptor;
use tokio::io::{AsyncRead, AsyncWrite};

use super::TlsStream;
use super::buffer::{BUFFER, Buffer};

/// A connection that begins with a ClientHello.
pub(crate) struct ClientHello<IO> {
    io: IO,
    /// Every byte that the client has sent, at most one [`BUFFER`].
    incoming: Buffer,
    /// How many of them `acceptor` has.
    parsed: usize,
    /// rustls' parser. It decides nothing that the handshake does not decide again. Boxed, because
    /// the connection moves from stage to stage.
    acceptor: Box<Acceptor>,
    server_name: Option<Box<str>>,
}

/// A ClientHello that is not acceptable.
pub(crate) struct HelloError {
    pub(crate) error: io::Error,
    /// The alert as a TLS record; empty if there is none.
    pub(crate) alert: Vec<u8>,
}

impl<IO: AsyncRead + AsyncWrite + Unpin> ClientHello<IO> {
    pub(crate) fn new(io: IO) -> Self {
        let acceptor = Box::default();
        Self { io, incoming: Buffer::default(), parsed: 0, acceptor, server_name: None }
    }

    /// Waits for bytes of the client. Returns their number; 0 if the client has closed.
    ///
    /// # Errors
    /// Returns an error if the connection fails, or if the ClientHello is too long.
    pub(crate) async fn read(&mut self) -> io::Result<usize> {
        poll_fn(|context| {
            let polled = self.incoming.poll_fill(&mut self.io, BUFFER, context);
            self.incoming.settle();
            polled
        })
        .await
    }

    /// The bytes that the client has sent.
    pub(crate) fn bytes(&self) -> &[u8] {
        self.incoming.filled()
    }

    /// Parses the bytes that were read. Returns whether the ClientHello is complete.
    ///
    /// # Errors
    /// Returns an error if the bytes begin no acceptable ClientHello.
    pub(crate) fn parse(&mut self) -> Result<bool, HelloError> {
        let mut rest = self.incoming.filled().get(self.parsed..).unwrap_or_default();
        while !rest.is_empty() {
            let read = self.acceptor.read_tls(&mut rest);
            read.map_err(|error| HelloError { error, alert: Vec::new() })?;
            match self.acceptor.accept() {
                Ok(Some(accepted)) => {
                    self.server_name = accepted.client_hello().server_name().map(Box::from);
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
        self.parsed = self.incoming.len();
        Ok(false)
    }

    /// The server name of a complete ClientHello, in lower case.
    pub(crate) fn server_name(&self) -> Option<&str> {
        self.server_name.as_deref()
    }

    pub(crate) fn into_io(self) -> IO {
        self.io
    }

    /// Performs the handshake. rustls gets the bytes that the server name was taken from.
    ///
    /// # Errors
    /// Returns the connection with the error if the handshake fails. The alert has been sent.
    pub(crate) async fn accept(
        self,
        config: Arc<ServerConfig>,
    ) -> Result<Box<TlsStream<IO>>, (io::Error, IO)> {
        let Self { io, incoming, server_name, .. } = self;
        match TlsStream::new(io, incoming, server_name, config) {
            Ok(stream) => TlsStream::handshake(Box::new(stream)).await,
            Err((error, io)) => Err((io::Error::other(error), io)),
        }
    }
}

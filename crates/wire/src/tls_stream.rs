//! TLS on a client's connection: rustls does the protocol, [`TlsStream`] has the buffers.
//!
//! An idle connection has no buffer. A read takes all bytes that the socket has, up to
//! `Buffer::poll_limit`, into a buffer that the worker lends, and decrypts them there. A write is
//! encrypted into such a buffer. Session tickets wait for the first response, or until the reader
//! waits for the client.
//!
//! `session` has every call of rustls, `hello` the ClientHello that selects the service,
//! `buffer` the buffers. Certificates are verified by the configuration, as in each rustls
//! server.

mod buffer;
mod hello;
mod session;

use std::future::poll_fn;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::{Buf, BytesMut};
use rustls::{CommonState, Error, ProtocolVersion, ServerConfig};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

pub use self::buffer::OVER_SHARE;
use self::buffer::{Buffer, FEW};
pub use self::hello::{ClientHello, DECODE_ERROR, HelloError};
use self::session::{MAX_RECORD, Processed, Session};
use crate::permit::ledger::Holder;
use crate::permit::{BufferClass, ClientKey};

/// The server's end of a TLS connection.
pub struct TlsStream<IO> {
    io: IO,
    session: Session,
    /// Decrypted data that the last reader had no space for, or that was received before there is a
    /// reader: at most the rest of a record, or 8 KiB and a record of a client that is held.
    unread: BytesMut,
    /// The server name of the ClientHello. rustls' unbuffered interface does not return it.
    server_name: Option<Box<str>>,
    /// The socket takes no more at the moment.
    is_blocked: bool,
    /// The client has closed the TCP connection.
    has_eof: bool,
}

impl<IO: AsyncRead + AsyncWrite + Unpin> TlsStream<IO> {
    fn new(
        io: IO,
        incoming: Buffer,
        server_name: Option<Box<str>>,
        config: Arc<ServerConfig>,
        holder: Holder,
    ) -> Result<Self, (Error, IO)> {
        match Session::new(config, incoming, holder) {
            Ok(session) => Ok(Self {
                io,
                session,
                unread: BytesMut::new(),
                server_name,
                is_blocked: false,
                has_eof: false,
            }),
            Err(error) => Err((error, io)),
        }
    }

    /// The connection below TLS.
    pub fn io(&self) -> &IO {
        &self.io
    }

    /// The connection below TLS, without a close of TLS.
    pub fn into_io(self) -> IO {
        self.io
    }

    /// Counts the memory of the buffers for a client that has proved its key.
    pub fn set_client(&mut self, client: ClientKey) {
        self.session.incoming.set_holder(Holder { client, class: BufferClass::Tls });
        self.session.outgoing.set_holder(Holder { client, class: BufferClass::Response });
    }

    /// The facts that the handshake has negotiated.
    pub fn state(&self) -> &CommonState {
        self.session.state()
    }

    /// The server name that the client asked for, in lower case.
    pub fn server_name(&self) -> Option<&str> {
        self.server_name.as_deref()
    }

    async fn handshake(mut stream: Box<Self>) -> Result<Box<Self>, (io::Error, IO)> {
        let Err(error) = poll_fn(|context| stream.poll_handshake(context)).await else {
            return Ok(stream);
        };
        if stream.session.has_failed {
            // The alert explains the error to the client; a client that has closed needs none.
            let _ = poll_fn(|context| stream.poll_send(context)).await;
        }
        Err((error, stream.io))
    }

    fn poll_handshake(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        while self.session.state().is_handshaking() {
            if self.process(context, &mut None)? != Processed::NeedsBytes {
                continue;
            }
            // A client that reads nothing may still send its next message.
            if let Poll::Ready(Err(error)) = self.poll_send(context) {
                return Poll::Ready(Err(error));
            }
            if ready!(self.poll_receive(context, FEW))? == 0 {
                let error = io::Error::new(io::ErrorKind::UnexpectedEof, "tls handshake eof");
                return Poll::Ready(Err(error));
            }
        }
        // Tickets of TLS 1.3 wait for the first response. In TLS 1.2 the client waits for the end.
        if self.session.state().protocol_version() != Some(ProtocolVersion::TLSv1_3)
            && self.poll_send(context)?.is_pending()
        {
            self.session.incoming.settle(context)?;
            return Poll::Pending;
        }
        Poll::Ready(Ok(())) // bytes behind the handshake count for the client
    }

    /// Processes received bytes. Data goes to `reader` if there is one, and waits otherwise.
    fn process(
        &mut self,
        context: &mut Context<'_>,
        reader: &mut Option<&mut ReadBuf<'_>>,
    ) -> io::Result<Processed> {
        let unread = &mut self.unread;
        let processed = self.session.process(|data| {
            let count = reader.as_mut().map_or(0, |reader| {
                let count = data.len().min(reader.remaining());
                reader.put_slice(data.get(..count).unwrap_or_default());
                count
            });
            unread.extend_from_slice(data.get(count..).unwrap_or_default());
        });
        processed.map_err(|error| {
            let _ = self.poll_send(context); // the alert; the next write meets an error
            io::Error::new(io::ErrorKind::InvalidData, error)
        })
    }

    /// Waits for bytes from the socket, and reads `limit` bytes at most. 0 if the client has
    /// closed.
    fn poll_receive(&mut self, context: &mut Context<'_>, limit: usize) -> Poll<io::Result<usize>> {
        let incoming = &mut self.session.incoming;
        let polled = incoming.poll_fill(&mut self.io, limit, context);
        match polled {
            Poll::Ready(Ok(0)) => self.has_eof = true,
            Poll::Ready(Ok(_)) => {}
            Poll::Ready(Err(_)) | Poll::Pending => incoming.settle(context)?,
        }
        polled
    }

    /// Sends the records that wait. Ready when the socket has taken all.
    fn poll_send(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let outgoing = &mut self.session.outgoing;
        while !outgoing.is_empty() {
            match Pin::new(&mut self.io).poll_write(context, outgoing.filled()) {
                Poll::Ready(Ok(0)) => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                Poll::Ready(Ok(count)) => outgoing.consume(count),
                Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
                Poll::Pending => {
                    self.is_blocked = true;
                    outgoing.settle(context)?;
                    return Poll::Pending;
                }
            }
        }
        outgoing.settle(context)?;
        self.is_blocked = false;
        Poll::Ready(Ok(()))
    }

    /// Ready when the client's share of the memory permits another read.
    pub fn poll_read_limit(&mut self, context: &Context<'_>) -> Poll<()> {
        self.session.incoming.poll_limit(context).map(drop)
    }

    /// Encrypts bytes for the next flush, and writes nothing to the socket. Returns how many bytes
    /// the buffer took; 0 if it is full.
    ///
    /// # Errors
    /// Returns an error if the TLS connection has failed.
    pub fn buffer_vectored(&mut self, pieces: &[IoSlice<'_>]) -> io::Result<usize> {
        self.session.encrypt(pieces)
    }

    /// Receives one record with data for a later reader. Ready when data was received, or when the
    /// client has closed its side.
    ///
    /// # Errors
    /// Returns an error if the connection fails or the client breaks the protocol.
    pub fn poll_prefetch(&mut self, context: &mut Context<'_>) -> Poll<io::Result<Prefetched>> {
        loop {
            let progress = self.process(context, &mut None)?;
            let is_closed = self.session.has_received_close || self.has_eof;
            if progress == Processed::Delivered || is_closed {
                self.session.incoming.settle(context)?;
                return Poll::Ready(Ok(Prefetched { waiting: self.unread.len(), is_closed }));
            }
            let _ = self.poll_send(context); // tickets; the next write meets the error
            ready!(self.poll_receive(context, MAX_RECORD))?;
        }
    }
}

/// The result of [`TlsStream::poll_prefetch`].
#[derive(Debug, Clone, Copy)]
pub struct Prefetched {
    /// Bytes that wait for a reader.
    pub waiting: usize,
    /// The client has closed its side.
    pub is_closed: bool,
}

impl<IO: AsyncRead + AsyncWrite + Unpin> AsyncRead for TlsStream<IO> {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        reader: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let before = reader.filled().len();
        if reader.remaining() == 0 {
            return Poll::Ready(Ok(()));
        }
        let count = this.unread.len().min(reader.remaining());
        reader.put_slice(this.unread.get(..count).unwrap_or_default());
        this.unread.advance(count);
        if this.unread.is_empty() {
            this.unread = BytesMut::new(); // frees the memory
        }
        loop {
            while reader.remaining() > 0
                && this.process(context, &mut Some(reader))? == Processed::Delivered
            {}
            if reader.filled().len() > before {
                this.session.incoming.settle(context)?;
                return Poll::Ready(Ok(()));
            }
            if this.session.has_received_close {
                return Poll::Ready(Ok(()));
            }
            if this.has_eof {
                let message = "the client closed the connection without close_notify";
                return Poll::Ready(Err(io::Error::new(io::ErrorKind::UnexpectedEof, message)));
            }
            let limit = reader.remaining().saturating_add(MAX_RECORD);
            if this.poll_receive(context, limit)?.is_pending() {
                let _ = this.poll_send(context); // the next write meets the error
                return Poll::Pending;
            }
        }
    }
}

impl<IO: AsyncRead + AsyncWrite + Unpin> AsyncWrite for TlsStream<IO> {
    crate::forward_io!(vectored poll_write);

    /// Encrypts and sends as much as one large buffer holds.
    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        pieces: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        if pieces.iter().all(|piece| piece.is_empty()) {
            return Poll::Ready(Ok(0));
        }
        if this.is_blocked {
            ready!(this.poll_send(context))?;
        }
        loop {
            let count = this.session.encrypt(pieces)?;
            let sent = this.poll_send(context)?;
            if count > 0 {
                return Poll::Ready(Ok(count)); // the next call or flush waits for the socket
            }
            ready!(sent); // the buffer was full
        }
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        ready!(this.poll_send(context))?;
        Pin::new(&mut this.io).poll_flush(context)
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        this.session.close();
        ready!(this.poll_send(context))?;
        match ready!(Pin::new(&mut this.io).poll_shutdown(context)) {
            // A client that is gone needs no close.
            Err(error) if error.kind() == io::ErrorKind::NotConnected => Poll::Ready(Ok(())),
            closed => Poll::Ready(closed),
        }
    }
}

#[cfg(test)]
mod tests;

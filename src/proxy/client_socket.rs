//! The TCP socket below a client's connection: whether the client has vanished or closed, and a
//! close that cannot look complete.

use std::io::{self, IoSlice};
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use socket2::SockRef;
use tokio::io::{AsyncRead, AsyncWrite, Interest, ReadBuf};
use tokio::net::TcpStream;
use tracing::debug;

use super::io_events::{IoEvents, WithIoEvents};
use crate::keep_alive::set_unacknowledged;
use crate::tls_stream::TlsStream;

/// A client's connection over TCP.
pub(crate) trait ClientIo: AsyncRead + AsyncWrite + Unpin + 'static {
    /// The socket below.
    fn tcp(&self) -> &TcpStream;

    /// Encrypts bytes for the next flush, and writes nothing to the socket. Returns how many bytes
    /// the buffer took; 0 if it is full.
    ///
    /// # Errors
    /// Returns an error if the TLS connection has failed.
    fn buffer_vectored(&mut self, slices: &[IoSlice<'_>]) -> io::Result<usize>;
}

impl ClientIo for TlsStream<TcpStream> {
    fn tcp(&self) -> &TcpStream {
        self.io()
    }

    fn buffer_vectored(&mut self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        Self::buffer_vectored(self, slices)
    }
}

impl<IO: ClientIo + ?Sized> ClientIo for Box<IO> {
    fn tcp(&self) -> &TcpStream {
        (**self).tcp()
    }

    fn buffer_vectored(&mut self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        (**self).buffer_vectored(slices)
    }
}

impl<IO: ClientIo, O: IoEvents + Unpin + 'static> ClientIo for WithIoEvents<IO, O>
where
    Self: AsyncRead + AsyncWrite,
{
    fn tcp(&self) -> &TcpStream {
        self.get_ref().tcp()
    }

    fn buffer_vectored(&mut self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        self.buffered(|io| io.buffer_vectored(slices))
    }
}

/// Ends the connection if its client acknowledges nothing for `timeout`. The socket has inherited
/// this option and TCP keep-alive from the listening socket; only a service with another timeout
/// than `inherited` needs a system call.
pub(crate) fn detect_vanished(tcp: &TcpStream, inherited: Duration, timeout: Duration) {
    if timeout == inherited {
        return;
    }
    if let Err(error) = set_unacknowledged(tcp, timeout) {
        debug!(%error, "keep-alive not set"); // the client has closed: the next read fails
    }
}

/// Makes the close of the socket a reset. The end of a response without a length is the end of the
/// connection, and many clients take a FIN for it without a `close_notify` (Python's `ssl` by
/// default).
pub(crate) fn reset_on_close(tcp: &TcpStream) {
    // Fails only if the client has closed.
    let _ = SockRef::from(tcp).set_linger(Some(Duration::ZERO));
}

/// Whether the client has closed its side, although bytes before the FIN may be unread.
fn has_closed(tcp: &TcpStream) -> bool {
    let ready = pin!(tcp.ready(Interest::READABLE));
    // Polled once, for the state that the runtime has from the kernel.
    match ready.poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(Ok(ready)) => ready.is_read_closed(),
        Poll::Ready(Err(_)) | Poll::Pending => false,
    }
}

/// Decides when a connection looks for the close of its client.
pub(crate) trait CloseCheck {
    /// Whether a check is due, once.
    fn take_due(&self) -> bool;
}

/// A connection whose flush fails if the client has closed and a check is due.
///
/// hyper notices the close of a client only when it reads, and it does not read while a pipelined
/// request waits in its buffer.
#[derive(Debug)]
pub(crate) struct WithCloseCheck<IO, C> {
    io: IO,
    check: Rc<C>,
}

impl<IO, C> WithCloseCheck<IO, C> {
    pub(crate) fn new(io: IO, check: Rc<C>) -> Self {
        Self { io, check }
    }

    pub(crate) fn into_inner(self) -> IO {
        self.io
    }
}

impl<IO: ClientIo, C: CloseCheck + 'static> ClientIo for WithCloseCheck<IO, C> {
    fn tcp(&self) -> &TcpStream {
        self.io.tcp()
    }

    fn buffer_vectored(&mut self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        self.io.buffer_vectored(slices)
    }
}

impl<IO: AsyncRead + Unpin, C> AsyncRead for WithCloseCheck<IO, C> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_read(context, buffer)
    }
}

impl<IO: ClientIo, C: CloseCheck> AsyncWrite for WithCloseCheck<IO, C> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.check.take_due() && has_closed(self.io.tcp()) {
            return Poll::Ready(Err(io::ErrorKind::ConnectionAborted.into()));
        }
        Pin::new(&mut self.io).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(context)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write_vectored(context, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }
}

//! The TCP socket below a client's connection: whether the client has vanished or closed, and a
//! close that cannot look complete.

use std::io::{self, IoSlice};
use std::pin::pin;
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;

use crate::io_events::{IoEvents, WithIoEvents};
use crate::keep_alive::set_unacknowledged;
use socket2::SockRef;
use tokio::io::{AsyncRead, AsyncWrite, Interest};
use tokio::net::TcpStream;
use tracing::debug;

use crate::tls_stream::TlsStream;

/// A client's connection over TCP.
pub trait ClientIo: AsyncRead + AsyncWrite + Unpin + 'static {
    /// The socket below.
    fn tcp(&self) -> &TcpStream;

    /// Ready when a read may meet bytes or an error. The task is woken by the socket, or when the
    /// client has its share of the memory again.
    fn poll_readable(&mut self, context: &mut Context<'_>) -> Poll<()> {
        self.tcp().poll_read_ready(context).map(drop)
    }

    /// Encrypts bytes for the next flush, and writes nothing to the socket. Returns how many bytes
    /// the buffer took; 0 if it is full.
    ///
    /// # Errors
    /// Returns an error if the TLS connection has failed.
    fn buffer_vectored(&mut self, slices: &[IoSlice<'_>]) -> io::Result<usize>;
}

impl ClientIo for Box<TlsStream<TcpStream>> {
    fn tcp(&self) -> &TcpStream {
        self.io()
    }

    fn poll_readable(&mut self, context: &mut Context<'_>) -> Poll<()> {
        ready!(self.poll_read_limit(context));
        self.io().poll_read_ready(context).map(drop)
    }

    fn buffer_vectored(&mut self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        (**self).buffer_vectored(slices)
    }
}

impl<IO: ClientIo, O: IoEvents + 'static> ClientIo for WithIoEvents<IO, O>
where
    Self: AsyncRead + AsyncWrite,
{
    fn tcp(&self) -> &TcpStream {
        self.get_ref().tcp()
    }

    fn poll_readable(&mut self, context: &mut Context<'_>) -> Poll<()> {
        self.get_mut().poll_readable(context)
    }

    fn buffer_vectored(&mut self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        self.buffered(|io| io.buffer_vectored(slices))
    }
}

/// Ends the connection if its client acknowledges nothing for `timeout`. The socket has inherited
/// this option and TCP keep-alive from the listening socket; only a service with another timeout
/// than `inherited` needs a system call.
pub fn detect_vanished(tcp: &TcpStream, inherited: Duration, timeout: Duration) {
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
pub fn reset_on_close(tcp: &TcpStream) {
    // Fails only if the client has closed.
    let _ = SockRef::from(tcp).set_linger(Some(Duration::ZERO));
}

/// Whether the client has closed its side, although bytes before the FIN may be unread. hyper notices
/// the close only when it reads, and it does not read while a pipelined request is in its buffer.
pub fn has_closed(tcp: &TcpStream) -> bool {
    let ready = pin!(tcp.ready(Interest::READABLE));
    // Polled once, for the state that the runtime has from the kernel.
    match ready.poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(Ok(ready)) => ready.is_read_closed(),
        Poll::Ready(Err(_)) | Poll::Pending => false,
    }
}

//! A stream of HTTP/2 that carries bytes both ways (RFC 8441).

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use h2::{RecvStream, SendStream};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// More is not taken at once, in bytes.
const MOST: usize = 16 << 10;

/// A stream that carries bytes. Dropped before both ways have ended, it is reset.
#[derive(Debug)]
pub(in crate::proxy) struct Duplex {
    send: SendStream<Bytes>,
    receive: RecvStream,
    /// What was received and has not been read.
    received: Bytes,
}

impl Duplex {
    pub(in crate::proxy) fn new(send: SendStream<Bytes>, receive: RecvStream) -> Self {
        Self { send, receive, received: Bytes::new() }
    }
}

impl AsyncRead for Duplex {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        while self.received.is_empty() {
            match ready!(self.receive.poll_data(context)) {
                Some(Ok(received)) => self.received = received,
                Some(Err(error)) => return Poll::Ready(Err(as_io(error))),
                None => return Poll::Ready(Ok(())),
            }
        }
        let count = self.received.len().min(buffer.remaining());
        buffer.put_slice(&self.received.split_to(count));
        // An error is that the connection has ended, which the next read says.
        let _ = self.receive.flow_control().release_capacity(count);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Duplex {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        if bytes.is_empty() {
            return Poll::Ready(Ok(0));
        }
        self.send.reserve_capacity(bytes.len().min(MOST));
        while self.send.capacity() == 0 {
            match ready!(self.send.poll_capacity(context)) {
                Some(capacity) => capacity.map_err(as_io)?,
                None => return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into())),
            };
        }
        let room = self.send.capacity().min(MOST);
        let piece = bytes.get(..room).unwrap_or(bytes);
        self.send.send_data(Bytes::copy_from_slice(piece), false).map_err(as_io)?;
        Poll::Ready(Ok(piece.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(())) // what was taken is sent without being asked
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, _context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(self.send.send_data(Bytes::new(), true).map_err(as_io))
    }
}

fn as_io(error: h2::Error) -> io::Error {
    if error.is_io() {
        return error.into_io().unwrap_or_else(|| io::ErrorKind::BrokenPipe.into());
    }
    io::Error::new(io::ErrorKind::ConnectionReset, error)
}

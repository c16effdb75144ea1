//! An HTTP/2 stream that carries bytes in both directions (RFC 8441).

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use h2::{RecvStream, SendStream};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::http2::send_window::WindowShare;

/// Maximum size of one write, in bytes.
const MAX_WRITE: usize = 16 << 10;

/// A stream that carries bytes. It is reset if it is dropped before both directions have ended.
#[derive(Debug)]
pub struct Http2Duplex {
    send: SendStream<Bytes>,
    receive: RecvStream,
    /// The share in the window of the connection; `None`: all of it.
    share: Option<WindowShare>,
    /// Bytes that were received and not read yet.
    received: Bytes,
}

impl Http2Duplex {
    /// The stream with these two halves.
    pub fn new(send: SendStream<Bytes>, receive: RecvStream) -> Self {
        Self { send, receive, share: None, received: Bytes::new() }
    }

    /// Sends within a share of the connection's window.
    pub fn with_share(self, share: WindowShare) -> Self {
        Self { share: Some(share), ..self }
    }
}

impl AsyncRead for Http2Duplex {
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
        // Fails if the connection has ended, which the next read returns.
        let _ = self.receive.flow_control().release_capacity(count);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Http2Duplex {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        if bytes.is_empty() {
            return Poll::Ready(Ok(0));
        }
        // Waiting for room registers no waker for a reset.
        if self.send.poll_reset(context).map_err(as_io)?.is_ready() {
            return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
        }
        let share = match &self.share {
            Some(share) => ready!(share.poll_room(context)),
            None => MAX_WRITE,
        };
        self.send.reserve_capacity(bytes.len().min(MAX_WRITE).min(share));
        while self.send.capacity() == 0 {
            match ready!(self.send.poll_capacity(context)) {
                Some(capacity) => capacity.map_err(as_io)?,
                None => return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into())),
            };
        }
        let room = self.send.capacity().min(MAX_WRITE);
        let piece = bytes.get(..room).unwrap_or(bytes);
        self.send.send_data(Bytes::copy_from_slice(piece), false).map_err(as_io)?;
        if let Some(share) = &self.share {
            share.record_queued(piece.len());
        }
        Poll::Ready(Ok(piece.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(())) // h2 sends without a flush
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

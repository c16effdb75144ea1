//! A connection, and somebody who is told when bytes go through it.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// Who is told.
pub(super) trait Observer {
    /// These bytes were read; never none.
    fn has_read(&self, bytes: &[u8]);
    /// There is nothing more to be read.
    fn has_ended(&self) {}
    /// So many bytes were written.
    fn has_written(&self, _count: usize) {}
}

/// A connection that is observed.
#[derive(Debug)]
pub(super) struct Observed<IO, O> {
    io: IO,
    observer: O,
}

impl<IO, O> Observed<IO, O> {
    pub(super) fn new(io: IO, observer: O) -> Self {
        Self { io, observer }
    }

    pub(super) fn get_ref(&self) -> &IO {
        &self.io
    }

    pub(super) fn into_inner(self) -> IO {
        self.io
    }
}

impl<IO: AsyncRead + Unpin, O: Observer + Unpin> AsyncRead for Observed<IO, O> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let has_room = buffer.remaining() > 0;
        let polled = Pin::new(&mut self.io).poll_read(context, buffer);
        match buffer.filled().get(before..) {
            Some(bytes) if !bytes.is_empty() => self.observer.has_read(bytes),
            _ if has_room && matches!(polled, Poll::Ready(Ok(()))) => self.observer.has_ended(),
            _ => {}
        }
        polled
    }
}

impl<IO: AsyncWrite + Unpin, O: Observer + Unpin> AsyncWrite for Observed<IO, O> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.io).poll_write(context, bytes);
        if let Poll::Ready(Ok(count)) = polled {
            self.observer.has_written(count);
        }
        polled
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(context)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.io).poll_write_vectored(context, slices);
        if let Poll::Ready(Ok(count)) = polled {
            self.observer.has_written(count);
        }
        polled
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }
}

//! A connection that reports its reads and writes.

use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::forward_io;

/// Receives the events of a connection.
pub trait IoEvents {
    /// Ready when the connection may be read. The task is woken otherwise.
    fn poll_may_read(&self, _context: &Context<'_>) -> Poll<()> {
        Poll::Ready(())
    }
    /// Some bytes were read; never none.
    fn on_read(&self, bytes: &[u8]);
    /// The peer has closed its write side.
    fn on_eof(&self) {}
    /// `count` bytes were written.
    fn on_write(&self, _count: usize) {}
    /// The bytes of [`Self::on_write`], unless they were only buffered.
    fn on_written(&self, _bytes: &[u8]) {}
    /// All bytes have been handed to the kernel.
    fn on_flush(&self) {}
    /// Bytes wait, because the kernel takes no more at the moment.
    fn on_write_blocked(&self) {}
}

/// A connection that reports to `events`.
#[derive(Debug)]
pub struct WithIoEvents<IO, O> {
    io: IO,
    events: Rc<O>,
}

impl<IO, O> WithIoEvents<IO, O> {
    /// Reports the reads and writes of `io` to `events`.
    pub fn new(io: IO, events: Rc<O>) -> Self {
        Self { io, events }
    }

    /// The connection.
    pub fn get_ref(&self) -> &IO {
        &self.io
    }

    /// The connection. Its own reads and writes are not reported.
    pub fn get_mut(&mut self) -> &mut IO {
        &mut self.io
    }
}

impl<IO, O: IoEvents> WithIoEvents<IO, O> {
    /// Reports the bytes that `write` adds to a buffer of the connection as written.
    pub fn buffered(
        &mut self,
        write: impl FnOnce(&mut IO) -> io::Result<usize>,
    ) -> io::Result<usize> {
        let count = write(&mut self.io)?;
        if count > 0 {
            self.events.on_write(count);
        }
        Ok(count)
    }

    fn report<T>(&self, polled: &Poll<io::Result<T>>, written: impl Fn(&O, &T)) {
        match polled {
            Poll::Ready(Ok(value)) => written(&self.events, value),
            Poll::Ready(Err(_)) => {}
            Poll::Pending => self.events.on_write_blocked(),
        }
    }
}

impl<IO: AsyncRead + Unpin, O: IoEvents> AsyncRead for WithIoEvents<IO, O> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        ready!(self.events.poll_may_read(context));
        let before = buffer.filled().len();
        let has_room = buffer.remaining() > 0;
        let polled = Pin::new(&mut self.io).poll_read(context, buffer);
        match buffer.filled().get(before..) {
            Some(bytes) if !bytes.is_empty() => self.events.on_read(bytes),
            _ if has_room && matches!(polled, Poll::Ready(Ok(()))) => self.events.on_eof(),
            _ => {}
        }
        polled
    }
}

impl<IO: AsyncWrite + Unpin, O: IoEvents> AsyncWrite for WithIoEvents<IO, O> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.io).poll_write(context, bytes);
        self.report(&polled, |events, count| {
            events.on_write(*count);
            events.on_written(bytes.get(..*count).unwrap_or(bytes));
        });
        polled
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let polled = Pin::new(&mut self.io).poll_flush(context);
        self.report(&polled, |events, ()| events.on_flush());
        polled
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let polled = Pin::new(&mut self.io).poll_shutdown(context);
        self.report(&polled, |_, ()| {});
        polled
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.io).poll_write_vectored(context, slices);
        self.report(&polled, |events, count| {
            events.on_write(*count);
            let mut left = *count;
            for slice in slices {
                let written = slice.get(..left).unwrap_or(slice);
                events.on_written(written);
                left = left.saturating_sub(written.len());
            }
        });
        polled
    }

    forward_io!((io) is_write_vectored);
}

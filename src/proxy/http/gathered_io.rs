//! The connection below h2, which gathers what h2 writes.
//!
//! h2 writes and flushes each DATA frame on its own. Over TLS this is a system call for each 16 KiB.
//! Here a flush of h2 does nothing. The connection is flushed when its buffer is full, and when h2
//! has nothing left to write.

use std::cell::RefCell;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::proxy::client_socket::ClientIo;

/// A connection that gathers what is written. Clones share it: h2 has one, and its driver another,
/// which flushes.
#[derive(Debug)]
pub(crate) struct GatheredIo<IO>(Rc<RefCell<Gathered<IO>>>);

#[derive(Debug)]
struct Gathered<IO> {
    io: IO,
    /// Whether bytes wait for a flush.
    is_waiting: bool,
    /// The failure of a flush, which the next read or write returns.
    failure: Option<io::ErrorKind>,
}

impl<IO> Clone for GatheredIo<IO> {
    fn clone(&self) -> Self {
        Self(Rc::clone(&self.0))
    }
}

impl<IO: ClientIo> GatheredIo<IO> {
    pub(crate) fn new(io: IO) -> Self {
        Self(Rc::new(RefCell::new(Gathered { io, is_waiting: false, failure: None })))
    }

    /// Writes to the socket what waits. If the socket takes no more, the task is woken when it does.
    pub(crate) fn flush(&self, context: &mut Context<'_>) {
        let mut this = self.0.borrow_mut();
        if let Poll::Ready(Err(error)) = this.poll_flush(context) {
            this.failure = Some(error.kind());
            context.waker().wake_by_ref(); // h2 reads the failure
        }
    }
}

impl<IO: ClientIo> Gathered<IO> {
    fn poll_flush(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.is_waiting {
            ready!(Pin::new(&mut self.io).poll_flush(context))?;
            self.is_waiting = false;
        }
        Poll::Ready(Ok(()))
    }

    fn check(&self) -> io::Result<()> {
        self.failure.map_or(Ok(()), |kind| Err(kind.into()))
    }
}

impl<IO: ClientIo> AsyncRead for GatheredIo<IO> {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let mut this = self.0.borrow_mut();
        this.check()?;
        Pin::new(&mut this.io).poll_read(context, buffer)
    }
}

impl<IO: ClientIo> AsyncWrite for GatheredIo<IO> {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.poll_write_vectored(context, &[IoSlice::new(bytes)])
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        if slices.iter().all(|slice| slice.is_empty()) {
            return Poll::Ready(Ok(0));
        }
        let mut this = self.0.borrow_mut();
        this.check()?;
        loop {
            let count = this.io.buffer_vectored(slices)?;
            this.is_waiting = true;
            if count > 0 {
                return Poll::Ready(Ok(count));
            }
            ready!(this.poll_flush(context))?; // the buffer is full
        }
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, _context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(self.0.borrow().check())
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut this = self.0.borrow_mut();
        this.check()?;
        Pin::new(&mut this.io).poll_shutdown(context)
    }
}

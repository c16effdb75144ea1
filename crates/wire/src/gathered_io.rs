//! The connection below h2, which gathers what h2 writes.
//!
//! h2 writes and flushes each DATA frame on its own. Over TLS this is a system call for each
//! 16 KiB. Here a flush of h2 does nothing. The connection is flushed when its buffer is full, and
//! when h2 has nothing left to write.

use std::cell::RefCell;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::client_io::{ClientIo, has_closed};

/// A connection that gathers what is written. Clones share it: h2 has one, and its driver another,
/// which flushes.
#[derive(Debug)]
pub struct GatheredIo<IO>(Rc<RefCell<Gathered<IO>>>);

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
    /// Gathers what is written to `io`.
    pub fn new(io: IO) -> Self {
        Self(Rc::new(RefCell::new(Gathered { io, is_waiting: false, failure: None })))
    }

    /// Whether the client has closed its side, although bytes before the FIN may be unread.
    pub fn has_closed(&self) -> bool {
        has_closed(self.0.borrow().io.tcp())
    }

    /// Whether the socket has not taken all bytes.
    pub fn is_waiting(&self) -> bool {
        self.0.borrow().is_waiting
    }

    /// Writes to the socket what waits. If the socket takes no more, the task is woken when it
    /// does.
    pub fn flush(&self, context: &mut Context<'_>) {
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
    crate::forward_io!(vectored poll_write);

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

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::{Wake, Waker};

    use tokio::net::{TcpListener, TcpStream};

    use super::*;

    /// Size of the buffer of [`Buffered`].
    const ROOM: usize = 10;

    /// A connection with a buffer.
    struct Buffered {
        tcp: TcpStream,
        buffered: usize,
        flushes: usize,
        outcome: fn() -> Poll<io::Result<()>>,
    }

    impl ClientIo for Buffered {
        fn tcp(&self) -> &TcpStream {
            &self.tcp
        }

        fn buffer_vectored(&mut self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
            let length: usize = slices.iter().map(|slice| slice.len()).sum();
            let count = length.min(ROOM - self.buffered);
            self.buffered += count;
            Ok(count)
        }
    }

    impl AsyncRead for Buffered {
        fn poll_read(
            self: Pin<&mut Self>,
            _context: &mut Context<'_>,
            _buffer: &mut ReadBuf<'_>,
        ) -> Poll<io::Result<()>> {
            Poll::Pending
        }
    }

    impl AsyncWrite for Buffered {
        fn poll_write(
            self: Pin<&mut Self>,
            _context: &mut Context<'_>,
            _bytes: &[u8],
        ) -> Poll<io::Result<usize>> {
            unreachable!("all bytes are buffered")
        }

        fn poll_flush(
            mut self: Pin<&mut Self>,
            _context: &mut Context<'_>,
        ) -> Poll<io::Result<()>> {
            self.flushes += 1;
            let outcome = (self.outcome)();
            if matches!(outcome, Poll::Ready(Ok(()))) {
                self.buffered = 0;
            }
            outcome
        }

        fn poll_shutdown(self: Pin<&mut Self>, _context: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }
    }

    #[derive(Default)]
    struct Wakes(AtomicUsize);

    impl Wake for Wakes {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    async fn gathered(outcome: fn() -> Poll<io::Result<()>>) -> GatheredIo<Buffered> {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let tcp = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        GatheredIo::new(Buffered { tcp, buffered: 0, flushes: 0, outcome })
    }

    fn write(io: &mut GatheredIo<Buffered>, count: usize) -> Poll<io::Result<usize>> {
        let mut context = Context::from_waker(Waker::noop());
        let written = Pin::new(&mut *io).poll_write(&mut context, &vec![0; count]);
        assert!(matches!(Pin::new(io).poll_flush(&mut context), Poll::Ready(_)));
        written
    }

    fn flushes(io: &GatheredIo<Buffered>) -> usize {
        io.0.borrow().io.flushes
    }

    #[tokio::test]
    async fn several_frames_make_one_flush() {
        let mut io = gathered(|| Poll::Ready(Ok(()))).await;
        for _ in 0..3 {
            assert!(matches!(write(&mut io, 3), Poll::Ready(Ok(3))));
        }
        assert_eq!(flushes(&io), 0, "h2 flushes each frame");
        let mut context = Context::from_waker(Waker::noop());
        io.flush(&mut context);
        io.flush(&mut context);
        assert_eq!(flushes(&io), 1, "nothing waits at the second time");
    }

    #[tokio::test]
    async fn a_full_buffer_is_flushed_before_it_takes_more() {
        let mut io = gathered(|| Poll::Ready(Ok(()))).await;
        assert!(matches!(write(&mut io, ROOM), Poll::Ready(Ok(ROOM))));
        assert_eq!(flushes(&io), 0);
        assert!(matches!(write(&mut io, 4), Poll::Ready(Ok(4))));
        assert_eq!(flushes(&io), 1);

        let mut io = gathered(|| Poll::Pending).await;
        assert!(matches!(write(&mut io, ROOM + 5), Poll::Ready(Ok(ROOM))));
        assert!(write(&mut io, 5).is_pending(), "the client reads nothing, so no more is kept");
        assert_eq!(io.0.borrow().io.buffered, ROOM);
    }

    #[tokio::test]
    async fn the_failure_of_a_flush_ends_the_next_read_and_write() {
        let mut io = gathered(|| Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()))).await;
        assert!(matches!(write(&mut io, 3), Poll::Ready(Ok(3))));
        let wakes: Arc<Wakes> = Arc::default();
        let waker = Waker::from(Arc::clone(&wakes));
        let mut context = Context::from_waker(&waker);
        io.flush(&mut context);
        assert_eq!(wakes.0.load(Ordering::Relaxed), 1, "h2 must be polled, to see the failure");
        assert!(matches!(write(&mut io, 3), Poll::Ready(Err(_))));
        let mut bytes = [0; 8];
        let mut buffer = ReadBuf::new(&mut bytes);
        let read = Pin::new(&mut io).poll_read(&mut context, &mut buffer);
        assert!(matches!(read, Poll::Ready(Err(_))));
    }
}

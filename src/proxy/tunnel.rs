//! Bytes in both directions: a TCP service, or a connection that has upgraded from HTTP. Each
//! direction closes independently (half-close).
//!
//! All tunnels of a worker read into one buffer. A tunnel has memory of its own only for bytes that
//! the receiver does not take yet, so an idle tunnel has none.

use std::cell::Cell;
use std::future::poll_fn;
use std::io;
use std::pin::{Pin, pin};
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::open_connection::state::{Close, ConnectionState};

/// Size of the buffer that the tunnels of a worker share, in bytes: the most that one direction of
/// a tunnel keeps for a receiver that takes nothing.
const BUFFER: usize = 16 << 10;

thread_local! {
    static SHARED_BUFFER: Cell<Vec<u8>> = const { Cell::new(Vec::new()) };
}

/// How a tunnel ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TunnelEnd {
    /// By an error, a timeout or an eviction.
    Aborted,
    /// Both sides closed it.
    Complete,
}

/// Carries bytes until both sides have closed, or the connection is aborted.
pub(crate) async fn carry<C, U>(
    client: &mut C,
    upstream: &mut U,
    state: &ConnectionState,
) -> TunnelEnd
where
    C: AsyncRead + AsyncWrite + Unpin,
    U: AsyncRead + AsyncWrite + Unpin,
{
    let mut carried = pin!(copy_both(client, upstream));
    poll_fn(|context| {
        if let Some(Close::Abort) = state.take_close(context) {
            return Poll::Ready(TunnelEnd::Aborted);
        }
        carried.as_mut().poll(context).map(|outcome| match outcome {
            Ok(()) => TunnelEnd::Complete,
            Err(error) => {
                tracing::debug!(%error, "tunnel ended");
                TunnelEnd::Aborted
            }
        })
    })
    .await
}

/// Copies bytes in both directions until both sides have closed.
///
/// # Errors
/// Returns the first error of either side.
pub(crate) async fn copy_both<A, B>(one: &mut A, other: &mut B) -> io::Result<()>
where
    A: AsyncRead + AsyncWrite + Unpin,
    B: AsyncRead + AsyncWrite + Unpin,
{
    let (mut forth, mut back) = (Direction::default(), Direction::default());
    poll_fn(|context| {
        let forth = forth.poll_copy(context, one, other)?;
        let back = back.poll_copy(context, other, one)?;
        if forth.is_ready() && back.is_ready() { Poll::Ready(Ok(())) } else { Poll::Pending }
    })
    .await
}

/// One direction of a tunnel.
#[derive(Debug, Default)]
struct Direction {
    /// Bytes that were read and that the receiver has not taken.
    waiting: Vec<u8>,
    /// How many of them the receiver has taken.
    taken: usize,
    needs_flush: bool,
    phase: Phase,
}

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Closed,
    #[default]
    Copying,
    /// The sender has closed.
    Closing,
}

impl Direction {
    /// Ready when the sender has closed and the receiver has got everything.
    fn poll_copy<R, W>(
        &mut self,
        context: &mut Context<'_>,
        sender: &mut R,
        receiver: &mut W,
    ) -> Poll<io::Result<()>>
    where
        R: AsyncRead + Unpin,
        W: AsyncWrite + Unpin,
    {
        loop {
            ready!(self.poll_waiting(context, receiver))?;
            match self.phase {
                Phase::Copying => {
                    if self.poll_piece(context, sender, receiver)?.is_pending() {
                        ready!(self.poll_flush(context, receiver))?;
                        return Poll::Pending;
                    }
                }
                Phase::Closing => {
                    ready!(self.poll_flush(context, receiver))?;
                    ready!(Pin::new(&mut *receiver).poll_shutdown(context))?;
                    self.phase = Phase::Closed;
                }
                Phase::Closed => return Poll::Ready(Ok(())),
            }
        }
    }

    fn poll_flush<W: AsyncWrite + Unpin>(
        &mut self,
        context: &mut Context<'_>,
        receiver: &mut W,
    ) -> Poll<io::Result<()>> {
        if self.needs_flush {
            ready!(Pin::new(receiver).poll_flush(context))?;
            self.needs_flush = false;
        }
        Poll::Ready(Ok(()))
    }

    /// Writes the bytes that wait.
    fn poll_waiting<W: AsyncWrite + Unpin>(
        &mut self,
        context: &mut Context<'_>,
        receiver: &mut W,
    ) -> Poll<io::Result<()>> {
        while let Some(rest @ [_, ..]) = self.waiting.get(self.taken..) {
            let count = ready!(poll_write(context, receiver, rest))?;
            self.taken = self.taken.saturating_add(count);
        }
        (self.waiting, self.taken) = (Vec::new(), 0);
        Poll::Ready(Ok(()))
    }

    /// Reads a piece into the shared buffer, and writes what the receiver takes of it.
    fn poll_piece<R, W>(
        &mut self,
        context: &mut Context<'_>,
        sender: &mut R,
        receiver: &mut W,
    ) -> Poll<io::Result<()>>
    where
        R: AsyncRead + Unpin,
        W: AsyncWrite + Unpin,
    {
        let mut shared = SHARED_BUFFER.take();
        shared.resize(BUFFER, 0); // allocated at the first use
        let polled = self.poll_piece_with(&mut shared, context, sender, receiver);
        SHARED_BUFFER.set(shared);
        polled
    }

    fn poll_piece_with<R, W>(
        &mut self,
        buffer: &mut [u8],
        context: &mut Context<'_>,
        sender: &mut R,
        receiver: &mut W,
    ) -> Poll<io::Result<()>>
    where
        R: AsyncRead + Unpin,
        W: AsyncWrite + Unpin,
    {
        let mut buffer = ReadBuf::new(buffer);
        ready!(Pin::new(sender).poll_read(context, &mut buffer))?;
        let mut rest = buffer.filled();
        if rest.is_empty() {
            self.phase = Phase::Closing;
            return Poll::Ready(Ok(()));
        }
        self.needs_flush = true;
        while !rest.is_empty() {
            match poll_write(context, receiver, rest)? {
                Poll::Ready(count) => rest = rest.get(count..).unwrap_or_default(),
                Poll::Pending => {
                    self.waiting = rest.to_vec();
                    break;
                }
            }
        }
        Poll::Ready(Ok(()))
    }
}

/// Writes some of `bytes`, which are not empty.
fn poll_write<W: AsyncWrite + Unpin>(
    context: &mut Context<'_>,
    receiver: &mut W,
    bytes: &[u8],
) -> Poll<io::Result<usize>> {
    match ready!(Pin::new(receiver).poll_write(context, bytes))? {
        0 => Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
        count => Poll::Ready(Ok(count)),
    }
}

#[cfg(test)]
mod tests {
    use std::task::Waker;

    use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};

    use super::*;

    #[test]
    fn an_idle_direction_has_no_memory_and_a_slow_receiver_loses_nothing() {
        let (mut sender, mut source) = duplex(1 << 20);
        let (mut receiver, mut sink) = duplex(100);
        let mut context = Context::from_waker(Waker::noop());
        let sent: Vec<u8> = (0..50_000_u32).map(|number| (number % 251) as u8).collect();
        let mut written = pin!(source.write_all(&sent));
        assert!(written.as_mut().poll(&mut context).is_ready());
        let mut direction = Direction::default();
        let mut received: Vec<u8> = Vec::new();
        while received.len() < sent.len() {
            assert!(direction.poll_copy(&mut context, &mut sender, &mut receiver).is_pending());
            assert!(direction.waiting.capacity() <= BUFFER);
            let mut piece = [0; 100];
            let mut buffer = ReadBuf::new(&mut piece);
            assert!(Pin::new(&mut sink).poll_read(&mut context, &mut buffer).is_ready());
            received.extend(buffer.filled());
        }
        assert!(direction.poll_copy(&mut context, &mut sender, &mut receiver).is_pending());
        assert!(received == sent && direction.waiting.capacity() == 0);
    }

    #[tokio::test]
    async fn each_direction_closes_independently() {
        let (mut one, mut client) = duplex(8);
        let (mut other, mut server) = duplex(8);
        let copying = tokio::spawn(async move { copy_both(&mut one, &mut other).await });
        client.write_all(b"request").await.unwrap();
        client.shutdown().await.unwrap();
        let mut request = String::new();
        server.read_to_string(&mut request).await.unwrap();
        assert_eq!(request, "request");
        let respond = async {
            server.write_all(b"a long response").await.unwrap();
            server.shutdown().await.unwrap();
        };
        let mut response = String::new();
        let (_, read) = tokio::join!(respond, client.read_to_string(&mut response));
        read.unwrap();
        assert_eq!(response, "a long response");
        copying.await.unwrap().unwrap();
    }

    #[tokio::test]
    async fn an_error_of_one_side_ends_both_directions() {
        let (mut one, mut client) = duplex(8);
        let (mut other, server) = duplex(8);
        drop(server);
        client.write_all(b"request").await.unwrap();
        let error = copy_both(&mut one, &mut other).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::BrokenPipe);
    }
}

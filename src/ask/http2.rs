//! An HTTP/2 connection of a host, for the protocols over it.
//!
//! One connection has the questions of many clients. Nothing that one of them can cause ends it:
//! neither a malformed question nor any number of cancelled streams.

use std::cell::Cell;
use std::collections::VecDeque;
use std::future::poll_fn;
use std::io;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use h2::RecvStream;
use h2::server::{Builder, SendResponse};
use hyper::Request;
use keygate_core::guard::keys_checked;
use keygate_wire::forward_io;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, sleep_until, timeout};

use crate::config::AuthorizerLimits;

/// Maximum time for the preface of a connection.
const PREFACE_TIMEOUT: Duration = Duration::from_secs(10);

/// Maximum time for the preface from the beginning of a drain on.
const DRAIN_PREFACE_TIMEOUT: Duration = Duration::from_secs(1);

/// Minimum of the header list size that h2 accepts, in bytes. h2 responds to a larger one with 431,
/// an error for the host, so this is more than hosts accept from a client by default: Envoy 60 KiB,
/// Go 1 MiB.
pub(super) const MIN_HEADER_SIZE: u32 = 2 << 20;

/// Maximum and default of a flow-control window, in bytes (RFC 9113, section 6.9).
const MAX_WINDOW: u32 = (1 << 31) - 1;
const DEFAULT_WINDOW: u32 = (1 << 16) - 1;

/// Flow-control window of a connection, in bytes. Data is read at once, so it does not bound
/// messages.
const CONNECTION_WINDOW: u32 = 4 << 20;

/// Small DATA frames that may wait to be read, for each call that a connection may have.
const SMALL_FRAMES_PER_CALL: usize = 16;
/// Part of the budget of h2 that a small frame uses up, in bytes.
const SMALL_FRAME: usize = 256;

/// Maximum time between the GOAWAY to an idle peer and the end of the connection.
const END_TIMEOUT: Duration = Duration::from_secs(10);

/// Bytes that are read before the questions in them are accepted, and one read more. This bounds
/// the cancelled questions that wait: a peer that writes faster than keygate answers would
/// otherwise add to them without end.
const READ_AT_ONCE: usize = 64 << 10;

/// Questions that are accepted before the first of them is answered. Their answers share a write.
const MAX_BATCH: usize = 64;

/// Questions that are answered without yielding to other connections. A connection also yields
/// after the check of a new key.
const ANSWERED_AT_ONCE: usize = 256;

/// The settings that all protocols share.
pub(super) fn builder(max_streams: u32, max_header_size: u32) -> Builder {
    let mut builder = Builder::new();
    builder
        .max_concurrent_streams(max_streams)
        .max_header_list_size(max_header_size)
        // `READ_AT_ONCE` bounds them. The default ends a connection after 20.
        .max_pending_accept_reset_streams(usize::MAX)
        // A question costs its answer at once, so that resets leave no work behind (CVE-2025-8671).
        // The default ends a connection after 1,024 questions whose rest was not discarded in time.
        .max_local_error_reset_streams(None);
    builder
}

/// The settings of a protocol that reads messages of at most `max_size` bytes.
pub(super) fn message_builder(limits: AuthorizerLimits, max_size: usize) -> Builder {
    let calls = usize::try_from(limits.max_streams).unwrap_or(usize::MAX);
    let message = u32::try_from(max_size).unwrap_or(u32::MAX).min(MAX_WINDOW);
    let mut builder = builder(limits.max_streams, message.max(MIN_HEADER_SIZE));
    builder
        .initial_window_size(message.max(DEFAULT_WINDOW))
        .initial_connection_window_size(CONNECTION_WINDOW.max(message))
        .data_frame_budget(calls.saturating_mul(SMALL_FRAMES_PER_CALL * SMALL_FRAME));
    builder
}

/// Calls `begin` with each request of a connection. After `drain` has ended the peer gets GOAWAY,
/// and the connection ends with its last stream.
///
/// # Errors
/// Returns an error if the peer violates HTTP/2 or the connection is lost.
pub(super) async fn serve<S>(
    stream: S,
    builder: &Builder,
    idle_timeout: Duration,
    mut begin: impl FnMut(Request<RecvStream>, SendResponse<Bytes>, &mut Context<'_>),
    drain: impl Future<Output = ()>,
) -> Result<(), h2::Error>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let allowance = Rc::new(Allowance::default());
    let stream = SingleBuffer { stream, allowance: Rc::clone(&allowance) };
    let handshake = builder.handshake::<_, Bytes>(stream);
    let mut handshake = pin!(timeout(PREFACE_TIMEOUT, handshake));
    let mut drain = pin!(drain);
    let mut is_draining = false;
    let connection = tokio::select! {
        biased;
        connection = &mut handshake => connection,
        () = &mut drain => {
            is_draining = true;
            timeout(DRAIN_PREFACE_TIMEOUT, handshake).await.and_then(|connection| connection)
        }
    };
    let Ok(connection) = connection else { return Ok(()) };
    let mut connection = connection?;
    if is_draining {
        connection.graceful_shutdown();
    }
    let mut last_stream = Instant::now();
    let mut end = None; // of the connection, after GOAWAY to an idle peer
    let mut timer = pin!(sleep_until(last_stream + idle_timeout));
    let mut batch = VecDeque::new();
    poll_fn(|context| {
        if !is_draining && drain.as_mut().poll(context).is_ready() {
            is_draining = true;
            connection.graceful_shutdown();
        }
        let mut answered = 0_usize;
        loop {
            let is_all = loop {
                match connection.poll_accept(context) {
                    Poll::Ready(Some(Ok(request))) => batch.push_back(request),
                    Poll::Ready(Some(Err(error))) => return Poll::Ready(Err(error)),
                    Poll::Ready(None) => return Poll::Ready(Ok(())),
                    Poll::Pending => break true,
                }
                if batch.len() >= MAX_BATCH {
                    break false;
                }
            };
            if !batch.is_empty() {
                last_stream = Instant::now();
            } else if is_all {
                if allowance.renew() {
                    continue;
                }
                break;
            }
            let checked = keys_checked();
            while keys_checked() == checked
                && let Some((request, respond)) = batch.pop_front()
            {
                begin(request, respond, context);
                answered = answered.saturating_add(1);
            }
            if keys_checked() != checked {
                answered = ANSWERED_AT_ONCE;
            }
            if answered >= ANSWERED_AT_ONCE {
                context.waker().wake_by_ref();
                break;
            }
        }
        while timer.as_mut().poll(context).is_ready() {
            let (now, idle_end) = (Instant::now(), last_stream + idle_timeout);
            if end.is_some() {
                return Poll::Ready(Ok(()));
            }
            if idle_end > now {
                timer.as_mut().reset(idle_end);
                continue;
            }
            connection.graceful_shutdown();
            context.waker().wake_by_ref(); // GOAWAY is sent by the next poll
            timer.as_mut().reset(*end.insert(now + END_TIMEOUT));
        }
        Poll::Pending
    })
    .await
}

/// The bytes that h2 may read before questions are accepted.
struct Allowance {
    bytes: Cell<usize>,
    /// A read waits for `renew`.
    is_awaited: Cell<bool>,
}

impl Default for Allowance {
    fn default() -> Self {
        Self { bytes: Cell::new(READ_AT_ONCE), is_awaited: Cell::new(false) }
    }
}

impl Allowance {
    /// Allows further bytes. Returns whether a read waited for them.
    fn renew(&self) -> bool {
        self.bytes.set(READ_AT_ONCE);
        self.is_awaited.take()
    }
}

/// A connection whose frames h2 gathers in one buffer. h2 writes a DATA frame of 256 bytes or more
/// on its own if it may write several buffers at once, and one of 1,024 bytes or more otherwise.
struct SingleBuffer<S> {
    stream: S,
    allowance: Rc<Allowance>,
}

impl<S: AsyncRead + Unpin> AsyncRead for SingleBuffer<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.allowance.bytes.get() == 0 {
            self.allowance.is_awaited.set(true);
            return Poll::Pending;
        }
        let before = buffer.filled().len();
        let result = Pin::new(&mut self.stream).poll_read(context, buffer);
        let read = buffer.filled().len().saturating_sub(before);
        self.allowance.bytes.update(|bytes| bytes.saturating_sub(read));
        result
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for SingleBuffer<S> {
    forward_io!((stream) poll_write, poll_flush, poll_shutdown);
}

#[cfg(test)]
mod tests {
    use std::task::Waker;

    use hyper::Response;
    use tokio::io::{AsyncWriteExt, duplex};

    use super::*;
    use crate::ask::check_another_key;

    const IDLE_TIMEOUT: Duration = Duration::from_secs(3600);

    /// A HEADERS frame with a whole request: GET / of the authority `a`.
    fn request(stream: u32) -> Vec<u8> {
        const BLOCK: &[u8] = b"\x82\x86\x84\x41\x01a";
        [&[0, 0, 6, 1, 5][..], &stream.to_be_bytes(), BLOCK].concat()
    }

    /// The maximum number of 1,000 questions that are answered without yielding.
    async fn answered_at_once(check: impl Fn()) -> usize {
        let (stream, mut peer) = duplex(1 << 20);
        peer.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0").await.unwrap();
        for stream in 0..1000 {
            peer.write_all(&request(2 * stream + 1)).await.unwrap();
        }
        let answered = std::cell::Cell::new(0);
        let begin = |_, mut respond: SendResponse<Bytes>, _: &mut Context<'_>| {
            check();
            answered.set(answered.get() + 1);
            respond.send_response(Response::new(()), true).unwrap();
        };
        let (drain, builder) = (std::future::pending(), builder(1000, MIN_HEADER_SIZE));
        let mut serving = pin!(serve(stream, &builder, IDLE_TIMEOUT, begin, drain));
        let mut most = 0;
        while answered.get() < 1000 {
            let before = answered.get();
            assert!(serving.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
            most = most.max(answered.get() - before);
            tokio::task::yield_now().await;
        }
        most
    }

    #[tokio::test]
    async fn a_connection_with_many_questions_yields_to_others() {
        assert_eq!(answered_at_once(|| ()).await, ANSWERED_AT_ONCE);
    }

    #[tokio::test]
    async fn a_connection_yields_after_the_check_of_a_new_key() {
        assert_eq!(answered_at_once(check_another_key).await, 1);
    }

    /// With a read for each accepted question, a peer that writes without a pause adds to the
    /// questions that wait.
    #[tokio::test]
    async fn questions_are_accepted_before_more_are_read() {
        let mut bytes = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0".to_vec();
        for stream in 0..20_000 {
            let stream = 2 * stream + 1;
            bytes.extend(request(stream));
            bytes.extend([&[0, 0, 4, 3, 0][..], &stream.to_be_bytes(), &[0, 0, 0, 8]].concat());
        }
        let (stream, mut peer) = duplex(4 * READ_AT_ONCE);
        let mut sent = peer.write(&bytes).await.unwrap();
        let accepted = Cell::new(0);
        let begin = |_, _, _: &mut Context<'_>| accepted.set(accepted.get() + 1);
        let (drain, builder) = (std::future::pending(), builder(1, MIN_HEADER_SIZE));
        let mut serving = pin!(serve(stream, &builder, IDLE_TIMEOUT, begin, drain));
        let context = &mut Context::from_waker(Waker::noop());
        assert!(serving.as_mut().poll(context).is_pending());
        // The read has freed as many bytes of the pipe.
        let mut write = |sent| Pin::new(&mut peer).poll_write(context, &bytes[sent..]);
        let Poll::Ready(Ok(read)) = write(sent) else { panic!("nothing was read") };
        assert!(read < 2 * READ_AT_ONCE, "{read} bytes");
        sent += read;
        while accepted.get() < 20_000 {
            let context = &mut Context::from_waker(Waker::noop());
            assert!(serving.as_mut().poll(context).is_pending());
            if let Poll::Ready(Ok(more)) = write(sent) {
                sent += more;
            }
            tokio::task::yield_now().await;
        }
    }

    /// A request begins the time without one again. GOAWAY leaves the peer time to end.
    #[tokio::test(start_paused = true)]
    async fn an_idle_connection_gets_goaway_and_ends() {
        let (stream, mut peer) = duplex(1 << 20);
        let begin = |_, mut respond: SendResponse<Bytes>, _: &mut Context<'_>| {
            respond.send_response(Response::new(()), true).unwrap();
        };
        let (drain, builder) = (std::future::pending(), builder(10, MIN_HEADER_SIZE));
        let (began, timeout) = (Instant::now(), Duration::from_secs(60));
        let serving = serve(stream, &builder, timeout, begin, drain);
        let asking = async {
            let preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";
            peer.write_all(preface).await.unwrap();
            tokio::time::sleep(Duration::from_secs(40)).await;
            peer.write_all(&request(1)).await.unwrap();
            std::future::pending::<()>().await;
        };
        tokio::select! {
            ended = serving => ended.unwrap(),
            () = asking => {}
        }
        assert_eq!(began.elapsed().as_secs(), 40 + 60 + END_TIMEOUT.as_secs());
        let mut frames = vec![0; 1 << 10];
        let count = tokio::io::AsyncReadExt::read(&mut peer, &mut frames).await.unwrap();
        let goaway = [0, 0, 8, 7, 0, 0, 0, 0, 0];
        assert!(frames[..count].windows(goaway.len()).any(|it| it == goaway));
    }
}

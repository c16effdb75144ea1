//! An HTTP/2 connection of a host, whose streams are unary calls.
//!
//! One connection has the questions of many clients. Nothing that one of them can cause ends it:
//! neither a malformed question nor any number of cancelled calls.

use std::future::poll_fn;
use std::io;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use h2::server::Builder;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, sleep_until, timeout};

use super::framing::PREFIX;
use super::unary_call::{Answerer, UnaryCall};

/// Maximum time for the preface of a connection.
const PREFACE_TIMEOUT: Duration = Duration::from_secs(10);

/// Maximum time between the GOAWAY to an idle peer and the end of the connection.
const END_TIMEOUT: Duration = Duration::from_secs(10);

/// The idle timeout if the configured one is beyond the range of the clock: a year.
const LONG: Duration = Duration::from_secs(365 * 86_400);

/// Maximum and default of a flow-control window, in bytes (RFC 9113, section 6.9).
const MAX_WINDOW: u32 = (1 << 31) - 1;
const DEFAULT_WINDOW: u32 = (1 << 16) - 1;

/// Flow-control window of a connection, in bytes. Data is read at once, so it does not bound calls.
const CONNECTION_WINDOW: u32 = 4 << 20;

/// Minimum of the maximum header size, in bytes. Envoy passes tracing fields of a client on, and
/// reads up to 60 KiB of header from a client.
const MIN_HEADER_SIZE: u32 = 64 << 10;

/// Calls that may wait to be accepted although their peer has cancelled them, for each call that a
/// connection may have. h2 ends the connection above this; its default is 20 for all.
const CANCELLED_PER_CALL: usize = 16;

/// Small DATA frames that may wait to be read, for each call that a connection may have.
const SMALL_FRAMES_PER_CALL: usize = 16;
/// Part of the budget of h2 that a small frame uses up, in bytes.
const SMALL_FRAME: usize = 256;

/// Questions that are accepted before the first of them is answered. Their answers share a write.
const MAX_BATCH: usize = 64;

/// Limits of a connection.
#[derive(Debug, Clone, Copy)]
pub(crate) struct CallLimits {
    /// Maximum length of a message, in bytes.
    pub(crate) max_message_size: usize,
    /// Maximum number of concurrent calls.
    pub(crate) max_calls: u32,
    /// Time without a new call after which the connection is closed.
    pub(crate) idle_timeout: Duration,
}

/// Serves the calls of a connection. After `drain` has ended the peer gets GOAWAY, and the
/// connection ends with its last call.
///
/// # Errors
/// Returns an error if the peer violates HTTP/2 or the connection is lost.
pub(crate) async fn serve<S, A>(
    stream: S,
    limits: CallLimits,
    answerer: Rc<A>,
    drain: impl Future<Output = ()>,
) -> Result<(), h2::Error>
where
    S: AsyncRead + AsyncWrite + Unpin,
    A: Answerer + 'static,
{
    let handshake = builder(limits).handshake::<_, Bytes>(SingleBuffer(stream));
    let Ok(connection) = timeout(PREFACE_TIMEOUT, handshake).await else { return Ok(()) };
    let mut connection = connection?;
    let mut drain = pin!(drain);
    let mut is_draining = false;
    let mut idle = IdleTimer::new(limits.idle_timeout);
    let mut timer = pin!(sleep_until(idle.expires()));
    let mut batch = Vec::new();
    poll_fn(|context| {
        if !is_draining && drain.as_mut().poll(context).is_ready() {
            is_draining = true;
            connection.graceful_shutdown();
        }
        loop {
            let is_all = loop {
                match connection.poll_accept(context) {
                    Poll::Ready(Some(Ok(call))) => batch.push(call),
                    Poll::Ready(Some(Err(error))) => return Poll::Ready(Err(error)),
                    Poll::Ready(None) => return Poll::Ready(Ok(())),
                    Poll::Pending => break true,
                }
                if batch.len() >= MAX_BATCH {
                    break false;
                }
            };
            if !batch.is_empty() {
                idle.restart();
            } else if is_all {
                break;
            }
            for (request, respond) in batch.drain(..) {
                run(UnaryCall::new(request, respond, limits.max_message_size), &answerer, context);
            }
        }
        while timer.as_mut().poll(context).is_ready() {
            match idle.expire() {
                Idle::Active => {}
                Idle::Drain => {
                    connection.graceful_shutdown();
                    context.waker().wake_by_ref(); // GOAWAY is sent by the next poll
                }
                Idle::End => return Poll::Ready(Ok(())),
            }
            timer.as_mut().reset(idle.expires());
        }
        Poll::Pending
    })
    .await
}

fn builder(limits: CallLimits) -> Builder {
    let calls = usize::try_from(limits.max_calls).unwrap_or(usize::MAX);
    let message = limits.max_message_size.saturating_add(PREFIX);
    let message = u32::try_from(message).unwrap_or(u32::MAX).min(MAX_WINDOW);
    let mut builder = Builder::new();
    builder
        .max_concurrent_streams(limits.max_calls)
        .max_header_list_size(message.max(MIN_HEADER_SIZE))
        .initial_window_size(message.max(DEFAULT_WINDOW))
        .initial_connection_window_size(CONNECTION_WINDOW.max(message))
        .max_pending_accept_reset_streams(calls.saturating_mul(CANCELLED_PER_CALL))
        .data_frame_budget(calls.saturating_mul(SMALL_FRAMES_PER_CALL * SMALL_FRAME))
        // A call costs its answer at once, so that resets leave no work behind (CVE-2025-8671). The
        // default ends a connection after 1,024 questions whose rest was not discarded in time.
        .max_local_error_reset_streams(None);
    builder
}

/// Runs a call. It mostly ends at once, because its message came with its head.
fn run(mut call: UnaryCall, answerer: &Rc<impl Answerer + 'static>, context: &mut Context<'_>) {
    if call.poll(&**answerer, context).is_pending() {
        let answerer = Rc::clone(answerer);
        tokio::task::spawn_local(poll_fn(move |context| call.poll(&*answerer, context)));
    }
}

/// The time without a new call.
struct IdleTimer {
    last_call: Instant,
    timeout: Duration,
    /// End of the connection after GOAWAY.
    end: Option<Instant>,
}

/// What the end of the timer means.
enum Idle {
    /// A call has begun since the timer was set.
    Active,
    /// The connection gets GOAWAY.
    Drain,
    /// The connection is closed.
    End,
}

impl IdleTimer {
    fn new(timeout: Duration) -> Self {
        Self { last_call: Instant::now(), timeout, end: None }
    }

    fn restart(&mut self) {
        self.last_call = Instant::now();
    }

    fn expires(&self) -> Instant {
        self.end.unwrap_or_else(|| {
            let expires = self.last_call.checked_add(self.timeout);
            expires.unwrap_or_else(|| self.last_call + LONG)
        })
    }

    fn expire(&mut self) -> Idle {
        let now = Instant::now();
        match self.end {
            Some(_) => Idle::End,
            None if self.expires() > now => Idle::Active,
            None => {
                self.end = Some(now + END_TIMEOUT);
                Idle::Drain
            }
        }
    }
}

/// A connection whose frames h2 gathers in one buffer. h2 writes a DATA frame of 256 bytes or more
/// on its own if it may write several buffers at once, and one of 1,024 bytes or more otherwise.
struct SingleBuffer<S>(S);

impl<S: AsyncRead + Unpin> AsyncRead for SingleBuffer<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(context, buffer)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for SingleBuffer<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(context)
    }
}

//! A connection whose protocol splits its bytes into requests: buffers, timeouts and drain.
//!
//! A protocol implements [`Exchange`] and never waits. The responses to
//! requests that are in the input together leave in one write.

use std::convert::Infallible;
use std::future::ready;
use std::io;
use std::pin::pin;
use std::time::Duration;

use bytes::{Buf, BytesMut};
use keygate_core::guard::keys_checked;
use keygate_wire::lingering_close;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::time::{Instant, sleep_until, timeout};

/// Maximum time until the first request, until a request is whole, and until the peer reads its
/// responses. The connection is closed then.
pub(super) const PROGRESS_TIMEOUT: Duration = Duration::from_secs(10);
/// Length of the responses that are kept for one write, in bytes. Further requests wait for it.
const WRITE_SIZE: usize = 32 << 10;
/// Requests that are answered without yielding to other connections. Under load there is always
/// something to read, so that a connection would not yield by itself. It also yields after the
/// check of a new key.
const ANSWERED_AT_ONCE: usize = 128;

/// The requests of one connection and their responses, in the form of a protocol.
pub(super) trait Exchange {
    /// The end of a connection.
    type End: From<io::Error>;
    /// Maximum time that a draining connection waits for a request. A peer that sends one at the
    /// moment of the close would lose it.
    const DRAIN_GRACE: Duration;
    /// Free space for a read, in bytes.
    const READ_SIZE: usize;
    /// Maximum capacity of the input of an idle connection, in bytes.
    const KEPT_SIZE: usize;

    /// Takes a whole request from the input, which is not empty, and adds its response to the
    /// output.
    ///
    /// # Errors
    /// Returns the end of the connection, for which the output may have responses.
    fn take_one(&mut self, bytes: &mut ByteBuffers) -> Result<ExchangeNeed, Self::End>;

    /// Whether the peer must send more, although no request has begun.
    fn is_opening(&self) -> bool;

    /// The end of a draining connection that has responses in its output and no request in its
    /// input; `None` if the connection waits for another request.
    fn drained(&self) -> Option<Self::End>;

    /// The end of a connection after a timeout. A connection that is not incomplete was idle.
    fn timed_out(is_incomplete: bool) -> Self::End;
}

/// The next step of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ExchangeNeed {
    Input,
    /// There may be more requests in the input.
    Output,
}

/// The bytes of a connection that were read and not taken, and those to be written.
#[derive(Debug)]
pub(super) struct ByteBuffers {
    pub(super) input: BytesMut,
    /// Number of bytes of the input that are discarded, as far as they have not arrived.
    pub(super) discard: u64,
    pub(super) output: Vec<u8>,
    /// Time of the last read.
    pub(super) received: Instant,
    /// End of the wait of a draining connection for a request; `None` before a drain.
    grace_end: Option<Instant>,
}

impl ByteBuffers {
    pub(super) fn is_draining(&self) -> bool {
        self.grace_end.is_some()
    }

    fn skip_discarded(&mut self) {
        let skipped = self.input.len().min(usize::try_from(self.discard).unwrap_or(usize::MAX));
        self.input.advance(skipped);
        self.discard -= u64::try_from(skipped).unwrap_or(u64::MAX);
    }
}

/// One connection of a protocol.
#[derive(Debug)]
pub(super) struct ByteConnection<E> {
    pub(super) exchange: E,
    pub(super) bytes: ByteBuffers,
    /// Maximum time without a request.
    idle_timeout: Duration,
    /// Time of the last whole request, or of the first byte of the next one if that was later.
    progress: Instant,
    /// Requests that were answered since the last yield.
    answered: usize,
}

impl<E: Exchange> ByteConnection<E> {
    /// A connection whose first bytes are `input`.
    pub(super) fn new(exchange: E, input: BytesMut, idle_timeout: Duration) -> Self {
        let now = Instant::now();
        let bytes =
            ByteBuffers { input, discard: 0, output: Vec::new(), received: now, grace_end: None };
        Self { exchange, bytes, idle_timeout, progress: now, answered: 0 }
    }

    /// Answers the requests until the connection ends. `drain` completes when the connection is to
    /// be drained.
    ///
    /// # Errors
    /// Returns the end of the connection, for which the output may have responses.
    pub(super) async fn serve<S: AsyncRead + AsyncWrite + Unpin>(
        &mut self,
        stream: &mut S,
        drain: impl Future<Output = ()>,
    ) -> Result<Infallible, E::End> {
        let mut drain = pin!(drain);
        // The first bytes may have a request, whose response ends a draining connection.
        tokio::select! {
            biased;
            () = &mut drain => self.begin_drain(),
            () = ready(()) => {}
        }
        let mut timer = pin!(sleep_until(self.deadline()));
        loop {
            while self.take()? == ExchangeNeed::Output {
                self.write(stream).await?;
                self.yield_to_others().await;
            }
            let is_answered = !self.bytes.output.is_empty() && !self.is_incomplete();
            if self.bytes.is_draining()
                && is_answered
                && let Some(end) = self.exchange.drained()
            {
                return Err(end);
            }
            self.write(stream).await?;
            if self.answered >= ANSWERED_AT_ONCE {
                self.yield_to_others().await;
            }
            let deadline = match self.bytes.grace_end {
                // The timer does not expire while there is always something to read.
                Some(end) if Instant::now() >= end + PROGRESS_TIMEOUT => {
                    return Err(E::timed_out(self.is_incomplete()));
                }
                Some(end) if !self.is_incomplete() => end,
                Some(_) | None => self.deadline(),
            };
            // A later deadline is set when the timer expires.
            if deadline < timer.deadline() {
                timer.as_mut().reset(deadline);
            }
            tokio::select! {
                biased;
                // First, because a busy connection always has something to read.
                () = &mut drain, if !self.bytes.is_draining() => self.begin_drain(),
                read = self.read(stream) => read?,
                () = &mut timer => {
                    if Instant::now() >= deadline {
                        return Err(E::timed_out(self.is_incomplete()));
                    }
                    timer.as_mut().reset(deadline);
                }
            }
        }
    }

    /// Writes the output and closes the connection.
    pub(super) async fn close<S: AsyncRead + AsyncWrite + Unpin>(mut self, mut stream: S) {
        if self.write(&mut stream).await.is_ok() {
            lingering_close::close(stream).await;
        }
    }

    /// Takes whole requests from the input and adds the responses to the output.
    ///
    /// # Errors
    /// Returns the end of the connection, for which the output may have responses.
    pub(super) fn take(&mut self) -> Result<ExchangeNeed, E::End> {
        for _ in 0..ANSWERED_AT_ONCE {
            let checked = keys_checked();
            self.bytes.skip_discarded();
            if self.bytes.input.is_empty()
                || self.exchange.take_one(&mut self.bytes)? == ExchangeNeed::Input
            {
                return Ok(ExchangeNeed::Input);
            }
            self.progress = self.bytes.received;
            self.answered = self.answered.saturating_add(1);
            if self.bytes.output.len() >= WRITE_SIZE || keys_checked() != checked {
                break;
            }
        }
        Ok(ExchangeNeed::Output)
    }

    fn begin_drain(&mut self) {
        self.bytes.grace_end = Some(Instant::now() + E::DRAIN_GRACE);
    }

    async fn yield_to_others(&mut self) {
        self.answered = 0;
        tokio::task::yield_now().await;
    }

    /// Whether the peer must send the rest of a request, or the first one.
    fn is_incomplete(&self) -> bool {
        self.bytes.discard > 0 || !self.bytes.input.is_empty() || self.exchange.is_opening()
    }

    /// The end of the wait for more bytes.
    fn deadline(&self) -> Instant {
        match self.is_incomplete() {
            true => self.progress + PROGRESS_TIMEOUT,
            false => self.bytes.received + self.idle_timeout,
        }
    }

    /// Reads the bytes that have arrived, or waits for some.
    pub(super) async fn read<S: AsyncRead + Unpin>(&mut self, stream: &mut S) -> io::Result<()> {
        let begins_request = !self.is_incomplete();
        let input = &mut self.bytes.input;
        if input.is_empty() && input.capacity() > E::KEPT_SIZE {
            *input = BytesMut::new();
        }
        input.reserve(E::READ_SIZE);
        if stream.read_buf(input).await? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        self.bytes.received = Instant::now();
        if begins_request {
            self.progress = self.bytes.received;
        }
        Ok(())
    }

    /// Writes the output, in one system call if the peer reads.
    async fn write<S: AsyncWrite + Unpin>(&mut self, stream: &mut S) -> io::Result<()> {
        let output = &mut self.bytes.output;
        if output.is_empty() {
            return Ok(());
        }
        let writing = async {
            stream.write_all(output).await?;
            stream.flush().await
        };
        let written = timeout(PROGRESS_TIMEOUT, writing).await;
        output.clear();
        written.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
    }
}

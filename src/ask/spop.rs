//! The door of HAProxy: SPOP 2.0, the Stream Processing Offload Protocol.
//!
//! HAProxy opens a connection, sends HELLO, and then NOTIFY frames with questions. Each gets an ACK
//! with the variables that the rules of HAProxy read. The answers of all frames that are there at
//! once leave in one write. Source: HAProxy, `doc/SPOE.txt`, section 3.

mod arguments;
mod frame;
mod hello;
mod notify;

use std::convert::Infallible;
use std::io;
use std::pin::pin;
use std::rc::Rc;
use std::time::Duration;

use bytes::{Buf, BytesMut};
use hyper::header::HeaderValue;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::time::{Instant, sleep_until, timeout};
use tracing::debug;

use self::frame::{FrameHeader, FrameReader, LENGTH_FIELD, MAX_HEADER, kind};
use self::hello::{DisconnectReason, Hello};
use super::connection::AskConnection;
use super::question::{Answer, ClientQuestion, Unusable};
use crate::guard::{Decision, VerdictKind};
use crate::lingering_close;
use crate::process::lifecycle::Lifecycle;

/// Maximum time until HELLO, until a frame is whole, and until HAProxy reads what it was sent. The
/// connection is closed then.
const PROGRESS_TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum time that a draining connection waits for a question. The answer and DISCONNECT leave
/// in one write then, so that HAProxy does not send a question in between.
const DRAIN_GRACE: Duration = Duration::from_millis(100);
/// Free space for a read, in bytes: HAProxy's default frame size.
const READ_SIZE: usize = 16 << 10;
/// Maximum capacity of a buffer that an idle connection keeps, in bytes: a read after half a frame.
const KEPT_SIZE: usize = 2 * READ_SIZE;
/// Length of the answers that are kept for one write, in bytes. Further frames wait for the write.
const WRITE_SIZE: usize = 32 << 10;
/// Questions that are answered without yielding to other connections.
const ANSWERED_AT_ONCE: usize = 128;

/// Serves the questions of one connection.
pub(crate) async fn serve(
    mut stream: impl AsyncRead + AsyncWrite + Unpin + 'static,
    connection: Rc<AskConnection>,
) {
    let limits = connection.config().limits;
    let max_question_size = usize::try_from(limits.max_question_size).unwrap_or(usize::MAX);
    let mut frames = Frames::new(max_question_size, limits.idle_timeout);
    let answer = |question: &ClientQuestion<'_>| connection.answer(question);
    let Err(end) = converse(&mut stream, &mut frames, connection.closing(), answer).await;
    let output = &mut frames.output;
    match end {
        FramesEnd::Disconnect(reason) => {
            if reason != DisconnectReason::Normal {
                debug!(reason = reason.as_str(), "connection of an asker closed");
            }
            reason.write(output);
        }
        FramesEnd::HealthCheck if *connection.lifecycle().borrow() == Lifecycle::Serving => {}
        FramesEnd::HealthCheck => {
            output.clear();
            DisconnectReason::Normal.write(output);
        }
        FramesEnd::Gone => return,
    }
    if write(&mut stream, output).await.is_ok() {
        lingering_close::close(stream).await;
    }
}

/// The end of a connection. What is in the output is written before it is closed.
#[derive(Debug)]
enum FramesEnd {
    Disconnect(DisconnectReason),
    HealthCheck,
    /// The peer has closed the connection, or it has failed.
    Gone,
}

impl From<DisconnectReason> for FramesEnd {
    fn from(reason: DisconnectReason) -> Self {
        Self::Disconnect(reason)
    }
}

impl From<io::Error> for FramesEnd {
    fn from(_: io::Error) -> Self {
        Self::Gone
    }
}

/// The frames of one connection, between its bytes.
#[derive(Debug)]
struct Frames {
    /// Maximum length of a frame that is read, in bytes. Longer ones are denied unread.
    max_question_size: usize,
    /// Maximum time without a frame.
    idle_timeout: Duration,
    /// HAProxy's first frame, once it was there.
    hello: Option<Hello>,
    /// Bytes of a denied frame that are still to be discarded.
    discard: usize,
    input: BytesMut,
    output: Vec<u8>,
    /// Time of the last read.
    received: Instant,
    /// Time of the last whole frame, or of the first byte of the next one if that was later.
    progress: Instant,
}

/// What a connection needs next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum FramesNeed {
    Input,
    /// There may be more frames in the input.
    Output,
}

impl Frames {
    fn new(max_question_size: usize, idle_timeout: Duration) -> Self {
        let now = Instant::now();
        Self {
            max_question_size,
            idle_timeout,
            hello: None,
            discard: 0,
            input: BytesMut::new(),
            output: Vec::new(),
            received: now,
            progress: now,
        }
    }

    /// Whether the peer must send more: HELLO, or the rest of a frame.
    fn is_incomplete(&self) -> bool {
        self.hello.is_none() || self.discard > 0 || !self.input.is_empty()
    }

    /// The end of the wait for more bytes.
    fn deadline(&self) -> Instant {
        match self.is_incomplete() {
            true => self.progress + PROGRESS_TIMEOUT,
            false => self.received + self.idle_timeout,
        }
    }

    /// Takes whole frames from the input and adds the responses to the output.
    fn take(
        &mut self,
        answer: &mut impl FnMut(&ClientQuestion<'_>) -> Answer,
    ) -> Result<FramesNeed, FramesEnd> {
        for _ in 0..ANSWERED_AT_ONCE {
            if self.take_one(answer)? == FramesNeed::Input {
                return Ok(FramesNeed::Input);
            }
            self.progress = self.received;
            if self.output.len() >= WRITE_SIZE {
                break;
            }
        }
        Ok(FramesNeed::Output)
    }

    fn take_one(
        &mut self,
        answer: &mut impl FnMut(&ClientQuestion<'_>) -> Answer,
    ) -> Result<FramesNeed, FramesEnd> {
        let skipped = self.discard.min(self.input.len());
        self.input.advance(skipped);
        self.discard -= skipped;
        let Some((length, rest)) = self.input.split_first_chunk::<{ LENGTH_FIELD }>() else {
            return Ok(FramesNeed::Input);
        };
        let length = usize::try_from(u32::from_be_bytes(*length)).unwrap_or(usize::MAX);
        if length > self.hello.map_or(self.max_question_size, |hello| hello.max_frame_size) {
            return Err(DisconnectReason::FrameTooBig.into());
        }
        let received = self.received.into_std();
        if length > self.max_question_size {
            let Some(start) = rest.get(..MAX_HEADER.min(length)) else {
                return Ok(FramesNeed::Input);
            };
            let header = notify_header(&mut FrameReader::new(start))?;
            notify::deny(header, received, Unusable::Oversize, answer, &mut self.output);
            self.discard = length.saturating_add(LENGTH_FIELD);
            return Ok(FramesNeed::Output);
        }
        let Some(frame) = rest.get(..length) else { return Ok(FramesNeed::Input) };
        let mut frame = FrameReader::new(frame);
        if let Some(hello) = self.hello {
            let header = notify_header(&mut frame)?;
            let limit = hello.max_frame_size.min(self.max_question_size);
            notify::acknowledge(header, received, frame, limit, answer, &mut self.output);
        } else {
            let hello = read_hello(&mut frame)?;
            hello.respond(hello.max_frame_size.min(self.max_question_size), &mut self.output);
            self.hello = Some(hello);
            if hello.health_check {
                return Err(FramesEnd::HealthCheck);
            }
        }
        self.input.advance(LENGTH_FIELD.saturating_add(length));
        Ok(FramesNeed::Output)
    }
}

/// The header of a NOTIFY frame.
fn notify_header(frame: &mut FrameReader<'_>) -> Result<FrameHeader, DisconnectReason> {
    let header = FrameHeader::read(frame)?;
    match header.kind {
        _ if !header.is_whole => Err(DisconnectReason::Fragmented),
        kind::NOTIFY => Ok(header),
        kind::HAPROXY_DISCONNECT => Err(DisconnectReason::Normal),
        _ => Err(DisconnectReason::InvalidFrame),
    }
}

fn read_hello(frame: &mut FrameReader<'_>) -> Result<Hello, DisconnectReason> {
    let header = FrameHeader::read(frame)?;
    match header.kind {
        _ if !header.is_whole => Err(DisconnectReason::Fragmented),
        kind::HAPROXY_HELLO => Hello::read(frame),
        kind::HAPROXY_DISCONNECT => Err(DisconnectReason::Normal),
        _ => Err(DisconnectReason::InvalidFrame),
    }
}

/// Answers the questions of one connection until it ends. `drain` completes when the connection is
/// to be drained.
async fn converse<S: AsyncRead + AsyncWrite + Unpin>(
    stream: &mut S,
    frames: &mut Frames,
    drain: impl Future<Output = ()>,
    mut answer: impl FnMut(&ClientQuestion<'_>) -> Answer,
) -> Result<Infallible, FramesEnd> {
    let mut drain = pin!(drain);
    let mut last_question = None; // a draining connection waits for it until then
    let mut timer = pin!(sleep_until(frames.deadline()));
    loop {
        while frames.take(&mut answer)? == FramesNeed::Output {
            write(stream, &mut frames.output).await?;
            tokio::task::yield_now().await;
        }
        if last_question.is_some() && !frames.output.is_empty() && !frames.is_incomplete() {
            return Err(DisconnectReason::Normal.into());
        }
        write(stream, &mut frames.output).await?;
        let deadline = match last_question {
            Some(time) if !frames.is_incomplete() => time,
            Some(_) | None => frames.deadline(),
        };
        // A later deadline is set when the timer expires.
        if deadline < timer.deadline() {
            timer.as_mut().reset(deadline);
        }
        tokio::select! {
            biased;
            read = read(stream, frames) => read?,
            () = &mut drain, if last_question.is_none() => {
                last_question = Some(Instant::now() + DRAIN_GRACE);
            }
            () = &mut timer => {
                if Instant::now() < deadline {
                    timer.as_mut().reset(deadline);
                } else if frames.is_incomplete() {
                    return Err(DisconnectReason::Timeout.into());
                } else {
                    return Err(DisconnectReason::Normal.into());
                }
            }
        }
    }
}

/// The responses to the bytes of one connection, which arrive in `pieces`. A question with a readable
/// certificate is admitted. For the fuzz target.
#[doc(hidden)]
pub fn responses<'a>(pieces: impl Iterator<Item = &'a [u8]>) -> Vec<u8> {
    let mut answer = |question: &ClientQuestion<'_>| {
        let (decision, verdict) = match question.fingerprint() {
            Some(_) => (Decision::Admit, VerdictKind::Clean),
            None => (Decision::Reject, VerdictKind::Unchecked),
        };
        let status = HeaderValue::from_static(verdict.as_str());
        Answer { decision, verdict, status, reason: None, filter: None }
    };
    let mut frames = Frames::new(FUZZED_QUESTION_SIZE, PROGRESS_TIMEOUT);
    for piece in pieces {
        frames.input.extend_from_slice(piece);
        loop {
            match frames.take(&mut answer) {
                Ok(FramesNeed::Input) => break,
                Ok(FramesNeed::Output) => {}
                Err(FramesEnd::Disconnect(reason)) => {
                    reason.write(&mut frames.output);
                    return frames.output;
                }
                Err(FramesEnd::Gone | FramesEnd::HealthCheck) => return frames.output,
            }
        }
    }
    frames.output
}

/// `max_question_size` of the fuzz target, in bytes: less than its inputs have.
const FUZZED_QUESTION_SIZE: usize = 4096;

/// Reads what is there.
async fn read<S: AsyncRead + Unpin>(stream: &mut S, frames: &mut Frames) -> io::Result<()> {
    let begins_frame = !frames.is_incomplete();
    if frames.input.is_empty() && frames.input.capacity() > KEPT_SIZE {
        frames.input = BytesMut::new();
    }
    frames.input.reserve(READ_SIZE);
    if stream.read_buf(&mut frames.input).await? == 0 {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    frames.received = Instant::now();
    if begins_frame {
        frames.progress = frames.received;
    }
    Ok(())
}

/// Writes `output`, in one system call if the peer reads.
async fn write<S: AsyncWrite + Unpin>(stream: &mut S, output: &mut Vec<u8>) -> io::Result<()> {
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

#[cfg(test)]
mod tests {
    use tokio::io::{DuplexStream, duplex};

    use super::*;

    /// HELLO of HAProxy, and a NOTIFY with one message that is not known.
    const HELLO: &[u8] = b"\0\0\0\x41\x01\0\0\0\x01\0\0\x12supported-versions\x08\x032.0\
        \x0emax-frame-size\x03\xfc\xf0\x06\x0ccapabilities\x08\x00";
    const NOTIFY: &[u8] = b"\0\0\0\x0a\x03\0\0\0\x01\x05\x01\x01m\0";

    fn admit(_: &ClientQuestion<'_>) -> Answer {
        Answer {
            decision: Decision::Admit,
            verdict: VerdictKind::Clean,
            status: HeaderValue::from_static("clean"),
            reason: None,
            filter: None,
        }
    }

    /// A conversation over a stream that holds `size` bytes in each direction.
    fn conversation(size: usize) -> (DuplexStream, tokio::task::JoinHandle<FramesEnd>) {
        let (mut stream, peer) = duplex(size);
        let serving = tokio::spawn(async move {
            let mut frames = Frames::new(64 << 10, Duration::from_secs(60));
            let drain = std::future::pending();
            let Err(end) = converse(&mut stream, &mut frames, drain, admit).await;
            end
        });
        (peer, serving)
    }

    async fn timed_out(
        serving: tokio::task::JoinHandle<FramesEnd>,
        expected: Duration,
    ) -> FramesEnd {
        let since = Instant::now();
        let end = serving.await.unwrap();
        assert_eq!(since.elapsed().as_secs(), expected.as_secs());
        end
    }

    #[tokio::test(start_paused = true)]
    async fn a_peer_without_hello_gets_a_disconnect() {
        let (mut peer, serving) = conversation(1 << 16);
        peer.write_all(&HELLO[..20]).await.unwrap();
        let end = timed_out(serving, PROGRESS_TIMEOUT).await;
        assert!(matches!(end, FramesEnd::Disconnect(DisconnectReason::Timeout)), "{end:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_frame_has_a_time_limit_however_slowly_its_bytes_arrive() {
        let (mut peer, serving) = conversation(1 << 16);
        peer.write_all(HELLO).await.unwrap();
        let sending = async {
            for byte in NOTIFY {
                let _ = peer.write_all(&[*byte]).await; // the door may have closed
                tokio::time::sleep(Duration::from_secs(1)).await;
            }
        };
        let since = Instant::now();
        let (_, end) = tokio::join!(sending, serving);
        let end = end.unwrap();
        assert!(matches!(end, FramesEnd::Disconnect(DisconnectReason::Timeout)), "{end:?}");
        assert!(since.elapsed() < Duration::from_secs(30));
    }

    #[tokio::test(start_paused = true)]
    async fn frames_that_follow_each_other_have_no_common_time_limit() {
        let (mut peer, serving) = conversation(1 << 16);
        peer.write_all(HELLO).await.unwrap();
        // Each write ends within a frame.
        let (first, second) = NOTIFY.split_at(5);
        peer.write_all(first).await.unwrap();
        for _ in 0..20 {
            tokio::time::sleep(Duration::from_secs(4)).await;
            peer.write_all(&[second, first].concat()).await.unwrap();
        }
        assert!(!serving.is_finished());
        serving.abort();
    }

    #[tokio::test(start_paused = true)]
    async fn an_idle_connection_is_closed_after_the_idle_timeout() {
        let (mut peer, serving) = conversation(1 << 16);
        peer.write_all(HELLO).await.unwrap();
        let end = timed_out(serving, Duration::from_secs(60)).await;
        assert!(matches!(end, FramesEnd::Disconnect(DisconnectReason::Normal)), "{end:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_peer_that_does_not_read_is_closed() {
        let (mut peer, serving) = conversation(256);
        peer.write_all(HELLO).await.unwrap();
        let flood = async { while peer.write_all(NOTIFY).await.is_ok() {} };
        let (_, end) = tokio::join!(flood, timed_out(serving, PROGRESS_TIMEOUT));
        assert!(matches!(end, FramesEnd::Gone), "{end:?}");
    }

    #[tokio::test]
    async fn the_buffer_of_a_long_frame_is_freed_after_it() {
        let (mut stream, mut peer) = duplex(1 << 16);
        let mut frames = Frames::new(64 << 10, Duration::from_secs(60));
        frames.input.reserve(60 << 10);
        peer.write_all(HELLO).await.unwrap();
        read(&mut stream, &mut frames).await.unwrap();
        assert!(frames.input.capacity() <= KEPT_SIZE, "{}", frames.input.capacity());
        assert_eq!(frames.input, HELLO);
    }

    /// The answers to the frames of one read leave in one write.
    #[tokio::test]
    async fn answers_that_are_ready_together_are_written_together() {
        struct Counting(DuplexStream, Rc<std::cell::Cell<usize>>);

        impl AsyncRead for Counting {
            fn poll_read(
                mut self: std::pin::Pin<&mut Self>,
                context: &mut std::task::Context<'_>,
                buffer: &mut tokio::io::ReadBuf<'_>,
            ) -> std::task::Poll<io::Result<()>> {
                std::pin::Pin::new(&mut self.0).poll_read(context, buffer)
            }
        }

        impl AsyncWrite for Counting {
            fn poll_write(
                mut self: std::pin::Pin<&mut Self>,
                context: &mut std::task::Context<'_>,
                bytes: &[u8],
            ) -> std::task::Poll<io::Result<usize>> {
                self.1.set(self.1.get() + 1);
                std::pin::Pin::new(&mut self.0).poll_write(context, bytes)
            }

            fn poll_flush(
                mut self: std::pin::Pin<&mut Self>,
                context: &mut std::task::Context<'_>,
            ) -> std::task::Poll<io::Result<()>> {
                std::pin::Pin::new(&mut self.0).poll_flush(context)
            }

            fn poll_shutdown(
                mut self: std::pin::Pin<&mut Self>,
                context: &mut std::task::Context<'_>,
            ) -> std::task::Poll<io::Result<()>> {
                std::pin::Pin::new(&mut self.0).poll_shutdown(context)
            }
        }

        let (stream, mut peer) = duplex(1 << 20);
        let writes = Rc::default();
        peer.write_all(&[HELLO, &NOTIFY.repeat(100)].concat()).await.unwrap();
        peer.shutdown().await.unwrap();
        let mut frames = Frames::new(64 << 10, Duration::from_secs(60));
        let mut stream = Counting(stream, Rc::clone(&writes));
        let drain = std::future::pending();
        let Err(end) = converse(&mut stream, &mut frames, drain, admit).await;
        assert!(matches!(end, FramesEnd::Gone), "{end:?}");
        assert_eq!(writes.get(), 1);
    }
}

//! A connection over HTTP/1.0 or HTTP/1.1. Answers of requests that are there at once leave in one
//! write.

use std::convert::Infallible;
use std::io;
use std::mem::MaybeUninit;
use std::pin::pin;
use std::time::Duration;

use bytes::{Buf, BytesMut};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::time::{Instant, sleep_until, timeout};

use super::fields::RequestFields;
use super::head::{self, BodyLength, MAX_FIELDS, RequestMethod};
use super::response::{HttpAnswer, NextRequest};
use crate::ask::question::Unusable;
use crate::config::AuthorizerLimits;
use crate::lingering_close;

/// Maximum time until a request is whole, and until the peer reads its responses. The connection is
/// closed then.
pub(super) const PROGRESS_TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum time that a draining connection waits for a question, whose response says that the
/// connection closes. A host that sends one at the moment of the close would lose it.
pub(super) const DRAIN_GRACE: Duration = Duration::from_secs(1);
/// Free space for a read, in bytes: a question of most hosts.
const READ_SIZE: usize = 4 << 10;
/// Maximum capacity that an idle connection keeps, in bytes.
const KEPT_SIZE: usize = 16 << 10;
/// Length of the responses that are kept for one write, in bytes. Further requests wait for it.
const WRITE_SIZE: usize = 32 << 10;
/// Questions that are answered without yielding to other connections.
const ANSWERED_AT_ONCE: usize = 128;

/// Serves a connection whose first bytes are `input`, until it ends. After `drain` has ended the
/// connection is closed with the next response.
pub(super) async fn serve<S: AsyncRead + AsyncWrite + Unpin>(
    mut stream: S,
    input: BytesMut,
    limits: AuthorizerLimits,
    answer: impl FnMut(Result<RequestFields<'_>, Unusable>) -> HttpAnswer,
    drain: impl Future<Output = ()>,
) {
    let mut requests = Requests::new(input, limits);
    let Err(end) = converse(&mut stream, &mut requests, drain, answer).await;
    match end {
        RequestsEnd::Answered => {
            if write(&mut stream, &mut requests.output).await.is_ok() {
                lingering_close::close(stream).await;
            }
        }
        RequestsEnd::Gone => {}
    }
}

/// The end of a connection.
#[derive(Debug, PartialEq, Eq)]
enum RequestsEnd {
    /// Closed after the responses in the output.
    Answered,
    /// The peer has closed the connection, or it has failed.
    Gone,
}

impl From<io::Error> for RequestsEnd {
    fn from(_: io::Error) -> Self {
        Self::Gone
    }
}

/// The requests of one connection, between its bytes.
struct Requests {
    /// Maximum length of a head, in bytes.
    max_size: usize,
    /// Maximum time without a request.
    idle_timeout: Duration,
    /// Bytes of a body that are still to be discarded.
    discard: u64,
    input: BytesMut,
    /// Number of bytes of the input in which no head ends.
    searched: usize,
    output: Vec<u8>,
    is_draining: bool,
    /// Time of the last read.
    received: Instant,
    /// Time of the last whole request, or of the first byte of the next one if that was later.
    progress: Instant,
}

/// What a connection needs next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum RequestsNeed {
    Input,
    /// There may be more requests in the input.
    Output,
}

impl Requests {
    fn new(input: BytesMut, limits: AuthorizerLimits) -> Self {
        let now = Instant::now();
        Self {
            max_size: usize::try_from(limits.max_question_size).unwrap_or(usize::MAX),
            idle_timeout: limits.idle_timeout,
            discard: 0,
            input,
            searched: 0,
            output: Vec::new(),
            is_draining: false,
            received: now,
            progress: now,
        }
    }

    /// Whether the peer must send the rest of a request.
    fn is_incomplete(&self) -> bool {
        self.discard > 0 || !self.input.is_empty()
    }

    /// The end of the wait for more bytes.
    fn deadline(&self) -> Instant {
        match self.is_incomplete() {
            true => self.progress + PROGRESS_TIMEOUT,
            false => self.received + self.idle_timeout,
        }
    }

    /// Takes whole requests from the input and adds the responses to the output.
    fn take(
        &mut self,
        answer: &mut impl FnMut(Result<RequestFields<'_>, Unusable>) -> HttpAnswer,
    ) -> Result<RequestsNeed, RequestsEnd> {
        for _ in 0..ANSWERED_AT_ONCE {
            if self.take_one(answer)? == RequestsNeed::Input {
                return Ok(RequestsNeed::Input);
            }
            self.progress = self.received;
            if self.output.len() >= WRITE_SIZE {
                break;
            }
        }
        Ok(RequestsNeed::Output)
    }

    fn take_one(
        &mut self,
        answer: &mut impl FnMut(Result<RequestFields<'_>, Unusable>) -> HttpAnswer,
    ) -> Result<RequestsNeed, RequestsEnd> {
        let skipped = self.input.len().min(usize::try_from(self.discard).unwrap_or(usize::MAX));
        self.input.advance(skipped);
        self.discard -= u64::try_from(skipped).unwrap_or(u64::MAX);
        if self.discard > 0 || self.input.is_empty() {
            return Ok(RequestsNeed::Input);
        }
        let mut fields = [const { MaybeUninit::uninit() }; MAX_FIELDS];
        let parsed =
            if self.may_be_whole() { head::parse(&self.input, &mut fields) } else { Ok(None) };
        let head = match parsed {
            Ok(Some(head)) => head,
            Ok(None) if self.input.len() <= self.max_size => {
                self.searched = self.input.len();
                return Ok(RequestsNeed::Input);
            }
            Ok(None) => return Err(self.reject(Unusable::Oversize, answer)),
            Err(reason) => return Err(self.reject(Unusable::Malformed(reason), answer)),
        };
        let response = if head.length > self.max_size {
            answer(Err(Unusable::Oversize))
        } else {
            answer(Ok(RequestFields::Http1(head.fields)))
        };
        let max_body = u64::try_from(self.max_size).unwrap_or(u64::MAX);
        let body = match head.body {
            BodyLength::Sized(length) if length <= max_body => Some(length),
            BodyLength::Open | BodyLength::Sized(_) => None, // not worth reading to its end
        };
        let is_last = !head.is_persistent
            || head.method == RequestMethod::Connect
            || body.is_none()
            || (self.is_draining && head.length == self.input.len());
        let next = match head.is_http10 {
            _ if is_last => NextRequest::Close,
            true => NextRequest::KeepAlive,
            false => NextRequest::Default,
        };
        response.write(head.method, next, &mut self.output);
        if is_last {
            return Err(RequestsEnd::Answered);
        }
        self.discard = body.unwrap_or(0);
        let length = head.length;
        self.input.advance(length);
        self.searched = 0;
        Ok(RequestsNeed::Output)
    }

    /// Denies a request whose end is not known.
    fn reject(
        &mut self,
        unusable: Unusable,
        answer: &mut impl FnMut(Result<RequestFields<'_>, Unusable>) -> HttpAnswer,
    ) -> RequestsEnd {
        answer(Err(unusable)).write(RequestMethod::Other, NextRequest::Close, &mut self.output);
        RequestsEnd::Answered
    }

    /// Whether a head may end in the bytes that were not searched. So a peer that sends single bytes
    /// does not cause a parse for each of them.
    fn may_be_whole(&self) -> bool {
        let rest = self.input.get(self.searched.saturating_sub(2)..).unwrap_or_default();
        let ends = |end: &[u8]| rest.windows(end.len()).any(|window| window == end);
        self.searched == 0 || ends(b"\n\r\n") || ends(b"\n\n")
    }
}

/// Answers the requests of one connection until it ends.
async fn converse<S: AsyncRead + AsyncWrite + Unpin>(
    stream: &mut S,
    requests: &mut Requests,
    drain: impl Future<Output = ()>,
    mut answer: impl FnMut(Result<RequestFields<'_>, Unusable>) -> HttpAnswer,
) -> Result<Infallible, RequestsEnd> {
    let mut drain = pin!(drain);
    let mut last_request = None; // a draining connection waits for it until then
    let mut timer = pin!(sleep_until(requests.deadline()));
    loop {
        while requests.take(&mut answer)? == RequestsNeed::Output {
            write(stream, &mut requests.output).await?;
            tokio::task::yield_now().await;
        }
        write(stream, &mut requests.output).await?;
        let deadline = match last_request {
            Some(time) if !requests.is_incomplete() => time,
            Some(_) | None => requests.deadline(),
        };
        // A later deadline is set when the timer expires.
        if deadline < timer.deadline() {
            timer.as_mut().reset(deadline);
        }
        tokio::select! {
            biased;
            () = &mut drain, if !requests.is_draining => {
                requests.is_draining = true;
                last_request = Some(Instant::now() + DRAIN_GRACE);
            }
            read = read(stream, requests) => read?,
            () = &mut timer => {
                if Instant::now() >= deadline {
                    return Err(RequestsEnd::Answered);
                }
                timer.as_mut().reset(deadline);
            }
        }
    }
}

/// Reads what is there.
async fn read<S: AsyncRead + Unpin>(stream: &mut S, requests: &mut Requests) -> io::Result<()> {
    let begins_request = !requests.is_incomplete();
    if requests.input.is_empty() && requests.input.capacity() > KEPT_SIZE {
        requests.input = BytesMut::new();
    }
    requests.input.reserve(READ_SIZE);
    if stream.read_buf(&mut requests.input).await? == 0 {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    requests.received = Instant::now();
    if begins_request {
        requests.progress = requests.received;
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

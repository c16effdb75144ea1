//! The protocol of HAProxy: SPOP 2.0, the Stream Processing Offload Protocol.
//!
//! HAProxy opens a connection, sends HELLO, and then NOTIFY frames with questions. Each gets an ACK
//! with the variables that the rules of HAProxy read. The answers of all frames that are there at
//! once leave in one write. Source: HAProxy, `doc/SPOE.txt`, section 3.

mod arguments;
mod notify;

use std::io;
use std::rc::Rc;
use std::time::Duration;

use bytes::{Buf, BytesMut};
use hyper::header::HeaderValue;
use keygate_core::guard::{Decision, VerdictKind};
use keygate_wire::spop::frame::{FrameHeader, LENGTH_FIELD, MAX_HEADER, kind};
use keygate_wire::spop::hello::{DisconnectReason, Hello};
use keygate_wire::spop::value::FrameReader;
use tokio::io::{AsyncRead, AsyncWrite};
use tracing::debug;

use super::connection::AskConnection;
use super::denial::denial;
use super::exchange::{ByteBuffers, ByteConnection, Exchange, ExchangeNeed, PROGRESS_TIMEOUT};
use super::question::{Answer, ClientQuestion, Unusable};
use crate::process::lifecycle::Lifecycle;

/// HAProxy's default frame size, in bytes.
const DEFAULT_FRAME_SIZE: usize = 16 << 10;

/// Serves the questions of one connection.
pub(crate) async fn serve(
    mut stream: impl AsyncRead + AsyncWrite + Unpin + 'static,
    asker: Rc<AskConnection>,
) {
    let limits = asker.config().limits;
    let max_question_size = usize::try_from(limits.max_question_size).unwrap_or(usize::MAX);
    let frames =
        Frames::new(max_question_size, |question: &ClientQuestion<'_>| asker.answer(question));
    let mut connection = ByteConnection::new(frames, BytesMut::new(), limits.idle_timeout);
    let Err(end) = connection.serve(&mut stream, asker.closing()).await;
    let output = &mut connection.bytes.output;
    match end {
        FramesEnd::Disconnect(reason) => {
            if reason != DisconnectReason::NORMAL {
                debug!(reason = reason.text, "connection of an asker closed");
            }
            reason.write(output);
        }
        FramesEnd::HealthCheck if *asker.lifecycle().borrow() == Lifecycle::Serving => {}
        FramesEnd::HealthCheck => {
            output.clear();
            DisconnectReason::NORMAL.write(output);
        }
        FramesEnd::Gone => return,
    }
    connection.close(stream).await;
}

/// The end of a connection. Responses in the output are written before it is closed.
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

/// The frames of one connection.
#[derive(Debug)]
struct Frames<A> {
    /// Maximum length of a frame that is read, in bytes. Longer ones are denied unread.
    max_question_size: usize,
    /// HAProxy's first frame, once it was there.
    hello: Option<Hello>,
    answer: A,
}

impl<A: FnMut(&ClientQuestion<'_>) -> Answer> Frames<A> {
    fn new(max_question_size: usize, answer: A) -> Self {
        Self { max_question_size, hello: None, answer }
    }
}

impl<A: FnMut(&ClientQuestion<'_>) -> Answer> Exchange for Frames<A> {
    type End = FramesEnd;
    /// The answer and DISCONNECT leave in one write then, so that HAProxy does not send a question
    /// in between.
    const DRAIN_GRACE: Duration = Duration::from_millis(100);
    const READ_SIZE: usize = DEFAULT_FRAME_SIZE;
    /// A read after half a frame.
    const KEPT_SIZE: usize = 2 * DEFAULT_FRAME_SIZE;

    fn take_one(&mut self, bytes: &mut ByteBuffers) -> Result<ExchangeNeed, FramesEnd> {
        let ByteBuffers { input, output, .. } = bytes;
        let Some((length, rest)) = input.split_first_chunk::<{ LENGTH_FIELD }>() else {
            return Ok(ExchangeNeed::Input);
        };
        let length = usize::try_from(u32::from_be_bytes(*length)).unwrap_or(usize::MAX);
        if length > self.hello.map_or(self.max_question_size, |hello| hello.max_frame_size) {
            return Err(DisconnectReason::FRAME_TOO_BIG.into());
        }
        let received = bytes.received.into_std();
        let whole = length.saturating_add(LENGTH_FIELD);
        if length > self.max_question_size {
            let Some(start) = rest.get(..MAX_HEADER.min(length)) else {
                return Ok(ExchangeNeed::Input);
            };
            let header = header(&mut FrameReader::new(start), kind::NOTIFY)?;
            notify::deny(header, received, Unusable::Oversize, &mut self.answer, output);
            bytes.discard = u64::try_from(whole).unwrap_or(u64::MAX);
            return Ok(ExchangeNeed::Output);
        }
        let Some(frame) = rest.get(..length) else { return Ok(ExchangeNeed::Input) };
        let mut frame = FrameReader::new(frame);
        if let Some(hello) = self.hello {
            let header = header(&mut frame, kind::NOTIFY)?;
            let limit = hello.max_frame_size.min(self.max_question_size);
            notify::acknowledge(header, received, frame, limit, &mut self.answer, output);
        } else {
            header(&mut frame, kind::HAPROXY_HELLO)?;
            let hello = Hello::read(&mut frame)?;
            hello.respond(hello.max_frame_size.min(self.max_question_size), output);
            self.hello = Some(hello);
            if hello.health_check {
                return Err(FramesEnd::HealthCheck);
            }
        }
        input.advance(whole);
        Ok(ExchangeNeed::Output)
    }

    /// Whether HELLO is still to come.
    fn is_opening(&self) -> bool {
        self.hello.is_none()
    }

    fn drained(&self) -> Option<FramesEnd> {
        Some(DisconnectReason::NORMAL.into())
    }

    fn timed_out(is_incomplete: bool) -> FramesEnd {
        match is_incomplete {
            true => DisconnectReason::TIMEOUT.into(),
            false => DisconnectReason::NORMAL.into(),
        }
    }
}

/// The header of a frame, which must be of the `expected` kind.
fn header(frame: &mut FrameReader<'_>, expected: u8) -> Result<FrameHeader, DisconnectReason> {
    let header = FrameHeader::read(frame)?;
    match header.kind {
        _ if !header.is_whole => Err(DisconnectReason::FRAGMENTED),
        kind if kind == expected => Ok(header),
        kind::HAPROXY_DISCONNECT => Err(DisconnectReason::NORMAL),
        _ => Err(DisconnectReason::INVALID_FRAME),
    }
}

/// The responses to the bytes of one connection, which arrive in `pieces`. A question with a
/// readable certificate is admitted. For the fuzz target.
#[doc(hidden)]
pub fn responses<'a>(pieces: impl Iterator<Item = &'a [u8]>) -> Vec<u8> {
    let answer = |question: &ClientQuestion<'_>| {
        let (decision, verdict) = match question.fingerprint() {
            Some(_) => (Decision::Admit, VerdictKind::Clean),
            None => (Decision::Reject, VerdictKind::Unchecked),
        };
        let status = HeaderValue::from_static(verdict.as_str());
        Answer { decision, verdict, status, reason: None, ..denial("") }
    };
    let frames = Frames::new(FUZZED_QUESTION_SIZE, answer);
    let mut connection = ByteConnection::new(frames, BytesMut::new(), PROGRESS_TIMEOUT);
    for piece in pieces {
        connection.bytes.input.extend_from_slice(piece);
        loop {
            match connection.take() {
                Ok(ExchangeNeed::Input) => break,
                Ok(ExchangeNeed::Output) => {}
                Err(FramesEnd::Disconnect(reason)) => {
                    reason.write(&mut connection.bytes.output);
                    return connection.bytes.output;
                }
                Err(FramesEnd::Gone | FramesEnd::HealthCheck) => return connection.bytes.output,
            }
        }
    }
    connection.bytes.output
}

/// `max_question_size` of the fuzz target, in bytes: less than its inputs have.
const FUZZED_QUESTION_SIZE: usize = 4096;

#[cfg(test)]
mod tests;

//! The requests of a connection over HTTP/1.0 or HTTP/1.1.

use std::io;
use std::mem::MaybeUninit;
use std::time::Duration;

use bytes::{Buf, BytesMut};
use tokio::io::{AsyncRead, AsyncWrite};

use super::fields::{HttpRequest, RequestFields};
use super::head::{self, BodyLength, MAX_FIELDS, RequestMethod};
use super::response::{HttpAnswer, NextRequest};
use crate::ask::exchange::{ByteBuffers, ByteConnection, Exchange, ExchangeNeed};
use crate::ask::question::Unusable;
use crate::config::AuthorizerLimits;

/// First bytes of a connection over HTTP/2 (RFC 9113, section 3.4).
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// A body that must be read needs its length.
const OPEN_BODY: Unusable = Unusable::Malformed(
    "the body has no Content-Length, or its sender waits for 100 (Continue) before it sends it",
);

/// Maximum time that a draining connection waits for a question, whose response has
/// `Connection: close`, 1 s. A host that sends one at the moment of the close would lose it.
const DRAIN_GRACE: Duration = Duration::from_secs(1);

/// Serves a connection whose first bytes are `input`, until it ends. A body is a part of the question
/// if the protocol `reads_body`, and discarded otherwise. After `drain` has ended the
/// connection is closed with the next response. Returns a connection that begins with HTTP/2, and the
/// bytes that were read from it.
pub(super) async fn serve<S: AsyncRead + AsyncWrite + Unpin>(
    mut stream: S,
    input: BytesMut,
    limits: AuthorizerLimits,
    reads_body: bool,
    answer: impl FnMut(Result<HttpRequest<'_>, Unusable>) -> HttpAnswer,
    drain: impl Future<Output = ()>,
) -> Option<(S, BytesMut)> {
    let max_size = usize::try_from(limits.max_question_size).unwrap_or(usize::MAX);
    let requests = Requests { is_first: true, max_size, searched: 0, reads_body, answer };
    let mut connection = ByteConnection::new(requests, input, limits.idle_timeout);
    let Err(end) = connection.serve(&mut stream, drain).await;
    match end {
        RequestsEnd::Answered => connection.close(stream).await,
        RequestsEnd::Gone => {}
        RequestsEnd::Http2 => return Some((stream, connection.bytes.input)),
    }
    None
}

/// The end of a connection.
#[derive(Debug, PartialEq, Eq)]
enum RequestsEnd {
    /// Closed after the responses in the output.
    Answered,
    /// The peer has closed the connection, or it has failed.
    Gone,
    /// The connection begins with HTTP/2.
    Http2,
}

impl From<io::Error> for RequestsEnd {
    fn from(_: io::Error) -> Self {
        Self::Gone
    }
}

/// The requests of one connection.
struct Requests<A> {
    /// Whether no request has begun.
    is_first: bool,
    /// Maximum length of a head, in bytes.
    max_size: usize,
    /// Number of bytes of the input in which no head ends.
    searched: usize,
    reads_body: bool,
    answer: A,
}

impl<A: FnMut(Result<HttpRequest<'_>, Unusable>) -> HttpAnswer> Exchange for Requests<A> {
    type End = RequestsEnd;
    const DRAIN_GRACE: Duration = DRAIN_GRACE;
    /// A question of most hosts.
    const READ_SIZE: usize = 4 << 10;
    const KEPT_SIZE: usize = 16 << 10;

    fn take_one(&mut self, bytes: &mut ByteBuffers) -> Result<ExchangeNeed, RequestsEnd> {
        let is_draining = bytes.is_draining();
        let ByteBuffers { input, output, .. } = bytes;
        if self.is_first {
            if input.starts_with(PREFACE) {
                return Err(RequestsEnd::Http2);
            }
            if PREFACE.starts_with(input) {
                return Ok(ExchangeNeed::Input);
            }
            self.is_first = false;
        }
        let mut fields = [const { MaybeUninit::uninit() }; MAX_FIELDS];
        let parsed =
            if self.may_be_whole(input) { head::parse(input, &mut fields) } else { Ok(None) };
        let head = match parsed {
            Ok(Some(head)) => head,
            Ok(None) if input.len() <= self.max_size => {
                self.searched = input.len();
                return Ok(ExchangeNeed::Input);
            }
            Ok(None) => return Err(self.reject(Unusable::Oversize, output)),
            Err(reason) => return Err(self.reject(Unusable::Malformed(reason), output)),
        };
        let body = match head.body {
            BodyLength::Sized(length) => {
                // A longer one is not worth reading.
                let length = usize::try_from(length).ok().filter(|it| *it <= self.max_size);
                length.ok_or(Unusable::Oversize)
            }
            BodyLength::Open => Err(OPEN_BODY),
        };
        let request = match body {
            _ if head.length > self.max_size => Err(Unusable::Oversize),
            Err(unusable) if self.reads_body => Err(unusable),
            Ok(length) if self.reads_body => {
                let end = head.length.saturating_add(length);
                let Some(body) = input.get(head.length..end) else {
                    self.searched = 0;
                    return Ok(ExchangeNeed::Input);
                };
                Ok(body)
            }
            Ok(_) | Err(_) => Ok(&[][..]),
        };
        let fields = RequestFields::Http1(head.fields);
        let response = (self.answer)(request.map(|body| HttpRequest { fields, body }));
        let body = body.ok();
        let closes = is_draining || response.closes;
        let is_last = !head.is_persistent
            || head.method == RequestMethod::Connect
            || body.is_none_or(|body| closes && input.len() <= head.length.saturating_add(body));
        let next = match head.is_http10 {
            _ if is_last => NextRequest::Close,
            true => NextRequest::KeepAlive,
            false => NextRequest::Default,
        };
        response.write(head.method, next, output);
        if is_last {
            return Err(RequestsEnd::Answered);
        }
        let length = head.length;
        input.advance(length);
        bytes.discard = body.and_then(|body| u64::try_from(body).ok()).unwrap_or(0);
        self.searched = 0;
        Ok(ExchangeNeed::Output)
    }

    fn is_opening(&self) -> bool {
        false
    }

    /// The last response has `Connection: close`.
    fn drained(&self) -> Option<RequestsEnd> {
        None
    }

    fn timed_out(_is_incomplete: bool) -> RequestsEnd {
        RequestsEnd::Answered
    }
}

impl<A: FnMut(Result<HttpRequest<'_>, Unusable>) -> HttpAnswer> Requests<A> {
    /// Denies a request whose end is not known.
    fn reject(&mut self, unusable: Unusable, output: &mut Vec<u8>) -> RequestsEnd {
        let response = (self.answer)(Err(unusable));
        response.write(RequestMethod::Other, NextRequest::Close, output);
        RequestsEnd::Answered
    }

    /// Whether a head may end in the bytes that were not searched. So a peer that sends single
    /// bytes does not cause a parse for each of them.
    fn may_be_whole(&self, input: &[u8]) -> bool {
        let rest = input.get(self.searched.saturating_sub(2)..).unwrap_or_default();
        let ends = |end: &[u8]| rest.windows(end.len()).any(|window| window == end);
        self.searched == 0 || ends(b"\n\r\n") || ends(b"\n\n")
    }
}

#[cfg(test)]
mod tests;

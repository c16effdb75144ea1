//! Responses over HTTP/1.1 (RFC 9112): the bytes that were read, their heads, and the framing and
//! the pieces of their bodies (section 6.3).

mod chunks;

use std::io;
use std::mem::MaybeUninit;
use std::pin::pin;
use std::task::{Context, Poll, ready};

use bytes::{Bytes, BytesMut};
use httparse::{ParserConfig, Status};
use hyper::ext::ReasonPhrase;
use hyper::header::{self, HeaderMap, HeaderName, HeaderValue};
use hyper::{Response, StatusCode, Version};
use smallvec::SmallVec;
use tokio::io::{AsyncRead, AsyncReadExt};

use self::chunks::ChunkDecoder;
use super::MAX_BUFFER;
use crate::fields;
use crate::incoming::Http1Error;
use crate::permit::ledger;

/// Size of the first read on a connection, in bytes.
const MIN_READ: usize = 8 << 10;
/// Maximum number of fields in a response head. More are a 502.
const MAX_FIELDS: usize = 100;

/// The bytes that were read from a connection and not used.
#[derive(Debug, Default)]
pub(super) struct ReadBuffer {
    pub(super) bytes: BytesMut,
    read_size: ReadSize,
}

impl ReadBuffer {
    /// Reads from the connection. Returns how many bytes were read, 0 at the end of the connection.
    pub(super) fn poll_fill<IO: AsyncRead + Unpin + ?Sized>(
        &mut self,
        context: &mut Context<'_>,
        io: &mut IO,
    ) -> Poll<io::Result<usize>> {
        let room = self.bytes.capacity().saturating_sub(self.bytes.len());
        if room < self.read_size.min_room() {
            self.bytes.reserve(self.read_size.next.min(ledger::max_read()));
        }
        let room = self.bytes.capacity().saturating_sub(self.bytes.len());
        let count = ready!(pin!(io.read_buf(&mut self.bytes)).poll(context))?;
        self.read_size.record(count, room);
        Poll::Ready(Ok(count))
    }
}

/// The size of the next read: doubled after a read that fills its room, halved after two that leave
/// more than half of it.
#[derive(Debug)]
struct ReadSize {
    next: usize,
    was_small: bool,
}

impl Default for ReadSize {
    fn default() -> Self {
        Self { next: MIN_READ, was_small: false }
    }
}

impl ReadSize {
    /// The room below which the buffer gets new memory. A small response needs no full read.
    fn min_room(&self) -> usize {
        if self.next == MIN_READ { MIN_READ / 4 } else { self.next }
    }

    fn record(&mut self, count: usize, room: usize) {
        if count >= room {
            self.next = self.next.saturating_mul(2).min(MAX_BUFFER);
        }
        let is_small = count < self.next / 2;
        if is_small && self.was_small {
            self.next = (self.next / 2).max(MIN_READ);
        }
        self.was_small = is_small && !self.was_small;
    }
}

/// Takes the head of a response from the beginning of `buffer`; `None` if it is not complete.
///
/// # Errors
/// Returns an error if the head is malformed, larger than [`MAX_BUFFER`], or has more than
/// `MAX_FIELDS` fields.
pub fn parse(buffer: &mut BytesMut) -> Result<Option<Response<()>>, Http1Error> {
    let mut fields = [const { MaybeUninit::uninit() }; MAX_FIELDS];
    let mut parsed = httparse::Response::new(&mut []);
    let config = ParserConfig::default();
    let length =
        match config.parse_response_with_uninit_headers(&mut parsed, buffer, &mut fields)? {
            Status::Complete(length) if length > MAX_BUFFER => {
                return Err(Http1Error::HeadTooLarge);
            }
            Status::Complete(length) => length,
            Status::Partial => return Ok(None),
        };
    let code = parsed.code.unwrap_or_default();
    let status = StatusCode::from_u16(code).map_err(|_| httparse::Error::Status)?;
    let reason = parsed.reason.filter(|reason| Some(*reason) != status.canonical_reason());
    let reason = reason.map(|reason| ReasonPhrase::try_from(reason.as_bytes()));
    let reason = reason.transpose().map_err(|_| httparse::Error::Status)?;
    let version = if parsed.version == Some(1) { Version::HTTP_11 } else { Version::HTTP_10 };
    let begin = buffer.as_ptr().addr();
    let mut lines = SmallVec::<[_; 16]>::new();
    for field in parsed.headers.iter() {
        let (name, value) = (field.name.as_bytes(), field.value);
        let [name_start, value_start] =
            [name, value].map(|part| part.as_ptr().addr().saturating_sub(begin));
        lines.push((name_start..name_start + name.len(), value_start..value_start + value.len()));
    }
    let text = buffer.split_to(length).freeze();
    let mut headers = HeaderMap::with_capacity(lines.len());
    for (name, value) in &lines {
        let name = HeaderName::from_bytes(text.get(name.clone()).unwrap_or_default());
        // An empty value may have any address.
        let value = if value.is_empty() { Bytes::new() } else { text.slice(value.clone()) };
        let value = HeaderValue::from_maybe_shared(value);
        let name = name.map_err(|_| httparse::Error::HeaderName)?;
        headers.append(name, value.map_err(|_| httparse::Error::HeaderValue)?);
    }
    let mut response = Response::new(());
    *response.status_mut() = status;
    *response.version_mut() = version;
    *response.headers_mut() = headers;
    if let Some(reason) = reason {
        response.extensions_mut().insert(reason);
    }
    Ok(Some(response))
}

/// Whether the server keeps the connection open after this response (RFC 9112, section 9.3).
pub(super) fn keeps_alive<B>(response: &Response<B>) -> bool {
    let has = |option| fields::has_token(response.headers(), &header::CONNECTION, option);
    if response.version() == Version::HTTP_11 {
        !has("close")
    } else {
        !has("close") && has("keep-alive")
    }
}

/// Takes the pieces of a response body from the bytes of its connection.
#[derive(Debug)]
pub enum BodyDecoder {
    /// The body is in chunks.
    Chunked(ChunkDecoder),
    /// So many bytes follow.
    Length(u64),
    /// The end of the connection is the end of the body.
    UntilClose {
        /// Whether the server has closed its side.
        has_closed: bool,
    },
}

/// The next part of a body in the bytes of its connection.
#[derive(Debug, PartialEq, Eq)]
pub enum BodyPiece {
    /// Bytes of the body.
    Data(Bytes),
    /// The body is complete.
    End,
    /// More bytes are needed.
    Incomplete,
    /// The trailers, which end the body.
    Trailers(HeaderMap),
}

impl BodyDecoder {
    /// The decoder of the body that follows the head of a final response. A `Content-Length` that
    /// counts becomes one field in canonical form.
    ///
    /// # Errors
    /// Returns an error if the length of the body is unknown or ambiguous.
    pub fn new<B>(response: &mut Response<B>, is_head: bool) -> Result<Self, Http1Error> {
        let (status, headers) = (response.status(), response.headers());
        let is_bodiless =
            [StatusCode::NO_CONTENT, StatusCode::NOT_MODIFIED, StatusCode::SWITCHING_PROTOCOLS];
        let is_bodiless = is_head || is_bodiless.contains(&status);
        let mut codings = headers.get_all(header::TRANSFER_ENCODING).iter();
        if let Some(coding) = codings.next() {
            if is_bodiless {
                return Ok(Self::Length(0));
            }
            if response.version() == Version::HTTP_10 {
                return Err(Http1Error::TransferEncoding);
            }
            // The client would get the coded bytes without a field that names the coding.
            if codings.next().is_some() || !coding.as_bytes().eq_ignore_ascii_case(b"chunked") {
                return Err(Http1Error::TransferCoding);
            }
            return Ok(Self::Chunked(ChunkDecoder::default()));
        }
        match fields::normalize_content_length(response.headers_mut())? {
            _ if is_bodiless => Ok(Self::Length(0)),
            Some(length) => Ok(Self::Length(length)),
            None => Ok(Self::UntilClose { has_closed: false }),
        }
    }

    /// Takes the next piece.
    ///
    /// # Errors
    /// Returns an error if the body is malformed.
    pub fn decode(&mut self, buffer: &mut BytesMut) -> Result<BodyPiece, Http1Error> {
        match self {
            Self::Chunked(chunks) => chunks.decode(buffer),
            Self::Length(0) | Self::UntilClose { has_closed: true } => Ok(BodyPiece::End),
            Self::Length(_) | Self::UntilClose { .. } if buffer.is_empty() => {
                Ok(BodyPiece::Incomplete)
            }
            Self::Length(remaining) => Ok(BodyPiece::Data(take(buffer, remaining))),
            Self::UntilClose { .. } => Ok(BodyPiece::Data(buffer.split().freeze())),
        }
    }

    /// Records that the server has closed its side.
    ///
    /// # Errors
    /// Returns an error if the body is not complete.
    pub(super) fn close(&mut self) -> Result<(), Http1Error> {
        match self {
            Self::Chunked(_) | Self::Length(_) => Err(Http1Error::Closed),
            Self::UntilClose { has_closed } => {
                *has_closed = true;
                Ok(())
            }
        }
    }

    pub(super) fn has_ended(&self) -> bool {
        match self {
            Self::Chunked(chunks) => chunks.has_ended(),
            Self::Length(remaining) => *remaining == 0,
            Self::UntilClose { has_closed } => *has_closed,
        }
    }

    /// Bytes that follow, if the head has declared them.
    pub(super) fn remaining(&self) -> Option<u64> {
        match self {
            Self::Length(remaining) => Some(*remaining),
            Self::Chunked(_) | Self::UntilClose { .. } => None,
        }
    }

    /// Whether a server behind another proxy may find the end of the body elsewhere (RFC 9112,
    /// section 6.3).
    pub(super) fn is_ambiguous<B>(&self, response: &Response<B>) -> bool {
        matches!(self, Self::Chunked(_)) && response.headers().contains_key(header::CONTENT_LENGTH)
    }

    /// Whether another response may follow on the connection.
    pub(super) fn is_delimited(&self) -> bool {
        !matches!(self, Self::UntilClose { .. })
    }
}

/// Takes at most `remaining` bytes, and subtracts them from it.
fn take(buffer: &mut BytesMut, remaining: &mut u64) -> Bytes {
    let count = usize::try_from(*remaining).unwrap_or(usize::MAX).min(buffer.len());
    *remaining = remaining.saturating_sub(count as u64);
    buffer.split_to(count).freeze()
}

#[cfg(test)]
mod tests;

//! The body of a response over HTTP/1.1: its framing (RFC 9112, section 6.3), and its pieces.

mod chunks;

use bytes::{Bytes, BytesMut};
use hyper::header::{self, HeaderMap};
use hyper::{Response, StatusCode, Version};

use self::chunks::ChunkDecoder;
use crate::proxy::message::h1_receive::Http1Error;

/// Takes the pieces of a response body from the bytes of its connection.
#[derive(Debug)]
pub(super) enum BodyDecoder {
    Chunked(ChunkDecoder),
    /// So many bytes follow.
    Length(u64),
    /// The end of the connection is the end of the body.
    UntilClose {
        has_closed: bool,
    },
}

/// The next part of a body in the bytes of its connection.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum BodyPiece {
    Data(Bytes),
    End,
    /// More bytes are needed.
    Incomplete,
    Trailers(HeaderMap),
}

impl BodyDecoder {
    /// The decoder of the body that follows the head of a final response.
    ///
    /// # Errors
    /// Returns an error if the length of the body is unknown or ambiguous.
    pub(super) fn of<B>(response: &Response<B>, is_head: bool) -> Result<Self, Http1Error> {
        let (status, headers) = (response.status(), response.headers());
        let is_bodiless =
            [StatusCode::NO_CONTENT, StatusCode::NOT_MODIFIED, StatusCode::SWITCHING_PROTOCOLS];
        if is_head || is_bodiless.contains(&status) {
            return Ok(Self::Length(0));
        }
        if let Some(last) = headers.get_all(header::TRANSFER_ENCODING).iter().next_back() {
            if response.version() == Version::HTTP_10 {
                return Err(Http1Error::TransferEncoding);
            }
            let last = last.to_str().ok().and_then(|codings| codings.rsplit(',').next());
            let is_chunked = last.is_some_and(|last| last.trim().eq_ignore_ascii_case("chunked"));
            return Ok(if is_chunked {
                Self::Chunked(ChunkDecoder::default())
            } else {
                Self::UntilClose { has_closed: false }
            });
        }
        match content_length(headers)? {
            Some(length) => Ok(Self::Length(length)),
            None => Ok(Self::UntilClose { has_closed: false }),
        }
    }

    /// Takes the next piece.
    ///
    /// # Errors
    /// Returns an error if the body is malformed.
    pub(super) fn decode(&mut self, buffer: &mut BytesMut) -> Result<BodyPiece, Http1Error> {
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

    /// Whether a server behind another proxy may see the end of the body elsewhere (RFC 9112,
    /// section 6.3).
    pub(super) fn is_ambiguous<B>(&self, response: &Response<B>) -> bool {
        matches!(self, Self::Chunked(_)) && response.headers().contains_key(header::CONTENT_LENGTH)
    }

    /// Whether another response may follow on the connection.
    pub(super) fn is_delimited(&self) -> bool {
        !matches!(self, Self::UntilClose { .. })
    }
}

/// The `Content-Length` of a message; `None` if it has none.
///
/// # Errors
/// Returns an error if it is not a number, or if several differ.
pub(super) fn content_length(headers: &HeaderMap) -> Result<Option<u64>, Http1Error> {
    let mut length = None;
    for value in headers.get_all(header::CONTENT_LENGTH) {
        for number in value.as_bytes().split(|byte| *byte == b',') {
            let number = number_of(number.trim_ascii()).ok_or(Http1Error::ContentLength)?;
            if length.replace(number).is_some_and(|other| other != number) {
                return Err(Http1Error::ContentLength);
            }
        }
    }
    Ok(length)
}

/// A number in decimal digits; `None` for any other text, and above [`i64::MAX`].
fn number_of(digits: &[u8]) -> Option<u64> {
    let mut number = (!digits.is_empty()).then_some(0_i64)?;
    for digit in digits {
        let digit = char::from(*digit).to_digit(10)?;
        number = number.checked_mul(10)?.checked_add(i64::from(digit))?;
    }
    u64::try_from(number).ok()
}

/// Takes at most `remaining` bytes, and subtracts them from it.
fn take(buffer: &mut BytesMut, remaining: &mut u64) -> Bytes {
    let count = usize::try_from(*remaining).unwrap_or(usize::MAX).min(buffer.len());
    *remaining = remaining.saturating_sub(count as u64);
    buffer.split_to(count).freeze()
}

#[cfg(test)]
mod tests;

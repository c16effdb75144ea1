//! The chunked transfer coding of a response body (RFC 9112, section 7.1).

use bytes::{Buf, BytesMut};
use hyper::header::{HeaderMap, HeaderName, HeaderValue};

use super::{BodyPiece, take};
use crate::incoming::Http1Error;

/// Maximum size of the extensions of all chunks of a body, in bytes.
pub(super) const MAX_EXTENSIONS: usize = 16 << 10;
/// Maximum number of leading zeros, and of spaces, around the length of a chunk. Without a limit, a
/// server could send them without end.
pub(super) const MAX_PADDING: usize = 256;
/// Maximum size of the trailers of a body, in bytes.
pub(super) const MAX_TRAILERS: usize = 16 << 10;
/// Maximum number of trailers.
pub(super) const MAX_TRAILER_FIELDS: usize = 100;

/// Takes the data from the chunks of a body (RFC 9112, section 7.1).
#[derive(Debug, Default)]
pub struct ChunkDecoder {
    state: ChunkState,
    /// Length of the current chunk; in its data, the rest of it.
    length: u64,
    /// Size of the extensions so far, in bytes.
    extensions: usize,
    /// Leading zeros and spaces around the current length.
    padding: usize,
}

#[derive(Debug, Default)]
enum ChunkState {
    /// Before the first digit of a length.
    #[default]
    Begin,
    /// After a digit.
    Length,
    /// In white space after the length.
    Space,
    Extension,
    /// Before the LF of a length line.
    LengthEnd,
    Data,
    /// Before the CR after data.
    DataCr,
    /// Before the LF after data.
    DataLf,
    /// After the last chunk.
    Trailers,
    End,
}

impl ChunkDecoder {
    pub(super) fn has_ended(&self) -> bool {
        matches!(self.state, ChunkState::End)
    }

    pub(super) fn decode(&mut self, buffer: &mut BytesMut) -> Result<BodyPiece, Http1Error> {
        loop {
            match self.state {
                ChunkState::End => return Ok(BodyPiece::End),
                ChunkState::Trailers => return self.decode_trailers(buffer),
                ChunkState::Data if !buffer.is_empty() => {
                    let data = take(buffer, &mut self.length);
                    if self.length == 0 {
                        self.state = ChunkState::DataCr;
                        self.skip_empty_end(buffer);
                    }
                    return Ok(BodyPiece::Data(data));
                }
                ChunkState::Begin
                | ChunkState::Data
                | ChunkState::DataCr
                | ChunkState::DataLf
                | ChunkState::Extension
                | ChunkState::Length
                | ChunkState::LengthEnd
                | ChunkState::Space => {}
            }
            let Some(byte) = buffer.first().copied() else { return Ok(BodyPiece::Incomplete) };
            buffer.advance(1);
            self.state = self.next(byte)?;
        }
    }

    /// Ends the body if the last chunk follows without trailers, so that the end is known together
    /// with the last data.
    fn skip_empty_end(&mut self, buffer: &mut BytesMut) {
        const LAST_CHUNK: &[u8] = b"\r\n0\r\n\r\n";
        if buffer.starts_with(LAST_CHUNK) {
            buffer.advance(LAST_CHUNK.len());
            self.state = ChunkState::End;
        }
    }

    /// The state after a byte that is not data.
    fn next(&mut self, byte: u8) -> Result<ChunkState, Http1Error> {
        let malformed = |what| Err(Http1Error::Chunk(what));
        let after_length = |byte| match byte {
            b'\t' | b' ' => Ok(ChunkState::Space),
            b';' => Ok(ChunkState::Extension),
            b'\r' => Ok(ChunkState::LengthEnd),
            _ => malformed("its length is no number"),
        };
        match self.state {
            ChunkState::Begin | ChunkState::Length => {
                let Some(digit) = char::from(byte).to_digit(16) else {
                    return if matches!(self.state, ChunkState::Begin) {
                        malformed("a length is missing")
                    } else {
                        after_length(byte)
                    };
                };
                if self.length == 0 && digit == 0 {
                    self.pad()?;
                }
                let length = self.length.checked_mul(16).map(|length| length + u64::from(digit));
                self.length = length.ok_or(Http1Error::Chunk("a length is too large"))?;
                Ok(ChunkState::Length)
            }
            ChunkState::Space => {
                self.pad()?;
                after_length(byte)
            }
            ChunkState::Extension => match byte {
                b'\r' => Ok(ChunkState::LengthEnd),
                b'\n' => malformed("an extension has a newline"),
                _ if self.extensions == MAX_EXTENSIONS => malformed("its extensions are too large"),
                _ => {
                    self.extensions += 1;
                    Ok(ChunkState::Extension)
                }
            },
            ChunkState::LengthEnd if byte == b'\n' => {
                Ok(if self.length == 0 { ChunkState::Trailers } else { ChunkState::Data })
            }
            ChunkState::DataCr if byte == b'\r' => Ok(ChunkState::DataLf),
            ChunkState::DataLf if byte == b'\n' => {
                self.padding = 0;
                Ok(ChunkState::Begin)
            }
            ChunkState::LengthEnd | ChunkState::DataCr | ChunkState::DataLf => {
                malformed("a line end is missing")
            }
            ChunkState::Data | ChunkState::Trailers | ChunkState::End => {
                malformed("a chunk is missing") // handled before
            }
        }
    }

    fn pad(&mut self) -> Result<(), Http1Error> {
        self.padding += 1;
        if self.padding > MAX_PADDING {
            return Err(Http1Error::Chunk("a length is padded too much"));
        }
        Ok(())
    }

    fn decode_trailers(&mut self, buffer: &mut BytesMut) -> Result<BodyPiece, Http1Error> {
        const END: &[u8] = b"\r\n\r\n";
        if buffer.starts_with(b"\r\n") {
            buffer.advance(2);
            self.state = ChunkState::End;
            return Ok(BodyPiece::End);
        }
        let end = buffer.windows(END.len()).position(|bytes| bytes == END);
        let length = end.map_or(buffer.len(), |end| end + END.len());
        if length > MAX_TRAILERS {
            return Err(Http1Error::Chunk("its trailers are too large"));
        }
        if end.is_none() {
            return Ok(BodyPiece::Incomplete);
        }
        let trailers = parse_trailers(&buffer.split_to(length))?;
        self.state = ChunkState::End;
        Ok(BodyPiece::Trailers(trailers))
    }
}

/// The fields of a whole trailer section.
fn parse_trailers(section: &[u8]) -> Result<HeaderMap, Http1Error> {
    let malformed = || Http1Error::Chunk("its trailers are malformed");
    let mut fields = [httparse::EMPTY_HEADER; MAX_TRAILER_FIELDS];
    let (length, fields) = match httparse::parse_headers(section, &mut fields) {
        Ok(httparse::Status::Complete(parsed)) => parsed,
        Ok(httparse::Status::Partial) | Err(_) => return Err(malformed()),
    };
    if length != section.len() {
        return Err(malformed());
    }
    let mut trailers = HeaderMap::with_capacity(fields.len());
    for field in fields {
        let name = HeaderName::from_bytes(field.name.as_bytes()).map_err(|_| malformed())?;
        let value = HeaderValue::from_bytes(field.value).map_err(|_| malformed())?;
        trailers.append(name, value);
    }
    Ok(trailers)
}

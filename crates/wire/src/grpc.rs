//! Messages of gRPC: the length-prefixed message of a unary call: one byte of flags, four of length, the message.
//!
//! Source: <https://github.com/grpc/grpc/blob/master/doc/PROTOCOL-HTTP2.md>,
//! "Length-Prefixed-Message".

use bytes::{BufMut, Bytes, BytesMut};

/// Length of the prefix, in bytes: flags and length.
pub const PREFIX: usize = 5;

/// The flag of a compressed message.
const COMPRESSED: u8 = 1;

/// The reason why a call has no usable message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BadMessage {
    /// The message is compressed. Only the host can cause this, never its client.
    Compressed,
    /// The prefix has an unknown flag.
    Flags,
    /// The call ended within the message or before it.
    Incomplete,
    /// The message did not arrive in time.
    Late,
    /// The message is longer than the receiver permits.
    Oversize,
    /// Bytes follow the message.
    Several,
}

/// The received part of a message. Memory: at most `max` bytes and one DATA frame.
#[derive(Debug)]
pub struct ReceivedMessage {
    pieces: Pieces,
    max: usize,
}

#[derive(Debug)]
enum Pieces {
    /// The first DATA frame, which mostly has the whole message: no copy.
    First(Bytes),
    Several(BytesMut),
}

impl ReceivedMessage {
    /// An empty part of a message of at most `max` bytes.
    pub fn new(max: usize) -> Self {
        Self { pieces: Pieces::First(Bytes::new()), max }
    }

    /// Adds the next bytes of the stream.
    ///
    /// # Errors
    /// Returns an error if the message is compressed, too long, or followed by more bytes.
    pub fn push(&mut self, data: Bytes) -> Result<(), BadMessage> {
        match &mut self.pieces {
            Pieces::First(first) if first.is_empty() => *first = data,
            Pieces::First(first) => {
                let mut all = BytesMut::with_capacity(first.len().saturating_add(data.len()));
                all.put_slice(first);
                all.put_slice(&data);
                self.pieces = Pieces::Several(all);
            }
            Pieces::Several(all) => all.put_slice(&data),
        }
        let Some(length) = self.length()? else { return Ok(()) };
        let received = self.bytes().len().saturating_sub(PREFIX);
        if received > length { Err(BadMessage::Several) } else { Ok(()) }
    }

    /// The message, after the end of the stream.
    ///
    /// # Errors
    /// Returns an error if the message is incomplete.
    pub fn finish(self) -> Result<Bytes, BadMessage> {
        let length = self.length()?.ok_or(BadMessage::Incomplete)?;
        let mut all = match self.pieces {
            Pieces::First(first) => first,
            Pieces::Several(all) => all.freeze(),
        };
        let message = all.split_off(PREFIX.min(all.len()));
        if message.len() == length { Ok(message) } else { Err(BadMessage::Incomplete) }
    }

    fn bytes(&self) -> &[u8] {
        match &self.pieces {
            Pieces::First(first) => first,
            Pieces::Several(all) => all,
        }
    }

    /// The length in the prefix, in bytes. `None` if the prefix is incomplete.
    fn length(&self) -> Result<Option<usize>, BadMessage> {
        let Some(([flags, length @ ..], _)) = self.bytes().split_first_chunk::<PREFIX>() else {
            return Ok(None);
        };
        match *flags {
            0 => {}
            COMPRESSED => return Err(BadMessage::Compressed),
            _ => return Err(BadMessage::Flags),
        }
        match usize::try_from(u32::from_be_bytes(*length)) {
            Ok(length) if length <= self.max => Ok(Some(length)),
            _ => Err(BadMessage::Oversize),
        }
    }
}

/// A message of `length` bytes, which `write` writes, with its prefix.
pub fn encode(length: usize, write: impl FnOnce(&mut BytesMut)) -> Bytes {
    let mut bytes = BytesMut::with_capacity(length.saturating_add(PREFIX));
    bytes.put_u8(0);
    // A message of keygate has few short fields.
    bytes.put_u32(u32::try_from(length).unwrap_or(u32::MAX));
    write(&mut bytes);
    bytes.freeze()
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAX: usize = 20;

    /// Receives `bytes` in pieces of this size.
    fn receive(bytes: &[u8], size: usize) -> Result<Bytes, BadMessage> {
        let mut received = ReceivedMessage::new(MAX);
        for piece in bytes.chunks(size) {
            received.push(Bytes::copy_from_slice(piece))?;
        }
        received.finish()
    }

    /// The field `service` of a health check: `orders`.
    const MESSAGE: &[u8] = b"\x0a\x06orders";

    fn message() -> Bytes {
        encode(8, |bytes| bytes.put_slice(MESSAGE))
    }

    #[test]
    fn a_message_does_not_depend_on_the_frames_that_it_comes_in() {
        let bytes = message();
        for size in 1..=bytes.len() {
            assert_eq!(receive(&bytes, size).unwrap(), MESSAGE);
        }
        assert_eq!(receive(&[0; PREFIX], 1), Ok(Bytes::new()), "an empty message is a message");
        let longest = [&[0, 0, 0, 0, 20][..], &[7; MAX]].concat();
        assert_eq!(receive(&longest, 8).unwrap().len(), MAX);
    }

    #[test]
    fn every_other_sequence_of_bytes_is_an_error() {
        let bytes = message();
        for length in 0..bytes.len() {
            assert_eq!(receive(&bytes[..length], 3), Err(BadMessage::Incomplete), "{length}");
        }
        for size in 1..bytes.len() {
            assert_eq!(receive(&[&bytes[..], b"\0"].concat(), size), Err(BadMessage::Several));
            assert_eq!(receive(&bytes.repeat(2), size), Err(BadMessage::Several));
            assert_eq!(receive(&[&[1], &bytes[1..]].concat(), size), Err(BadMessage::Compressed));
            assert_eq!(receive(&[&[2], &bytes[1..]].concat(), size), Err(BadMessage::Flags));
            assert_eq!(receive(&[0, 0, 0, 0, 21], size), Err(BadMessage::Oversize));
            assert_eq!(receive(&[0, 255, 255, 255, 255, 0], size), Err(BadMessage::Oversize));
        }
    }
}

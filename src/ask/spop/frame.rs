//! The frames of SPOP 2.0, HAProxy's Stream Processing Offload Protocol.
//!
//! Reading borrows from the frame and allocates nothing. Every length is checked against the bytes
//! that are left. Source: HAProxy, `doc/SPOE.txt`, sections 3.1 and 3.2.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use bytes::BufMut;

/// Length of the field with the length of a frame, in bytes.
pub(super) const LENGTH_FIELD: usize = 4;

/// Maximum length of the type, the flags and both identifiers of a frame, in bytes.
pub(super) const MAX_HEADER: usize = 1 + 4 + 2 * MAX_VARINT;

/// Maximum length of an integer of 64 bits, in bytes.
const MAX_VARINT: usize = 10;

/// The flag of a frame that is not continued in another one.
const FINAL: u32 = 1;

/// The types of frames.
pub(super) mod kind {
    /// HAProxy's first frame.
    pub(in crate::ask::spop) const HAPROXY_HELLO: u8 = 1;
    /// HAProxy's last frame.
    pub(in crate::ask::spop) const HAPROXY_DISCONNECT: u8 = 2;
    /// Messages of HAProxy.
    pub(in crate::ask::spop) const NOTIFY: u8 = 3;
    /// The response to `HAPROXY_HELLO`.
    pub(in crate::ask::spop) const AGENT_HELLO: u8 = 101;
    /// The last frame of an agent.
    pub(in crate::ask::spop) const AGENT_DISCONNECT: u8 = 102;
    /// The response to `NOTIFY`.
    pub(in crate::ask::spop) const ACK: u8 = 103;
}

/// The bytes are no frame, or no part of one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct BrokenFrame;

/// The header of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct FrameHeader {
    /// One of [`kind`], or a type that this version of the protocol does not have.
    pub(super) kind: u8,
    /// Whether the frame is whole: neither continued in another one nor aborted.
    pub(super) is_whole: bool,
    /// The stream of HAProxy; 0 in HELLO and DISCONNECT.
    pub(super) stream: u64,
    /// The frame within the stream; 0 in HELLO and DISCONNECT.
    pub(super) frame: u64,
}

impl FrameHeader {
    /// Reads the header at the start of a frame.
    ///
    /// # Errors
    /// Returns an error if the frame is too short, or an identifier is no integer of 64 bits.
    pub(super) fn read(frame: &mut FrameReader<'_>) -> Result<Self, BrokenFrame> {
        Ok(Self {
            kind: frame.byte()?,
            is_whole: u32::from_be_bytes(frame.array()?) == FINAL,
            stream: frame.integer()?,
            frame: frame.integer()?,
        })
    }
}

/// A value with its type.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TypedValue<'a> {
    Address(IpAddr),
    Binary(&'a [u8]),
    Bool(bool),
    /// An integer of 32 or 64 bits. HAProxy sends a signed one as an unsigned one of 64 bits.
    Integer(u64),
    /// The value of an expression that HAProxy could not evaluate.
    Null,
    /// A string of bytes in an encoding that nobody checked.
    String(&'a [u8]),
}

/// The part of a frame that has not been read.
#[derive(Debug, Clone)]
pub(super) struct FrameReader<'a>(&'a [u8]);

impl<'a> FrameReader<'a> {
    /// A reader of `frame`, the bytes after the length.
    pub(super) fn new(frame: &'a [u8]) -> Self {
        Self(frame)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// One byte.
    ///
    /// # Errors
    /// Returns an error if there is none.
    pub(super) fn byte(&mut self) -> Result<u8, BrokenFrame> {
        let (first, rest) = self.0.split_first().ok_or(BrokenFrame)?;
        self.0 = rest;
        Ok(*first)
    }

    fn array<const LENGTH: usize>(&mut self) -> Result<[u8; LENGTH], BrokenFrame> {
        let (array, rest) = self.0.split_first_chunk().ok_or(BrokenFrame)?;
        self.0 = rest;
        Ok(*array)
    }

    fn bytes(&mut self, length: u64) -> Result<&'a [u8], BrokenFrame> {
        let length = usize::try_from(length).map_err(|_| BrokenFrame)?;
        let (bytes, rest) = self.0.split_at_checked(length).ok_or(BrokenFrame)?;
        self.0 = rest;
        Ok(bytes)
    }

    /// An integer of variable length: one byte below 240, else the four low bits of the first byte
    /// and seven of each further byte, the least significant first.
    ///
    /// # Errors
    /// Returns an error if the frame ends within the integer, or it has more than 64 bits.
    pub(super) fn integer(&mut self) -> Result<u64, BrokenFrame> {
        let first = self.byte()?;
        let mut value = u64::from(first);
        if first < 240 {
            return Ok(value);
        }
        for place in 0..MAX_VARINT - 1 {
            let (byte, shift) = (self.byte()?, 4 + 7 * place);
            // The bits overlap, therefore the sum.
            let bits = u64::from(byte) << shift;
            if bits >> shift != u64::from(byte) {
                return Err(BrokenFrame);
            }
            value = value.checked_add(bits).ok_or(BrokenFrame)?;
            if byte < 128 {
                return Ok(value);
            }
        }
        Err(BrokenFrame)
    }

    /// A string: its length and its bytes.
    ///
    /// # Errors
    /// Returns an error if the string is longer than the rest of the frame.
    pub(super) fn string(&mut self) -> Result<&'a [u8], BrokenFrame> {
        let length = self.integer()?;
        self.bytes(length)
    }

    /// A value with its type.
    ///
    /// # Errors
    /// Returns an error if the type is unknown, or the value is longer than the rest of the frame.
    pub(super) fn value(&mut self) -> Result<TypedValue<'a>, BrokenFrame> {
        let byte = self.byte()?;
        Ok(match byte & TYPE_MASK {
            NULL => TypedValue::Null,
            BOOL => TypedValue::Bool(byte & TRUE != 0),
            INT32 | UINT32 | INT64 | UINT64 => TypedValue::Integer(self.integer()?),
            IPV4 => TypedValue::Address(Ipv4Addr::from(self.array::<4>()?).into()),
            IPV6 => TypedValue::Address(Ipv6Addr::from(self.array::<16>()?).into()),
            STRING => TypedValue::String(self.string()?),
            BINARY => TypedValue::Binary(self.string()?),
            _ => return Err(BrokenFrame),
        })
    }
}

const TYPE_MASK: u8 = 0x0f;
/// The bit of a boolean beside its type.
const TRUE: u8 = 0x10;
const NULL: u8 = 0;
const BOOL: u8 = 1;
const INT32: u8 = 2;
const UINT32: u8 = 3;
const INT64: u8 = 4;
const UINT64: u8 = 5;
const IPV4: u8 = 6;
const IPV6: u8 = 7;
const STRING: u8 = 8;
const BINARY: u8 = 9;

/// The lifetime of a variable of HAProxy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum VariableScope {
    /// The connection of the client: `sess`.
    Session = 1,
    /// Request and response: `txn`.
    Transaction = 2,
}

/// A frame that is written to the end of `output`.
#[derive(Debug)]
pub(super) struct FrameWriter<'a> {
    output: &'a mut Vec<u8>,
    start: usize,
    /// Start of the payload.
    payload: usize,
}

impl<'a> FrameWriter<'a> {
    /// Begins a frame that is not continued in another one.
    pub(super) fn begin(output: &'a mut Vec<u8>, kind: u8, stream: u64, frame: u64) -> Self {
        let start = output.len();
        output.put_u32(0); // `finish` writes the length
        output.put_u8(kind);
        output.put_u32(FINAL);
        put_integer(output, stream);
        put_integer(output, frame);
        let payload = output.len();
        Self { output, start, payload }
    }

    /// Writes an item of a HELLO or DISCONNECT frame.
    pub(super) fn item(&mut self, name: &str, value: &str) {
        put_string(self.output, name);
        self.output.put_u8(STRING);
        put_string(self.output, value);
    }

    /// Writes an item of a HELLO or DISCONNECT frame.
    pub(super) fn integer_item(&mut self, name: &str, value: u32) {
        put_string(self.output, name);
        self.output.put_u8(UINT32);
        put_integer(self.output, value.into());
    }

    /// Sets a variable of HAProxy.
    pub(super) fn set(&mut self, scope: VariableScope, name: &str, value: &str) {
        self.output.put_slice(&[SET_VARIABLE, 3, scope as u8]);
        put_string(self.output, name);
        self.output.put_u8(STRING);
        put_string(self.output, value);
    }

    /// Removes a variable of HAProxy.
    pub(super) fn unset(&mut self, scope: VariableScope, name: &str) {
        self.output.put_slice(&[UNSET_VARIABLE, 2, scope as u8]);
        put_string(self.output, name);
    }

    /// Removes everything after the header.
    pub(super) fn clear(&mut self) {
        self.output.truncate(self.payload);
    }

    /// The length of the frame so far, without the field with the length.
    pub(super) fn len(&self) -> usize {
        self.output.len().saturating_sub(self.start + LENGTH_FIELD)
    }

    /// Writes the length of the frame.
    pub(super) fn finish(self) {
        let length = u32::try_from(self.len()).unwrap_or(u32::MAX); // tens of bytes for each action
        let place = self.output.get_mut(self.start..).and_then(<[u8]>::first_chunk_mut);
        if let Some(place) = place {
            *place = length.to_be_bytes();
        }
    }
}

/// The types of actions, which their number of arguments follows.
const SET_VARIABLE: u8 = 1;
const UNSET_VARIABLE: u8 = 2;

fn put_string(output: &mut Vec<u8>, string: &str) {
    put_integer(output, string.len() as u64);
    output.put_slice(string.as_bytes());
}

/// The inverse of [`FrameReader::integer`].
fn put_integer(output: &mut Vec<u8>, value: u64) {
    if value < 240 {
        output.put_u8(low_byte(value));
        return;
    }
    output.put_u8(low_byte(value | 240));
    let mut rest = (value - 240) >> 4;
    while rest >= 128 {
        output.put_u8(low_byte(rest | 128));
        rest = (rest - 128) >> 7;
    }
    output.put_u8(low_byte(rest));
}

fn low_byte(value: u64) -> u8 {
    value.to_le_bytes()[0]
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn written(value: u64) -> Vec<u8> {
        let mut bytes = Vec::new();
        put_integer(&mut bytes, value);
        bytes
    }

    #[test]
    fn integers_are_encoded_as_in_haproxy() {
        // HAProxy, `include/haproxy/intops.h`, comment of `encode_varint`.
        for (value, bytes) in [
            (0, &[0][..]),
            (239, &[0xef]),
            (240, &[0xf0, 0x00]),
            (2287, &[0xff, 0x7f]),
            (2288, &[0xf0, 0x80, 0x00]),
            (264_431, &[0xff, 0xff, 0x7f]),
            (264_432, &[0xf0, 0x80, 0x80, 0x00]),
            (u64::MAX, &[0xff, 0xf0, 0xfe, 0xfe, 0xfe, 0xfe, 0xfe, 0xfe, 0xfe, 0x0e]),
        ] {
            assert_eq!(written(value), bytes, "{value}");
            let mut reader = FrameReader::new(bytes);
            assert_eq!(reader.integer(), Ok(value));
            assert!(reader.is_empty());
            for end in 0..bytes.len() {
                assert_eq!(FrameReader::new(&bytes[..end]).integer(), Err(BrokenFrame));
            }
        }
    }

    #[test]
    fn integers_of_more_than_64_bits_are_rejected() {
        let mut larger = written(u64::MAX);
        *larger.last_mut().unwrap() += 1;
        let endless = [[0xff; 9].as_slice(), &[0x80, 0]].concat();
        for bytes in [larger.as_slice(), &[0xff; 10], &[0xff; 11], &endless] {
            assert_eq!(FrameReader::new(bytes).integer(), Err(BrokenFrame), "{bytes:?}");
        }
    }

    #[test]
    fn every_type_of_value_is_read_and_every_truncation_rejected() {
        let values: [(&[u8], TypedValue<'_>); 12] = [
            (&[0x00], TypedValue::Null),
            (&[0x01], TypedValue::Bool(false)),
            (&[0x11], TypedValue::Bool(true)),
            (&[0x02, 7], TypedValue::Integer(7)),
            (&[0x03, 0xf0, 0x00], TypedValue::Integer(240)),
            (&[0x04, 7], TypedValue::Integer(7)),
            (&[0x05, 7], TypedValue::Integer(7)),
            (&[0x06, 192, 0, 2, 1], TypedValue::Address([192, 0, 2, 1].into())),
            (
                &[0x07, 0x20, 1, 0xd, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1],
                TypedValue::Address("2001:db8::1".parse().unwrap()),
            ),
            (&[0x08, 2, b'h', b'i'], TypedValue::String(b"hi")),
            (&[0x09, 0], TypedValue::Binary(b"")),
            (&[0x09, 2, 0xff, 0], TypedValue::Binary(&[0xff, 0])),
        ];
        for (bytes, value) in values {
            let mut reader = FrameReader::new(bytes);
            assert_eq!(reader.value(), Ok(value));
            assert!(reader.is_empty());
            for end in 0..bytes.len() {
                assert_eq!(FrameReader::new(&bytes[..end]).value(), Err(BrokenFrame), "{value:?}");
            }
        }
        for kind in 0x0a..=0x0f {
            assert_eq!(FrameReader::new(&[kind, 0, 0]).value(), Err(BrokenFrame));
        }
    }

    #[test]
    fn a_frame_has_its_length_and_its_header() {
        let mut output = b"before".to_vec();
        let mut frame = FrameWriter::begin(&mut output, kind::ACK, 300, 1);
        frame.set(VariableScope::Transaction, "action", "admit");
        frame.unset(VariableScope::Session, "fingerprint");
        frame.finish();
        let expected = b"before\0\0\0\x28\x67\0\0\0\x01\xfc\x03\x01\
            \x01\x03\x02\x06action\x08\x05admit\x02\x02\x01\x0bfingerprint";
        assert_eq!(output, expected);
        let mut reader = FrameReader::new(&output[b"before".len() + LENGTH_FIELD..]);
        let header = FrameHeader { kind: kind::ACK, is_whole: true, stream: 300, frame: 1 };
        assert_eq!(FrameHeader::read(&mut reader), Ok(header));
        let mut frame = FrameWriter::begin(&mut output, kind::ACK, 1, 1);
        frame.set(VariableScope::Transaction, "action", "admit");
        frame.clear();
        assert_eq!(frame.len(), 7);
        frame.finish();
        assert_eq!(output, [expected.as_slice(), b"\0\0\0\x07\x67\0\0\0\x01\x01\x01"].concat());
    }

    #[test]
    fn a_frame_with_any_other_flags_is_not_whole() {
        for flags in [0_u32, 2, 3, 1 << 31] {
            let frame = [&[kind::NOTIFY][..], &flags.to_be_bytes(), &[1, 1]].concat();
            assert!(!FrameHeader::read(&mut FrameReader::new(&frame)).unwrap().is_whole);
        }
    }

    proptest! {
        #[test]
        fn integers_are_read_as_they_were_written(value: u64) {
            let bytes = written(value);
            prop_assert!(bytes.len() <= MAX_VARINT);
            prop_assert_eq!(FrameReader::new(&bytes).integer(), Ok(value));
        }
    }
}

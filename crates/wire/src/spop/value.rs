//! The values in the frames of SPOP: integers, strings, typed values.
//!
//! Reading borrows from the frame and allocates nothing. Every length is checked against the bytes
//! that are left. Source: HAProxy, `doc/SPOE.txt`, section 3.1.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use bytes::BufMut;

/// The bytes are no frame, or no part of one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BrokenFrame;

/// A value with its type.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TypedValue<'a> {
    /// An address of either family.
    Address(IpAddr),
    /// Bytes without an encoding.
    Binary(&'a [u8]),
    /// A boolean.
    Bool(bool),
    /// An integer of 32 or 64 bits. HAProxy sends a signed one as an unsigned one of 64 bits.
    Integer(u64),
    /// The value of an expression that HAProxy could not evaluate.
    Null,
    /// A string of bytes, whose encoding is not checked.
    String(&'a [u8]),
}

/// The part of a frame that has not been read.
#[derive(Debug, Clone)]
pub struct FrameReader<'a>(&'a [u8]);

impl<'a> FrameReader<'a> {
    /// A reader of `frame`, the bytes after the length.
    pub fn new(frame: &'a [u8]) -> Self {
        Self(frame)
    }

    /// Whether the whole frame was read.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// One byte.
    ///
    /// # Errors
    /// Returns an error if there is none.
    pub fn byte(&mut self) -> Result<u8, BrokenFrame> {
        let (first, rest) = self.0.split_first().ok_or(BrokenFrame)?;
        self.0 = rest;
        Ok(*first)
    }

    /// The next bytes.
    ///
    /// # Errors
    /// Returns an error if there are fewer.
    pub fn array<const LENGTH: usize>(&mut self) -> Result<[u8; LENGTH], BrokenFrame> {
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
    pub fn integer(&mut self) -> Result<u64, BrokenFrame> {
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
    pub fn string(&mut self) -> Result<&'a [u8], BrokenFrame> {
        let length = self.integer()?;
        self.bytes(length)
    }

    /// A value with its type.
    ///
    /// # Errors
    /// Returns an error if the type is unknown, or the value is longer than the rest of the frame.
    pub fn value(&mut self) -> Result<TypedValue<'a>, BrokenFrame> {
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
pub(super) const UINT32: u8 = 3;
const INT64: u8 = 4;
const UINT64: u8 = 5;
const IPV4: u8 = 6;
const IPV6: u8 = 7;
pub(super) const STRING: u8 = 8;
const BINARY: u8 = 9;

/// Maximum length of an integer of 64 bits, in bytes.
pub(super) const MAX_VARINT: usize = 10;

pub(super) fn put_string(output: &mut Vec<u8>, string: &str) {
    put_integer(output, string.len() as u64);
    output.put_slice(string.as_bytes());
}

/// The inverse of [`FrameReader::integer`].
pub(super) fn put_integer(output: &mut Vec<u8>, value: u64) {
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
        // 2^64 in the last byte alone.
        let beyond = [[0xf0].as_slice(), &[0x80; 8], &[0x10]].concat();
        for bytes in [larger.as_slice(), &[0xff; 10], &[0xff; 11], &endless, &beyond] {
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

    proptest! {
        #[test]
        fn integers_are_read_as_they_were_written(value: u64) {
            let bytes = written(value);
            prop_assert!(bytes.len() <= MAX_VARINT);
            prop_assert_eq!(FrameReader::new(&bytes).integer(), Ok(value));
        }
    }
}

//! The frames of SPOP 2.0, HAProxy's Stream Processing Offload Protocol: headers, items and
//! actions.
//!
//! Source: HAProxy, `doc/SPOE.txt`, sections 3.2 and 3.4.

use bytes::BufMut;

use super::value::{BrokenFrame, FrameReader, MAX_VARINT, STRING, UINT32, put_integer, put_string};

/// Length of the field with the length of a frame, in bytes.
pub const LENGTH_FIELD: usize = 4;

/// Maximum length of the type, the flags and both identifiers of a frame, in bytes.
pub const MAX_HEADER: usize = 1 + 4 + 2 * MAX_VARINT;

/// The flag of a frame that is not continued in another one.
const FINAL: u32 = 1;

/// The types of frames.
pub mod kind {
    /// HAProxy's first frame.
    pub const HAPROXY_HELLO: u8 = 1;
    /// HAProxy's last frame.
    pub const HAPROXY_DISCONNECT: u8 = 2;
    /// Messages of HAProxy.
    pub const NOTIFY: u8 = 3;
    /// The response to `HAPROXY_HELLO`.
    pub const AGENT_HELLO: u8 = 101;
    /// The last frame of an agent.
    pub const AGENT_DISCONNECT: u8 = 102;
    /// The response to `NOTIFY`.
    pub const ACK: u8 = 103;
}

/// The header of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FrameHeader {
    /// One of [`kind`], or a type that this version of the protocol does not have.
    pub kind: u8,
    /// Whether the frame is whole: neither continued in another one nor aborted.
    pub is_whole: bool,
    /// The stream of HAProxy; 0 in HELLO and DISCONNECT.
    pub stream: u64,
    /// The frame within the stream; 0 in HELLO and DISCONNECT.
    pub frame: u64,
}

impl FrameHeader {
    /// Reads the header at the start of a frame.
    ///
    /// # Errors
    /// Returns an error if the frame is too short, or an identifier is no integer of 64 bits.
    pub fn read(frame: &mut FrameReader<'_>) -> Result<Self, BrokenFrame> {
        Ok(Self {
            kind: frame.byte()?,
            is_whole: u32::from_be_bytes(frame.array()?) == FINAL,
            stream: frame.integer()?,
            frame: frame.integer()?,
        })
    }
}

/// The lifetime of a variable of HAProxy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum VariableScope {
    /// The connection of the client: `sess`.
    Session = 1,
    /// Request and response: `txn`.
    Transaction = 2,
}

/// A frame that is written to the end of `output`.
#[derive(Debug)]
pub struct FrameWriter<'a> {
    output: &'a mut Vec<u8>,
    start: usize,
    /// Start of the payload.
    payload: usize,
}

impl<'a> FrameWriter<'a> {
    /// Begins a frame that is not continued in another one.
    pub fn begin(output: &'a mut Vec<u8>, kind: u8, stream: u64, frame: u64) -> Self {
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
    pub fn item(&mut self, name: &str, value: &str) {
        put_string(self.output, name);
        self.output.put_u8(STRING);
        put_string(self.output, value);
    }

    /// Writes an item of a HELLO or DISCONNECT frame.
    pub fn integer_item(&mut self, name: &str, value: u32) {
        put_string(self.output, name);
        self.output.put_u8(UINT32);
        put_integer(self.output, value.into());
    }

    /// Sets a variable of HAProxy.
    pub fn set(&mut self, scope: VariableScope, name: &str, value: &str) {
        self.output.put_slice(&[SET_VARIABLE, 3, scope as u8]);
        put_string(self.output, name);
        self.output.put_u8(STRING);
        put_string(self.output, value);
    }

    /// Removes a variable of HAProxy.
    pub fn unset(&mut self, scope: VariableScope, name: &str) {
        self.output.put_slice(&[UNSET_VARIABLE, 2, scope as u8]);
        put_string(self.output, name);
    }

    /// Removes everything after the header.
    pub fn clear(&mut self) {
        self.output.truncate(self.payload);
    }

    /// The length of the frame so far, without the field with the length.
    pub fn length(&self) -> usize {
        self.output.len().saturating_sub(self.start + LENGTH_FIELD)
    }

    /// Writes the length of the frame.
    pub fn finish(self) {
        let length = u32::try_from(self.length()).unwrap_or(u32::MAX); // tens of bytes for each action
        let place = self.output.get_mut(self.start..).and_then(<[u8]>::first_chunk_mut);
        if let Some(place) = place {
            *place = length.to_be_bytes();
        }
    }
}

/// The types of actions, which their number of arguments follows.
const SET_VARIABLE: u8 = 1;
const UNSET_VARIABLE: u8 = 2;

#[cfg(test)]
mod tests {
    use super::*;

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
        assert_eq!(frame.length(), 7);
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
}

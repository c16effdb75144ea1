//! The first frame of HAProxy, and the response to it.
//!
//! Source: HAProxy, `doc/SPOE.txt`, sections 3.2.4, 3.2.5 and 3.5.

use super::frame::{FrameWriter, kind};
use super::value::{BrokenFrame, FrameReader, TypedValue};

/// The version of the protocol.
const VERSION: &str = "2.0";
/// The capability that both sides need, so that several questions are under way at once.
const PIPELINING: &str = "pipelining";
/// Minimum of `max-frame-size`, in bytes: HAProxy's own. HAProxy with less gets a DISCONNECT.
const MIN_FRAME_SIZE: u64 = 256;

/// The reason of a DISCONNECT: the status code of the protocol, and its text in frame and log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DisconnectReason {
    code: u32,
    /// The text.
    pub text: &'static str,
}

#[expect(missing_docs, reason = "each has its text")]
impl DisconnectReason {
    pub const NORMAL: Self = Self { code: 0, text: "normal" };
    pub const TIMEOUT: Self = Self { code: 2, text: "a timeout occurred" };
    pub const FRAME_TOO_BIG: Self = Self { code: 3, text: "frame is too big" };
    pub const INVALID_FRAME: Self = Self { code: 4, text: "invalid frame received" };
    pub const NO_VERSION: Self = Self { code: 5, text: "version value not found" };
    pub const NO_FRAME_SIZE: Self = Self { code: 6, text: "max-frame-size value not found" };
    pub const NO_CAPABILITIES: Self = Self { code: 7, text: "capabilities value not found" };
    pub const UNSUPPORTED_VERSION: Self = Self { code: 8, text: "unsupported version" };
    pub const FRAME_SIZE_OUT_OF_RANGE: Self =
        Self { code: 9, text: "max-frame-size too big or too small" };
    pub const FRAGMENTED: Self = Self { code: 10, text: "fragmentation not supported" };

    /// Writes an AGENT-DISCONNECT frame.
    pub fn write(self, output: &mut Vec<u8>) {
        let mut frame = FrameWriter::begin(output, kind::AGENT_DISCONNECT, 0, 0);
        frame.integer_item("status-code", self.code);
        frame.item("message", self.text);
        frame.finish();
    }
}

impl From<BrokenFrame> for DisconnectReason {
    fn from(_: BrokenFrame) -> Self {
        Self::INVALID_FRAME
    }
}

/// A HAPROXY-HELLO frame that keygate can respond to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Hello {
    /// Maximum length of the frames of HAProxy, in bytes.
    pub max_frame_size: usize,
    /// Whether HAProxy sends a question before it has the answer to the one before.
    pub pipelining: bool,
    /// Whether HAProxy checks the health of the agent and has no questions.
    pub health_check: bool,
}

impl Hello {
    /// Reads the items of the frame.
    ///
    /// # Errors
    /// Returns an error if the frame is broken, an item is missing, HAProxy does not support
    /// version 2.0, or its frames are shorter than 256 bytes.
    pub fn read(items: &mut FrameReader<'_>) -> Result<Self, DisconnectReason> {
        let (mut versions, mut frame_size, mut capabilities) = (None, None, None);
        let mut health_check = false;
        while !items.is_empty() {
            match (items.string()?, items.value()?) {
                (b"supported-versions", TypedValue::String(value)) => versions = Some(value),
                (b"max-frame-size", TypedValue::Integer(value)) => frame_size = Some(value),
                (b"capabilities", TypedValue::String(value)) => capabilities = Some(value),
                (b"healthcheck", TypedValue::Bool(value)) => health_check = value,
                _ => {}
            }
        }
        let is_version_2 = |version: &[u8]| version.starts_with(b"2.");
        let versions = versions.ok_or(DisconnectReason::NO_VERSION)?;
        let frame_size = frame_size.ok_or(DisconnectReason::NO_FRAME_SIZE)?;
        let capabilities = capabilities.ok_or(DisconnectReason::NO_CAPABILITIES)?;
        if !list(versions).any(is_version_2) {
            return Err(DisconnectReason::UNSUPPORTED_VERSION);
        }
        if !(MIN_FRAME_SIZE..=u32::MAX.into()).contains(&frame_size) {
            return Err(DisconnectReason::FRAME_SIZE_OUT_OF_RANGE);
        }
        Ok(Self {
            max_frame_size: usize::try_from(frame_size).unwrap_or(usize::MAX),
            pipelining: list(capabilities).any(|capability| capability == PIPELINING.as_bytes()),
            health_check,
        })
    }

    /// Writes the AGENT-HELLO frame. Versions 3.1.0 to 3.2-dev11 of HAProxy ignore a `frame_size`
    /// that is below their own.
    pub fn respond(&self, frame_size: usize, output: &mut Vec<u8>) {
        let mut frame = FrameWriter::begin(output, kind::AGENT_HELLO, 0, 0);
        frame.item("version", VERSION);
        frame.integer_item("max-frame-size", u32::try_from(frame_size).unwrap_or(u32::MAX));
        frame.item("capabilities", if self.pipelining { PIPELINING } else { "" });
        frame.finish();
    }
}

/// The elements of a list with commas, without spaces.
fn list(value: &[u8]) -> impl Iterator<Item = &[u8]> {
    value.split(|byte| *byte == b',').map(<[u8]>::trim_ascii)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A HELLO frame after its header, with items that replace or remove the items of HAProxy 2.6.
    fn hello(replaced: &[(&str, Option<&[u8]>)]) -> Vec<u8> {
        let items: [(&str, &[u8]); 4] = [
            ("supported-versions", b"\x08\x032.0"),
            ("max-frame-size", b"\x03\xfc\xf0\x06"),
            ("capabilities", b"\x08\x10pipelining,async"),
            ("engine-id", b"\x08\x01x"),
        ];
        let mut frame = Vec::new();
        let mut put = |name: &str, value: &[u8]| {
            frame.push(u8::try_from(name.len()).unwrap());
            frame.extend(name.as_bytes());
            frame.extend(value);
        };
        for (name, value) in items {
            match replaced.iter().find(|(replaced, _)| *replaced == name) {
                Some((_, Some(value))) => put(name, value),
                Some((_, None)) => {}
                None => put(name, value),
            }
        }
        for (name, value) in replaced {
            if items.iter().all(|(item, _)| item != name) {
                put(name, value.unwrap());
            }
        }
        frame
    }

    fn read(replaced: &[(&str, Option<&[u8]>)]) -> Result<Hello, DisconnectReason> {
        Hello::read(&mut FrameReader::new(&hello(replaced)))
    }

    #[test]
    fn the_hello_of_haproxy_is_read() {
        let expected = Hello { max_frame_size: 16_380, pipelining: true, health_check: false };
        assert_eq!(read(&[]), Ok(expected));
        let health_check = Hello { health_check: true, ..expected };
        assert_eq!(read(&[("healthcheck", Some(&[0x11]))]), Ok(health_check));
        let asynchronous = Hello { pipelining: false, ..expected };
        assert_eq!(read(&[("capabilities", Some(b"\x08\x05async"))]), Ok(asynchronous));
        let later = ("supported-versions", Some(&b"\x08\x083.0, 2.1"[..]));
        assert_eq!(read(&[later]), Ok(expected), "a version includes its earlier minor versions");
    }

    #[test]
    fn a_hello_that_cannot_be_used_is_rejected_with_the_code_of_the_protocol() {
        use DisconnectReason as Reason;
        let cases: [(&str, Option<&[u8]>, Reason); 10] = [
            ("supported-versions", None, Reason::NO_VERSION),
            ("supported-versions", Some(b"\x03\x02"), Reason::NO_VERSION),
            ("supported-versions", Some(b"\x08\x031.0"), Reason::UNSUPPORTED_VERSION),
            ("supported-versions", Some(b"\x08\x0220"), Reason::UNSUPPORTED_VERSION),
            ("max-frame-size", None, Reason::NO_FRAME_SIZE),
            ("max-frame-size", Some(b"\x03\x00"), Reason::FRAME_SIZE_OUT_OF_RANGE),
            ("max-frame-size", Some(b"\x03\xf0\x00"), Reason::FRAME_SIZE_OUT_OF_RANGE),
            (
                "max-frame-size",
                Some(b"\x05\xff\xff\xff\xff\xff\xff\x0f"),
                Reason::FRAME_SIZE_OUT_OF_RANGE,
            ),
            ("capabilities", None, Reason::NO_CAPABILITIES),
            ("more", Some(b"\x0a"), Reason::INVALID_FRAME),
        ];
        for (name, value, reason) in cases {
            assert_eq!(read(&[(name, value)]), Err(reason), "{name} {value:?}");
        }
        let whole = hello(&[("engine-id", None)]);
        for end in 0..whole.len() {
            assert!(Hello::read(&mut FrameReader::new(&whole[..end])).is_err(), "{end}");
        }
    }

    #[test]
    fn a_disconnect_has_the_status_code_of_the_protocol() {
        use DisconnectReason as Reason;
        let (version, size) = (Reason::NO_VERSION, Reason::NO_FRAME_SIZE);
        for (reason, code) in [
            (Reason::NORMAL, 0),
            (Reason::TIMEOUT, 2),
            (Reason::FRAME_TOO_BIG, 3),
            (Reason::INVALID_FRAME, 4),
            (version, 5),
            (size, 6),
            (Reason::NO_CAPABILITIES, 7),
            (Reason::UNSUPPORTED_VERSION, 8),
            (Reason::FRAME_SIZE_OUT_OF_RANGE, 9),
            (Reason::FRAGMENTED, 10),
        ] {
            let mut output = Vec::new();
            reason.write(&mut output);
            let item = [b"\x0bstatus-code\x03", &[code][..], b"\x07message\x08"].concat();
            assert!(output.windows(item.len()).any(|it| it == item), "{reason:?}");
            assert!(output.ends_with(reason.text.as_bytes()), "{reason:?}");
        }
    }

    #[test]
    fn the_response_has_version_frame_size_and_pipelining_alone() {
        let mut output = Vec::new();
        read(&[]).unwrap().respond(16_380, &mut output);
        let expected = b"\0\0\0\x40\x65\0\0\0\x01\0\0\x07version\x08\x032.0\
            \x0emax-frame-size\x03\xfc\xf0\x06\x0ccapabilities\x08\x0apipelining";
        assert_eq!(output, expected);
    }
}

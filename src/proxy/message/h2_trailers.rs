//! Pseudo-header fields in the trailers of HTTP/2 requests, which make a request malformed
//! (RFC 9113, section 8.1).
//!
//! h2 drops such fields silently. So the names in the field blocks that h2 reads are scanned as
//! well.

mod fields;

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use smallvec::SmallVec;

use self::fields::FieldScan;
use super::frames::{FramePiece, FrameScan};
use crate::proxy::io_events::IoEvents;

const HEADERS: u8 = 1;
const CONTINUATION: u8 = 9;
const PADDED: u8 = 0x8;
const PRIORITY: u8 = 0x20;
/// Length of the priority fields in HEADERS (RFC 9113, section 6.2).
const PRIORITY_FIELDS: usize = 5;
/// Streams with malformed trailers that are remembered. Above it, all trailers of the connection
/// count as malformed.
const MAX_MALFORMED: usize = 64;

/// The streams of one client whose trailers have a pseudo-header field.
#[derive(Debug, Default)]
pub(crate) struct TrailerCheck {
    scan: RefCell<BlockScan>,
    malformed: RefCell<SmallVec<[u32; 2]>>,
    has_overflowed: Cell<bool>,
}

/// PRIORITY, SETTINGS, PING and WINDOW_UPDATE, which belong to no message.
const CONTROL: [u8; 4] = [2, 4, 6, 8];

impl TrailerCheck {
    /// Whether the request on a stream is malformed.
    pub(crate) fn is_malformed(&self, stream: u32) -> bool {
        let malformed = self.malformed.borrow();
        !malformed.is_empty() && (malformed.contains(&stream) || self.has_overflowed.get())
    }

    /// Forgets a stream that has ended.
    pub(crate) fn forget(&self, stream: u32) {
        self.malformed.borrow_mut().retain(|malformed| *malformed != stream);
    }

    /// The number of control frames since the last call.
    pub(crate) fn take_control_frames(&self) -> u32 {
        std::mem::take(&mut self.scan.borrow_mut().blocks.control_frames)
    }

    fn record(&self, stream: u32) {
        let mut malformed = self.malformed.borrow_mut();
        if malformed.len() >= MAX_MALFORMED {
            self.has_overflowed.set(true);
        } else if !malformed.contains(&stream) {
            malformed.push(stream);
        }
    }
}

impl IoEvents for Rc<TrailerCheck> {
    fn on_read(&self, bytes: &[u8]) {
        let BlockScan { frames, blocks } = &mut *self.scan.borrow_mut();
        frames.read(bytes, |frame| {
            if blocks.read(frame) {
                self.record(frame.stream);
            }
        });
    }
}

/// The frames of a client.
#[derive(Debug)]
struct BlockScan {
    frames: FrameScan,
    blocks: Blocks,
}

/// The field blocks in the frames of a client.
#[derive(Debug, Default)]
struct Blocks {
    /// Bytes before the field block: the length of the padding and the priority.
    before_block: usize,
    /// Whether the next byte is the length of the padding.
    padding_follows: bool,
    /// Bytes of padding after the field block.
    padding: usize,
    /// The highest stream that had HEADERS. On such a stream further HEADERS are trailers.
    highest: u32,
    is_trailers: bool,
    control_frames: u32,
    fields: FieldScan,
}

impl Default for BlockScan {
    fn default() -> Self {
        Self { frames: FrameScan::of_client(), blocks: Blocks::default() }
    }
}

impl Blocks {
    fn begin_frame(&mut self, frame: FramePiece<'_>) {
        (self.before_block, self.padding) = (0, 0);
        let is_control = CONTROL.contains(&frame.kind);
        self.control_frames = self.control_frames.saturating_add(is_control.into());
        if frame.kind == HEADERS {
            self.padding_follows = frame.flags & PADDED != 0;
            let priority = if frame.flags & PRIORITY == 0 { 0 } else { PRIORITY_FIELDS };
            self.before_block = usize::from(self.padding_follows) + priority;
            self.is_trailers = frame.stream <= self.highest;
            self.highest = self.highest.max(frame.stream);
            self.fields.begin_block();
        }
    }

    /// Reads a piece of a frame. Returns whether trailers have a pseudo-header field in it.
    fn read(&mut self, frame: FramePiece<'_>) -> bool {
        let FramePiece { mut bytes, mut left, .. } = frame;
        if bytes.is_empty() {
            self.begin_frame(frame);
        }
        if ![HEADERS, CONTINUATION].contains(&frame.kind) {
            return false;
        }
        while let Some((byte, rest)) = bytes.split_first().filter(|_| self.before_block > 0) {
            if std::mem::take(&mut self.padding_follows) {
                self.padding = usize::from(*byte);
            }
            self.before_block -= 1;
            (bytes, left) = (rest, left.saturating_sub(1));
        }
        let fields = bytes.get(..left.saturating_sub(self.padding)).unwrap_or(bytes);
        self.fields.read(fields) && self.is_trailers
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
        let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
        [&length[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
    }

    /// The streams with malformed trailers after these frames, read in pieces of `size` bytes.
    fn malformed(frames: &[Vec<u8>], size: usize) -> Vec<u32> {
        let bytes = [b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", frames.concat().as_slice()].concat();
        let check = Rc::new(TrailerCheck::default());
        bytes.chunks(size).for_each(|piece| check.on_read(piece));
        let malformed = check.malformed.borrow();
        malformed.to_vec()
    }

    const END_HEADERS: u8 = 4;
    /// `:method: GET`, `:scheme: https`, and `:path: /x`, which goes into the dynamic table.
    const REQUEST: &[u8] = b"\x82\x87\x44\x02/x";

    fn trailers(block: &[u8]) -> Vec<Vec<u8>> {
        let data = [b'x'; 300];
        vec![
            frame(4, 0, 0, &[]),
            frame(HEADERS, END_HEADERS, 1, REQUEST),
            frame(0, 0, 1, &data),
            frame(HEADERS, END_HEADERS | 1, 1, block),
        ]
    }

    #[test]
    fn a_pseudo_header_field_in_trailers_is_found_in_every_form_and_in_pieces() {
        let long = [b"\x00\x05x-sum\x7f\x81\x01", [b'v'; 256].as_slice(), b"\x84"].concat();
        for (block, is_malformed) in [
            (&b"\x84"[..], true),                     // static: `:path: /`
            (b"\x04\x02/x", true),                    // static name, not inserted
            (b"\x44\x02/x", true),                    // static name, inserted
            (b"\x14\x02/x", true),                    // static name, never indexed
            (b"\x00\x05:path\x01/", true),            // a name of its own
            (b"\x00\x84\xb9\x58\xf4\x2f\x01/", true), // `:path` in the Huffman code
            (b"\xbe", true),                          // dynamic: `:path: /x`
            (b"\x7e\x01y", true),                     // dynamic name, inserted
            (b"\x20\x84", true),                      // after a change of the table size
            (b"\x00\x05x-sum\x00\x84", true),         // after a field without a value
            (&long, true),
            (b"\x00\x05x-sum\x011", false),
            (b"\x40\x05x-sum\x011\xbe", false), // the newest entry is `x-sum` now
            (b"\x40\x05x-sum\x011\xbf", true),  // and `:path` the one before
            (b"\x00\x05x-sum\x03:a:", false),
            (b"\x90", false), // static: `accept-encoding: gzip, deflate`
            (b"", false),
        ] {
            for size in [1, 2, 7, 10_000] {
                let found = malformed(&trailers(block), size);
                assert_eq!(found == [1], is_malformed, "{block:x?} in pieces of {size}");
            }
        }
    }

    #[test]
    fn padding_priority_and_continuation_are_no_fields() {
        let before = frame(HEADERS, END_HEADERS, 1, REQUEST);
        let padded = [&[3, 0, 0, 0, 0, 9][..], b"\x00\x05x-sum\x011", &[0x84; 3]].concat();
        let flags = END_HEADERS | PADDED | PRIORITY;
        assert!(malformed(&[before.clone(), frame(HEADERS, flags, 1, &padded)], 5).is_empty());
        let padded = [&[3, 0, 0, 0, 0, 9][..], b"\x84", &[0; 3]].concat();
        assert_eq!(malformed(&[before.clone(), frame(HEADERS, flags, 1, &padded)], 5), [1]);
        let unpadded = [&[0, 0, 0, 0, 0, 9][..], b"\x84"].concat();
        assert_eq!(malformed(&[before.clone(), frame(HEADERS, flags, 1, &unpadded)], 1), [1]);
        let split = [
            before,
            frame(HEADERS, 1, 1, b"\x00\x05x-"),
            frame(CONTINUATION, 0, 1, b"sum\x011\x00"),
            frame(CONTINUATION, END_HEADERS, 1, b"\x05:path\x01/"),
        ];
        assert_eq!(malformed(&split, 4), [1]);
    }

    #[test]
    fn requests_are_no_trailers_and_frames_of_other_streams_come_between() {
        let frames = [
            frame(HEADERS, END_HEADERS, 1, REQUEST),
            frame(HEADERS, END_HEADERS, 3, b"\x82\x87\xbe"),
            frame(HEADERS, END_HEADERS | 1, 1, b"\x00\x05x-sum\x011"),
            frame(HEADERS, END_HEADERS | 1, 3, b"\x84"),
        ];
        assert_eq!(malformed(&frames, 3), [3]);
    }

    #[test]
    fn no_bytes_make_the_scan_fail_and_the_memory_is_bounded() {
        let check = Rc::new(TrailerCheck::default());
        let mut seed = 1_u32;
        for _ in 0..200_000 {
            seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            check.on_read(&seed.to_be_bytes()[..2]);
        }
        let check = Rc::new(TrailerCheck::default());
        check.on_read(&[0; 24]);
        for stream in (1..1000).step_by(2) {
            check.on_read(&frame(HEADERS, END_HEADERS, stream, REQUEST));
            check.on_read(&frame(HEADERS, END_HEADERS, stream, b"\x84"));
        }
        assert_eq!(check.malformed.borrow().len(), MAX_MALFORMED);
        assert!(check.is_malformed(999));
    }
}

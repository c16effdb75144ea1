//! Pseudo-header fields in the trailers of HTTP/2 requests, which make a request malformed
//! (RFC 9113, section 8.1).
//!
//! h2 drops such fields silently. So the bytes that h2 reads are scanned as well: frames, and in
//! field blocks the names.

mod fields;

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use smallvec::SmallVec;

use self::fields::FieldScan;
use crate::proxy::io_events::IoEvents;

/// Length of the preface of a client (RFC 9113, section 3.4).
const PREFACE: usize = 24;
/// Length of a frame header (section 4.1).
const FRAME_HEADER: usize = 9;
const HEADERS: u8 = 1;
const CONTINUATION: u8 = 9;
const PADDED: u8 = 0x8;
const PRIORITY: u8 = 0x20;
/// Length of the priority fields in HEADERS (section 6.2).
const PRIORITY_FIELDS: usize = 5;
/// Streams with malformed trailers that are remembered. Above it, all trailers of the connection
/// count as malformed.
const MAX_MALFORMED: usize = 64;

/// The streams of one client whose trailers have a pseudo-header field.
#[derive(Debug, Default)]
pub(crate) struct TrailerCheck {
    scan: RefCell<FrameScan>,
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
        std::mem::take(&mut self.scan.borrow_mut().control_frames)
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
        self.scan.borrow_mut().read(bytes, |stream| self.record(stream));
    }
}

/// The frames of a client.
#[derive(Debug, Default)]
struct FrameScan {
    /// Bytes of the preface so far.
    preface: usize,
    /// The header of the current frame.
    header: SmallVec<[u8; FRAME_HEADER]>,
    /// Bytes of the current frame's payload that are still to come.
    left: usize,
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

impl FrameScan {
    fn read(&mut self, mut bytes: &[u8], mut record: impl FnMut(u32)) {
        let preface = bytes.len().min(PREFACE.saturating_sub(self.preface));
        self.preface = self.preface.saturating_add(preface);
        bytes = bytes.get(preface..).unwrap_or_default();
        while !bytes.is_empty() {
            if self.left == 0 {
                let missing = FRAME_HEADER.saturating_sub(self.header.len());
                let (part, after) = bytes.split_at_checked(missing).unwrap_or((bytes, &[]));
                self.header.extend_from_slice(part);
                bytes = after;
                if self.header.len() == FRAME_HEADER {
                    self.begin_frame();
                }
                continue;
            }
            let (part, after) = bytes.split_at_checked(self.left).unwrap_or((bytes, &[]));
            if self.is_block() {
                self.read_block(part, &mut record);
            } else {
                self.left = self.left.saturating_sub(part.len());
            }
            if self.left == 0 {
                self.header.clear();
            }
            bytes = after;
        }
    }

    fn kind(&self) -> u8 {
        self.header.get(3).copied().unwrap_or_default()
    }

    fn flags(&self) -> u8 {
        self.header.get(4).copied().unwrap_or_default()
    }

    fn stream(&self) -> u32 {
        self.header.last_chunk().map_or(0, |stream| u32::from_be_bytes(*stream) & (u32::MAX >> 1))
    }

    fn is_block(&self) -> bool {
        [HEADERS, CONTINUATION].contains(&self.kind())
    }

    fn begin_frame(&mut self) {
        let length = self.header.first_chunk::<3>();
        self.left = length.map_or(0, |length| {
            length.iter().fold(0, |length, byte| length << 8 | usize::from(*byte))
        });
        (self.before_block, self.padding) = (0, 0);
        let is_control = CONTROL.contains(&self.kind());
        self.control_frames = self.control_frames.saturating_add(is_control.into());
        if self.kind() == HEADERS {
            let (flags, stream) = (self.flags(), self.stream());
            self.padding_follows = flags & PADDED != 0;
            let priority = if flags & PRIORITY == 0 { 0 } else { PRIORITY_FIELDS };
            self.before_block = usize::from(self.padding_follows) + priority;
            self.is_trailers = stream <= self.highest;
            self.highest = self.highest.max(stream);
            self.fields.begin_block();
        }
        if self.left == 0 {
            self.header.clear();
        }
    }

    /// Reads a part of a frame with a field block.
    fn read_block(&mut self, mut part: &[u8], record: impl FnOnce(u32)) {
        while let Some((byte, rest)) = part.split_first().filter(|_| self.before_block > 0) {
            if std::mem::take(&mut self.padding_follows) {
                self.padding = usize::from(*byte);
            }
            self.before_block -= 1;
            self.left = self.left.saturating_sub(1);
            part = rest;
        }
        let fields = self.left.saturating_sub(self.padding);
        let fields = part.get(..fields).unwrap_or(part);
        if self.fields.read(fields) && self.is_trailers {
            record(self.stream());
        }
        self.left = self.left.saturating_sub(part.len());
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
        check.on_read(&[0; PREFACE]);
        for stream in (1..1000).step_by(2) {
            check.on_read(&frame(HEADERS, END_HEADERS, stream, REQUEST));
            check.on_read(&frame(HEADERS, END_HEADERS, stream, b"\x84"));
        }
        assert_eq!(check.malformed.borrow().len(), MAX_MALFORMED);
        assert!(check.is_malformed(999));
    }
}

//! Pseudo-header fields in the trailers of HTTP/2 requests, which make a request malformed
//! (RFC 9113, section 8.1).
//!
//! h2 drops such fields silently. So the bytes that h2 reads are scanned as well: frames, and in
//! field blocks the names (HPACK, RFC 7541). No string is decoded. Of the dynamic table only one bit
//! for each entry is kept, because only the newest entries can be referred to and their order is
//! that of their insertion.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use smallvec::SmallVec;

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
/// Last pseudo-header field of the static table (RFC 7541, appendix A).
const LAST_STATIC_PSEUDO: u64 = 14;
/// First index of the dynamic table.
const FIRST_DYNAMIC: u64 = 62;
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
    fields: FieldScan,
}

impl FrameScan {
    fn read(&mut self, mut bytes: &[u8], mut record: impl FnMut(u32)) {
        let preface = bytes.len().min(PREFACE.saturating_sub(self.preface));
        self.preface = self.preface.saturating_add(preface);
        bytes = bytes.get(preface..).unwrap_or_default();
        while let Some((first, rest)) = bytes.split_first() {
            if self.left == 0 {
                self.header.push(*first);
                bytes = rest;
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
    fn read_block(&mut self, part: &[u8], mut record: impl FnMut(u32)) {
        let stream = self.stream();
        for byte in part {
            self.left = self.left.saturating_sub(1);
            if self.before_block > 0 {
                if std::mem::take(&mut self.padding_follows) {
                    self.padding = usize::from(*byte);
                }
                self.before_block -= 1;
            } else if self.left >= self.padding && self.fields.read(*byte) && self.is_trailers {
                record(stream);
            }
        }
    }
}

/// The fields of a client's field blocks.
#[derive(Debug, Default)]
struct FieldScan {
    part: FieldPart,
    /// Whether the current field goes into the dynamic table.
    is_inserted: bool,
    is_pseudo: bool,
    /// Whether each entry of the dynamic table is a pseudo-header field, the newest in the lowest
    /// bit. The table has at most 4096 / 32 entries.
    table: u128,
}

/// Which part of a field the next byte belongs to.
#[derive(Debug, Clone, Copy, Default)]
enum FieldPart {
    /// The representation, with an index.
    #[default]
    Field,
    /// More of an integer.
    Integer {
        so_far: u64,
        shift: u32,
        of: Integer,
    },
    NameLength,
    /// The first byte of a name of this length.
    Name {
        is_huffman: bool,
        length: u64,
    },
    /// The rest of a name.
    RestOfName(u64),
    ValueLength,
    Value(u64),
}

/// The meaning of an integer.
#[derive(Debug, Clone, Copy)]
enum Integer {
    /// The field, which is complete.
    Indexed,
    /// The name of a literal field; 0: the name follows.
    NameIndex,
    NameLength {
        is_huffman: bool,
    },
    /// The maximum size of the dynamic table.
    TableSize,
    ValueLength,
}

impl FieldScan {
    fn begin_block(&mut self) {
        self.part = FieldPart::Field;
    }

    /// Reads one byte. Returns whether it completes the name of a pseudo-header field.
    fn read(&mut self, byte: u8) -> bool {
        match self.part {
            FieldPart::Field => match byte {
                0x80.. => self.integer(byte, 7, Integer::Indexed),
                0x40.. => {
                    self.is_inserted = true;
                    self.integer(byte, 6, Integer::NameIndex)
                }
                0x20.. => self.integer(byte, 5, Integer::TableSize),
                _ => {
                    self.is_inserted = false;
                    self.integer(byte, 4, Integer::NameIndex)
                }
            },
            FieldPart::Integer { so_far, shift, of } => {
                let more = u64::from(byte & 0x7f).checked_shl(shift).unwrap_or(u64::MAX);
                let so_far = so_far.saturating_add(more);
                if byte & 0x80 == 0 {
                    return self.integer_ends(so_far, of);
                }
                self.part = FieldPart::Integer { so_far, shift: shift.saturating_add(7), of };
                false
            }
            FieldPart::NameLength => {
                let is_huffman = byte & 0x80 != 0;
                self.integer(byte, 7, Integer::NameLength { is_huffman })
            }
            FieldPart::Name { is_huffman, length } => {
                // A colon is 1011100 in the code of HPACK (RFC 7541, appendix B).
                self.is_pseudo = if is_huffman { byte >> 1 == 0x5c } else { byte == b':' };
                let rest = length.saturating_sub(1);
                self.part =
                    if rest > 0 { FieldPart::RestOfName(rest) } else { FieldPart::ValueLength };
                self.is_pseudo
            }
            FieldPart::RestOfName(length) => {
                let rest = length.saturating_sub(1);
                self.part =
                    if rest > 0 { FieldPart::RestOfName(rest) } else { FieldPart::ValueLength };
                false
            }
            FieldPart::ValueLength => self.integer(byte, 7, Integer::ValueLength),
            FieldPart::Value(length) => {
                self.value(length.saturating_sub(1));
                false
            }
        }
    }

    /// Begins an integer with a prefix of so many bits (RFC 7541, section 5.1).
    fn integer(&mut self, byte: u8, bits: u32, of: Integer) -> bool {
        let mask = u8::MAX >> 8_u32.saturating_sub(bits);
        let prefix = u64::from(byte & mask);
        if prefix < u64::from(mask) {
            return self.integer_ends(prefix, of);
        }
        self.part = FieldPart::Integer { so_far: prefix, shift: 0, of };
        false
    }

    fn integer_ends(&mut self, value: u64, of: Integer) -> bool {
        match of {
            Integer::Indexed => {
                self.part = FieldPart::Field;
                self.is_pseudo_at(value)
            }
            Integer::NameIndex if value == 0 => {
                self.part = FieldPart::NameLength;
                false
            }
            Integer::NameIndex => {
                self.is_pseudo = self.is_pseudo_at(value);
                self.part = FieldPart::ValueLength;
                self.is_pseudo
            }
            Integer::NameLength { is_huffman } => {
                self.is_pseudo = false;
                self.part = match value {
                    0 => FieldPart::ValueLength,
                    length => FieldPart::Name { is_huffman, length },
                };
                false
            }
            Integer::TableSize => {
                self.part = FieldPart::Field;
                false
            }
            Integer::ValueLength => {
                self.value(value);
                false
            }
        }
    }

    /// The rest of a value has this length. Without a rest the field is complete.
    fn value(&mut self, rest: u64) {
        if rest > 0 {
            self.part = FieldPart::Value(rest);
            return;
        }
        self.part = FieldPart::Field;
        if self.is_inserted {
            self.table = self.table << 1 | u128::from(self.is_pseudo);
        }
    }

    fn is_pseudo_at(&self, index: u64) -> bool {
        match index.checked_sub(FIRST_DYNAMIC) {
            None => (1..=LAST_STATIC_PSEUDO).contains(&index),
            Some(position) => {
                let position = u32::try_from(position).unwrap_or(u32::MAX);
                self.table.checked_shr(position).is_some_and(|table| table & 1 != 0)
            }
        }
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

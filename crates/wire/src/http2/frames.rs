//! The frames of HTTP/2 in the bytes of one direction of a connection (RFC 9113, section 4.1). h2
//! reports nothing of some frames, so the bytes that it reads or writes are scanned as well.

use smallvec::SmallVec;

/// Length of the preface of a client (section 3.4).
const PREFACE: usize = 24;
/// Length of a frame header.
const FRAME_HEADER: usize = 9;

/// Scans bytes for frames.
#[derive(Debug, Default)]
pub struct FrameScan {
    /// Bytes of the preface that are still to come.
    preface: usize,
    /// The header of the current frame.
    header: SmallVec<[u8; FRAME_HEADER]>,
    /// Bytes of the current frame's payload that are still to come.
    left: usize,
}

/// A piece of a frame. The first piece has no bytes and comes with the header.
#[derive(Debug, Clone, Copy)]
pub struct FramePiece<'a> {
    /// The type.
    pub kind: u8,
    /// The flags of the frame.
    pub flags: u8,
    /// The stream; 0 is the connection.
    pub stream: u32,
    /// The bytes of the payload in this piece.
    pub bytes: &'a [u8],
    /// Bytes of the payload from the beginning of this piece.
    pub left: usize,
}

impl FramePiece<'_> {
    /// Whether the payload ends with this piece.
    pub fn is_last(&self) -> bool {
        self.left == self.bytes.len()
    }
}

impl FrameScan {
    /// Scans the bytes of a client, which begin with the preface.
    pub fn with_preface() -> Self {
        Self { preface: PREFACE, ..Self::default() }
    }

    /// Scans the next bytes, and reports each frame header and each piece of a payload.
    pub fn read(&mut self, mut bytes: &[u8], mut report: impl FnMut(FramePiece<'_>)) {
        while !bytes.is_empty() {
            let is_header = self.left == 0;
            let wanted = match self.preface {
                0 if is_header => FRAME_HEADER.saturating_sub(self.header.len()),
                0 => self.left,
                preface => preface,
            };
            let (part, after) = bytes.split_at_checked(wanted).unwrap_or((bytes, &[]));
            bytes = after;
            if self.preface > 0 {
                self.preface = self.preface.saturating_sub(part.len());
                continue;
            }
            if is_header {
                self.header.extend_from_slice(part);
                if self.header.len() < FRAME_HEADER {
                    continue;
                }
                let length = self.header.first_chunk::<3>().copied().unwrap_or_default();
                self.left = length.iter().fold(0, |sum, byte| sum << 8 | usize::from(*byte));
                report(self.piece(&[]));
            } else {
                report(self.piece(part));
                self.left = self.left.saturating_sub(part.len());
            }
            if self.left == 0 {
                self.header.clear();
            }
        }
    }

    fn piece<'a>(&self, bytes: &'a [u8]) -> FramePiece<'a> {
        let byte = |index| self.header.get(index).copied().unwrap_or_default();
        let stream = self.header.last_chunk().map_or(0, |it| u32::from_be_bytes(*it));
        let (kind, flags, stream) = (byte(3), byte(4), stream & (u32::MAX >> 1));
        FramePiece { kind, flags, stream, bytes, left: self.left }
    }
}

//! The frames of a client that h2 reports nothing of: control frames (PRIORITY, SETTINGS, PING and
//! WINDOW_UPDATE), and what h2 buffers until the end of a frame or of a header block.

use std::cell::{Cell, RefCell};
use std::task::{Context, Poll};

use super::frames::FrameScan;
use crate::io_events::IoEvents;
use crate::permit::ledger::{Held, Holder};

/// The types of frames (RFC 9113, section 6).
const HEADERS: u8 = 1;
const CONTINUATION: u8 = 9;
const CONTROL: [u8; 4] = [2, 4, 6, 8];
/// Flag of the last frame of a header block.
const END_HEADERS: u8 = 4;

/// Bytes of an unfinished frame or header block that a client may send while it holds its share of
/// the memory, 2 KiB.
const FEW: usize = 2 << 10;

/// Counts the control frames in the bytes of a client, and the bytes that h2 buffers.
#[derive(Debug)]
pub struct ClientFrames {
    scan: RefCell<FrameScan>,
    control: Cell<u32>,
    /// Bytes of the last frame or header block, if its end has not come.
    unfinished: Cell<usize>,
    held: RefCell<Held>,
}

impl ClientFrames {
    /// Counts the bytes that h2 buffers for `holder`.
    pub fn new(holder: Holder) -> Self {
        Self {
            scan: RefCell::new(FrameScan::with_preface()),
            control: Cell::new(0),
            unfinished: Cell::new(0),
            held: RefCell::new(Held::new(holder)),
        }
    }

    /// The number of control frames since the last call.
    pub fn take_control(&self) -> u32 {
        self.control.take()
    }
}

impl IoEvents for ClientFrames {
    fn on_read(&self, bytes: &[u8]) {
        self.scan.borrow_mut().read(bytes, |frame| {
            let (is_first, is_head) =
                (frame.bytes.is_empty(), [HEADERS, CONTINUATION].contains(&frame.kind));
            if is_first && CONTROL.contains(&frame.kind) {
                self.control.set(self.control.get().saturating_add(1));
            }
            let begins = is_first && frame.kind != CONTINUATION;
            // h2 keeps the fields of a header block and its bytes.
            let length = frame.bytes.len().saturating_mul(if is_head { 2 } else { 1 });
            let before = if begins { 0 } else { self.unfinished.get() };
            let is_end = frame.is_last() && (!is_head || frame.flags & END_HEADERS != 0);
            self.unfinished.set(if is_end { 0 } else { before.saturating_add(length) });
        });
        self.held.borrow_mut().set(self.unfinished.get());
    }

    fn poll_may_read(&self, context: &Context<'_>) -> Poll<()> {
        let mut held = self.held.borrow_mut();
        if self.unfinished.get() <= FEW || held.has_share() || held.has_unused_window() {
            return Poll::Ready(());
        }
        held.poll_share(context)
    }
}

#[cfg(test)]
mod tests {
    use std::net::{IpAddr, Ipv4Addr};
    use std::task::Waker;

    use super::*;
    use crate::permit::{BufferClass, ClientKey, ledger};

    fn holder(class: BufferClass) -> Holder {
        Holder { client: ClientKey::new(None, IpAddr::V4(Ipv4Addr::UNSPECIFIED)), class }
    }

    fn client_frames() -> ClientFrames {
        ClientFrames::new(holder(BufferClass::Tls))
    }

    #[test]
    fn control_frames_are_counted_in_pieces_of_any_size_and_others_are_not() {
        let frames: [&[u8]; 5] = [
            b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
            &[0, 0, 0, 4, 0, 0, 0, 0, 0], // SETTINGS
            &[0, 0, 9, 0, 0, 0, 0, 0, 1, 0, 0, 0, 6, 0, 0, 0, 0, 0], // DATA like a PING
            &[0, 0, 4, 8, 0, 0, 0, 0, 0, 0, 0, 0, 1], // WINDOW_UPDATE
            &[0, 0, 1, 1, 5, 0, 0, 0, 3, 0x82], // HEADERS
        ];
        for size in 1..=80 {
            let count = client_frames();
            frames.concat().chunks(size).for_each(|piece| count.on_read(piece));
            assert_eq!((count.take_control(), count.take_control()), (2, 0), "pieces of {size}");
            assert_eq!(count.unfinished.get(), 0);
        }
    }

    #[test]
    fn a_header_block_and_a_frame_count_until_their_end() {
        let frames: [(&[u8], usize); 6] = [
            (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 0),
            (&[0, 0, 3, 1, 1, 0, 0, 0, 1, 0x82, 0x86, 0x84], 6), // HEADERS
            (&[0, 0, 2, 9, 0, 0, 0, 0, 1, 0, 0], 10),            // CONTINUATION
            (&[0, 0, 1, 9, 4, 0, 0, 0, 1, 0], 0),                // with END_HEADERS
            (&[0, 0, 3, 0, 0, 0, 0, 0, 1, 0, 0], 2),             // DATA
            (&[0], 0),
        ];
        for size in 1..=80 {
            let count = client_frames();
            for (frame, unfinished) in frames {
                frame.chunks(size).for_each(|piece| count.on_read(piece));
                assert_eq!(count.unfinished.get(), unfinished, "{frame:?}, pieces of {size}");
            }
        }
    }

    #[test]
    fn a_client_that_holds_its_share_sends_few_bytes_of_a_frame_without_its_end() {
        ledger::set_limit(64 << 10);
        let count = client_frames();
        count.on_read(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\xff\xff\x01\0\0\0\0\x01");
        let context = Context::from_waker(Waker::noop());
        let mut other = Held::new(holder(BufferClass::Response));
        other.set(48 << 10);
        count.on_read(&[0; FEW / 2]);
        assert!(count.poll_may_read(&context).is_ready());
        count.on_read(&[0]);
        assert!(count.poll_may_read(&context).is_pending());
        drop(other);
        assert!(count.poll_may_read(&context).is_ready());
    }
}

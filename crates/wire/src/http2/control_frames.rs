//! The number of control frames that a client sends: PRIORITY, SETTINGS, PING and WINDOW_UPDATE,
//! which belong to no message. h2 reports none of them.

use std::cell::{Cell, RefCell};

use super::frames::FrameScan;
use crate::io_events::IoEvents;

/// The types of control frames (RFC 9113, section 6).
const CONTROL: [u8; 4] = [2, 4, 6, 8];

/// Counts the control frames in the bytes of a client.
#[derive(Debug)]
pub struct ControlFrames {
    scan: RefCell<FrameScan>,
    count: Cell<u32>,
}

impl Default for ControlFrames {
    fn default() -> Self {
        Self { scan: RefCell::new(FrameScan::of_client()), count: Cell::new(0) }
    }
}

impl ControlFrames {
    /// The number of control frames since the last call.
    pub fn take(&self) -> u32 {
        self.count.take()
    }
}

impl IoEvents for ControlFrames {
    fn on_read(&self, bytes: &[u8]) {
        self.scan.borrow_mut().read(bytes, |frame| {
            if frame.bytes.is_empty() && CONTROL.contains(&frame.kind) {
                self.count.set(self.count.get().saturating_add(1));
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
            let count = ControlFrames::default();
            frames.concat().chunks(size).for_each(|piece| count.on_read(piece));
            assert_eq!((count.take(), count.take()), (2, 0), "pieces of {size}");
        }
    }
}

//! The SETTINGS of a server, read from its frames.

use std::cell::{Cell, RefCell};

use keygate_wire::http2::send_window::SendWindow;
use keygate_wire::http2::server_frames::{ServerFrame, ServerFrames};
use tokio::sync::SetOnce;

/// Setting of the server: the maximum size of a request head (RFC 9113, section 6.5.2).
const MAX_HEADER_LIST_SIZE: u16 = 6;
/// The settings in the frames of the server.
#[derive(Debug)]
pub(super) struct Http2ServerSettings {
    frames: RefCell<ServerFrames>,
    pub(super) have_arrived: Cell<bool>,
    /// Set after h2 has processed the first SETTINGS.
    pub(super) is_applied: SetOnce<()>,
    /// Maximum size of a request head, in bytes.
    pub(super) max_header_list: Cell<usize>,
}

impl Default for Http2ServerSettings {
    fn default() -> Self {
        let (frames, have_arrived, is_applied) = Default::default();
        Self { frames, have_arrived, is_applied, max_header_list: Cell::new(usize::MAX) }
    }
}

impl Http2ServerSettings {
    pub(super) fn record_read(&self, bytes: &[u8], window: &SendWindow) {
        self.frames.borrow_mut().read(bytes, |frame| match frame {
            ServerFrame::Setting(MAX_HEADER_LIST_SIZE, size) => {
                self.max_header_list.set(usize::try_from(size).unwrap_or(usize::MAX));
            }
            ServerFrame::SettingsEnd => self.have_arrived.set(true),
            ServerFrame::Setting(..) => {}
            ServerFrame::WindowUpdate(stream, increment) => {
                window.record_update(stream, increment);
            }
        });
    }
}

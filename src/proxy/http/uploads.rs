//! The uploads in flight on one connection, and the flow-control windows that they hold.

use keygate_wire::permit::ledger::{Held, Holder};
use keygate_wire::permit::{BufferClass, ClientKey};

/// Initial flow-control window of one stream, in bytes. Not below the default of HTTP/2, because h2
/// 0.4.20 sends no WINDOW_UPDATE if data came before the acknowledgement of a smaller window.
pub(super) const STREAM_WINDOW: u32 = 64 << 10;
/// Number of streams whose windows the window of the connection holds: 256 KiB at first, 1 MiB at
/// most.
pub(super) const STREAMS_OF_WINDOW: u32 = 4;

/// The uploads in flight on one connection.
pub(super) struct Uploads {
    count: usize,
    /// Flow-control window of each stream, in bytes.
    window: u32,
    /// The windows of the uploads' streams, as far as the connection's window holds them.
    held: Held,
}

impl Uploads {
    pub(super) fn new(client: ClientKey) -> Self {
        let held = Held::new(Holder { client, class: BufferClass::Upload });
        Self { count: 0, window: STREAM_WINDOW, held }
    }

    /// Counts an upload. Returns whether the share of the client permits it.
    #[must_use]
    pub(super) fn begin(&mut self) -> bool {
        self.count = self.count.saturating_add(1);
        self.hold_windows()
    }

    pub(super) fn end(&mut self) {
        self.count = self.count.saturating_sub(1);
        let _ = self.hold_windows();
    }

    /// Sets the window of each stream, in bytes. Returns whether the share of the client permits it;
    /// otherwise nothing changes.
    pub(super) fn set_window(&mut self, window: u32) -> bool {
        let before = std::mem::replace(&mut self.window, window);
        let has_share = self.hold_windows();
        if !has_share {
            self.window = before;
        }
        has_share
    }

    fn hold_windows(&mut self) -> bool {
        let windows = self.count.min(STREAMS_OF_WINDOW as usize);
        self.held.resize(windows.saturating_mul(self.window as usize))
    }
}

#[cfg(test)]
mod tests {
    use std::net::{IpAddr, Ipv4Addr};

    use super::*;
    use keygate_wire::permit::ledger;

    #[test]
    fn an_upload_beyond_the_share_of_its_client_is_rejected() {
        ledger::set_limit(1 << 20); // 576 KiB for one client
        let mut uploads = Uploads::new(ClientKey::new(None, IpAddr::V4(Ipv4Addr::UNSPECIFIED)));
        assert!(uploads.set_window(256 << 10));
        let began = [1, 2, 3].map(|_| uploads.begin());
        assert_eq!(began, [true, true, false]);
        uploads.end();
        uploads.end();
        assert!(uploads.begin());
    }
}

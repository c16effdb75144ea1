//! The frames of a server that h2 reports nothing of: SETTINGS and WINDOW_UPDATE (RFC 9113,
//! sections 6.5 and 6.9). The bytes that h2 reads are scanned as well.

use smallvec::SmallVec;

/// Length of a frame header, in bytes (section 4.1).
const FRAME_HEADER: usize = 9;
const SETTINGS: u8 = 4;
const WINDOW_UPDATE: u8 = 8;
/// Flag of SETTINGS.
const ACK: u8 = 1;

/// An event in the frames of a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ServerFrame {
    Setting(u16, u32),
    SettingsEnd,
    /// Stream, 0 for the connection, and increment.
    WindowUpdate(u32, u32),
}

/// Scans the bytes of a connection.
#[derive(Debug, Default)]
pub(super) struct ServerFrames {
    header: SmallVec<[u8; FRAME_HEADER]>,
    /// Bytes of the current frame's payload that are still to come.
    left: usize,
    /// A part of a setting or an increment.
    part: SmallVec<[u8; 8]>,
}

impl ServerFrames {
    pub(super) fn read(&mut self, mut bytes: &[u8], mut report: impl FnMut(ServerFrame)) {
        while !bytes.is_empty() {
            if self.header.len() < FRAME_HEADER {
                bytes = fill(&mut self.header, FRAME_HEADER, bytes);
                let length = self.header.first_chunk::<3>().filter(|_| self.is_begun());
                self.left =
                    length.map_or(0, |it| it.iter().fold(0, |sum, it| sum << 8 | usize::from(*it)));
            } else {
                let size = match self.kind() {
                    SETTINGS => 6,
                    WINDOW_UPDATE => 4,
                    _ => 0,
                };
                let (payload, after) = bytes.split_at_checked(self.left).unwrap_or((bytes, &[]));
                let rest = if size > 0 { fill(&mut self.part, size, payload) } else { &[] };
                self.left = self.left.saturating_sub(payload.len().saturating_sub(rest.len()));
                bytes = bytes.get(bytes.len() - after.len() - rest.len()..).unwrap_or_default();
                if size > 0 && self.part.len() == size {
                    report(self.part());
                    self.part.clear();
                }
            }
            if self.is_begun() && self.left == 0 {
                if self.kind() == SETTINGS && self.flags() & ACK == 0 {
                    report(ServerFrame::SettingsEnd);
                }
                self.header.clear();
                self.part.clear();
            }
        }
    }

    /// Whether the header of the current frame is complete.
    fn is_begun(&self) -> bool {
        self.header.len() == FRAME_HEADER
    }

    fn kind(&self) -> u8 {
        self.header.get(3).copied().unwrap_or_default()
    }

    fn flags(&self) -> u8 {
        self.header.get(4).copied().unwrap_or_default()
    }

    fn part(&self) -> ServerFrame {
        let number = self.part.last_chunk().map_or(0, |it| u32::from_be_bytes(*it));
        if self.kind() == SETTINGS {
            let id = self.part.first_chunk().map_or(0, |it| u16::from_be_bytes(*it));
            return ServerFrame::Setting(id, number);
        }
        let stream = self.header.last_chunk().map_or(0, |it| u32::from_be_bytes(*it));
        ServerFrame::WindowUpdate(stream & (u32::MAX >> 1), number & (u32::MAX >> 1))
    }
}

/// Moves bytes to `target` until it has `size`. Returns the rest.
fn fill<'a, const N: usize>(
    target: &mut SmallVec<[u8; N]>,
    size: usize,
    bytes: &'a [u8],
) -> &'a [u8]
where
    [u8; N]: smallvec::Array<Item = u8>,
{
    let missing = size.saturating_sub(target.len());
    let (part, rest) = bytes.split_at_checked(missing).unwrap_or((bytes, &[]));
    target.extend_from_slice(part);
    rest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_and_window_updates_are_found_in_pieces_of_any_size() {
        let frames: [&[u8]; 6] = [
            &[0, 0, 12, 4, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0, 100, 0, 6, 0, 0, 32, 0],
            &[0, 0, 0, 4, 1, 0, 0, 0, 0], // an acknowledgement
            &[0, 0, 5, 0, 0, 0, 0, 0, 1, 8, 8, 8, 8, 8],
            &[0, 0, 4, 8, 0, 0, 0, 0, 1, 0, 0, 1, 0],
            &[0, 0, 4, 8, 0, 0, 0, 0, 0, 0, 0, 2, 0],
            &[0, 0, 0, 4, 0, 0, 0, 0, 0],
        ];
        for size in 1..=80 {
            let (mut scan, mut found) = (ServerFrames::default(), Vec::new());
            for piece in frames.concat().chunks(size) {
                scan.read(piece, |frame| found.push(frame));
            }
            let wanted = [
                ServerFrame::Setting(3, 100),
                ServerFrame::Setting(6, 8192),
                ServerFrame::SettingsEnd,
                ServerFrame::WindowUpdate(1, 256),
                ServerFrame::WindowUpdate(0, 512),
                ServerFrame::SettingsEnd,
            ];
            assert_eq!(found, wanted, "pieces of {size}");
        }
    }
}

//! The frames of a server that h2 reports nothing of: SETTINGS and WINDOW_UPDATE (RFC 9113,
//! sections 6.5 and 6.9).

use smallvec::SmallVec;

use super::frames::FrameScan;

const SETTINGS: u8 = 4;
const WINDOW_UPDATE: u8 = 8;
/// Flag of SETTINGS.
const ACK: u8 = 1;

/// An event in the frames of a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ServerFrame {
    /// Identifier and value of a setting.
    Setting(u16, u32),
    /// The end of SETTINGS that are no acknowledgement.
    SettingsEnd,
    /// Stream, 0 for the connection, and increment.
    WindowUpdate(u32, u32),
}

/// Scans the bytes of a server.
#[derive(Debug, Default)]
pub struct ServerFrames {
    frames: FrameScan,
    /// A part of a setting or an increment.
    part: SmallVec<[u8; 8]>,
}

impl ServerFrames {
    /// Scans the next bytes, and reports each event.
    pub fn read(&mut self, bytes: &[u8], mut report: impl FnMut(ServerFrame)) {
        let part = &mut self.part;
        self.frames.read(bytes, |frame| {
            let is_settings = frame.kind == SETTINGS;
            if frame.bytes.is_empty() {
                part.clear();
            }
            let size = match frame.kind {
                SETTINGS => 6,
                WINDOW_UPDATE => 4,
                _ => return,
            };
            for byte in frame.bytes {
                part.push(*byte);
                if part.len() < size {
                    continue;
                }
                let number = part.last_chunk().map_or(0, |it| u32::from_be_bytes(*it));
                report(if is_settings {
                    let id = part.first_chunk().map_or(0, |it| u16::from_be_bytes(*it));
                    ServerFrame::Setting(id, number)
                } else {
                    ServerFrame::WindowUpdate(frame.stream, number & (u32::MAX >> 1))
                });
                part.clear();
            }
            if frame.is_last() && is_settings && frame.flags & ACK == 0 {
                report(ServerFrame::SettingsEnd);
            }
        });
    }
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

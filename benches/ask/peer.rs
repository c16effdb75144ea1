//! A host's end of a connection, whatever its protocol.

use std::os::unix::net::UnixStream;

/// The bytes of a connection of a host.
pub trait Peer {
    /// Opens the connection.
    fn greet(&mut self, _stream: &mut UnixStream) {}

    /// Appends the next question.
    fn ask(&mut self, bytes: &mut Vec<u8>);

    /// Removes whole answers and returns their number.
    ///
    /// # Panics
    /// The bytes are no answer.
    fn answers(&mut self, bytes: &mut Vec<u8>) -> usize;
}

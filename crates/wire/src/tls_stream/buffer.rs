//! Buffers for TLS records. The worker lends a large one for as long as it holds bytes.

use std::cell::RefCell;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, ReadBuf};

use crate::permit::ledger::{Held, Holder};

/// Size of a large buffer, in bytes: four full records and some small ones. A handshake message of
/// 64 KiB, the maximum of rustls, fits with the headers of its records.
pub(super) const BUFFER: usize = 17 * 4096;

/// Size up to which bytes that wait get a buffer of their own size, in bytes: a full record. The
/// maximum of a ClientHello with the headers of its records.
pub(super) const SMALL: usize = BUFFER / 4;

/// Bytes of a record that a client may send while it holds its share of the memory, 2 KiB. Frames
/// that let its responses go on are shorter; a longer record waits. Also the size of a read before
/// the client is known: what follows its handshake counts regardless of its share.
pub(super) const FEW: usize = 2 << 10;

/// The kind of the error of a handshake that was evicted, or that has no room in the memory.
pub const OVER_SHARE: io::ErrorKind = io::ErrorKind::OutOfMemory;

/// Maximum number of unused large buffers that a thread keeps: one to read, one to write.
const SPARE: usize = 2;

thread_local! {
    static SPARE_BUFFERS: RefCell<Vec<Vec<u8>>> = const { RefCell::new(Vec::new()) };
}

/// Bytes that wait to be processed or sent. Without bytes it owns no memory once it is settled.
#[derive(Debug, Default)]
pub(super) struct Buffer {
    /// Initialised throughout. A lent buffer is `BUFFER` bytes long or longer.
    bytes: Vec<u8>,
    /// The bytes that wait are `start..end`.
    start: usize,
    end: usize,
    /// The memory that the client holds. Between two calls of [`Self::settle`] it is borrowed.
    held: Held,
}

impl Buffer {
    /// A buffer whose memory is held by `holder`.
    pub(super) fn new(holder: Holder) -> Self {
        Self { held: Held::new(holder), ..Self::default() }
    }

    /// Counts the memory for another holder from now on, regardless of its share.
    pub(super) fn set_holder(&mut self, holder: Holder) {
        self.shrink();
        self.held = Held::new(holder);
        self.held.set(self.bytes.len());
    }

    pub(super) fn is_empty(&self) -> bool {
        self.start == self.end
    }

    pub(super) fn len(&self) -> usize {
        self.end.saturating_sub(self.start)
    }

    pub(super) fn filled(&self) -> &[u8] {
        self.bytes.get(self.start..self.end).unwrap_or_default()
    }

    pub(super) fn filled_mut(&mut self) -> &mut [u8] {
        self.bytes.get_mut(self.start..self.end).unwrap_or_default()
    }

    /// Removes `count` bytes from the front.
    pub(super) fn consume(&mut self, count: usize) {
        self.start = self.start.saturating_add(count).min(self.end);
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
        }
    }

    /// The free space behind the bytes; empty if the buffer is full. Borrows a large buffer.
    pub(super) fn room(&mut self) -> &mut [u8] {
        self.make_room(BUFFER);
        self.bytes.get_mut(self.end..).unwrap_or_default()
    }

    /// The space for data behind the bytes: all, or for one record while the client holds its share
    /// of the memory.
    pub(super) fn space(&mut self) -> usize {
        let limit = if self.held.has_share() { BUFFER } else { SMALL.saturating_sub(self.len()) };
        self.room().len().min(limit)
    }

    /// Free space behind the bytes, `size` bytes at least.
    pub(super) fn room_for(&mut self, size: usize) -> &mut [u8] {
        self.make_room(BUFFER.max(self.len().saturating_add(size)));
        self.bytes.get_mut(self.end..).unwrap_or_default()
    }

    /// Adds the first `count` bytes of [`Self::room`].
    pub(super) fn add(&mut self, count: usize) {
        self.end = self.end.saturating_add(count).min(self.bytes.len());
    }

    /// Ready with the maximum size of the next read, in bytes. While the client holds its share of
    /// the memory, this is the rest of [`FEW`] bytes, or of a record if the client has uploads. A
    /// client whose uploads stopped could not end them, and would hold their windows.
    pub(super) fn poll_limit(&mut self, context: &Context<'_>) -> Poll<usize> {
        if self.held.has_share() {
            return Poll::Ready(BUFFER);
        }
        let limit = if self.held.has_unused_window() { SMALL } else { FEW };
        match limit.saturating_sub(self.len()) {
            0 => self.held.poll_share(context).map(|()| BUFFER),
            rest => Poll::Ready(rest),
        }
    }

    /// Waits for bytes from `io`, and reads `limit` bytes at most, or [`Self::poll_limit`] if that
    /// is less. 0 if the peer has closed.
    ///
    /// # Errors
    /// Returns an error if the read fails, or if the buffer is full.
    pub(super) fn poll_fill<IO: AsyncRead + Unpin>(
        &mut self,
        io: &mut IO,
        limit: usize,
        context: &mut Context<'_>,
    ) -> Poll<io::Result<usize>> {
        let limit = limit.min(ready!(self.poll_limit(context)));
        let room = self.room();
        if room.is_empty() {
            let error = io::Error::new(io::ErrorKind::InvalidData, "message buffer full");
            return Poll::Ready(Err(error));
        }
        let size = room.len().min(limit);
        let mut room = ReadBuf::new(room.get_mut(..size).unwrap_or_default());
        ready!(Pin::new(io).poll_read(context, &mut room))?;
        let count = room.filled().len();
        self.add(count);
        Poll::Ready(Ok(count))
    }

    /// Moves the bytes to the front of a buffer of `size` bytes at least.
    fn make_room(&mut self, size: usize) {
        if self.bytes.len() < size {
            let mut larger = SPARE_BUFFERS.with_borrow_mut(Vec::pop).unwrap_or_default();
            larger.resize(size.max(larger.len()), 0);
            let filled = self.filled();
            let length = filled.len();
            if let Some(front) = larger.get_mut(..length) {
                front.copy_from_slice(filled);
            }
            (self.bytes, self.start, self.end) = (larger, 0, length);
        } else if self.start > 0 {
            self.bytes.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.len());
        }
    }

    /// Removes all bytes.
    pub(super) fn clear(&mut self) {
        self.consume(usize::MAX);
        self.shrink();
        self.held.release();
    }

    /// Counts the memory until the next call, without what can be given back.
    ///
    /// # Errors
    /// Returns an error of the kind [`OVER_SHARE`] if a handshake has no room in the memory.
    pub(super) fn settle(&mut self, context: &Context<'_>) -> io::Result<()> {
        self.shrink();
        if self.held.settle(self.bytes.len(), context) {
            return Ok(());
        }
        Err(io::Error::new(OVER_SHARE, "no memory for this handshake"))
    }

    /// Gives a large buffer back if few bytes are left. They move to one of their own size.
    fn shrink(&mut self) {
        if self.bytes.is_empty() {
            return;
        }
        if self.is_empty() || self.bytes.len() >= BUFFER && self.len() <= SMALL {
            let small = self.filled().to_vec();
            (self.start, self.end) = (0, small.len());
            give_back(std::mem::replace(&mut self.bytes, small));
        }
    }
}

fn give_back(buffer: Vec<u8>) {
    SPARE_BUFFERS.with_borrow_mut(|spare| {
        if buffer.len() == BUFFER && spare.len() < SPARE {
            spare.push(buffer);
        }
    });
}

#[cfg(test)]
impl Buffer {
    pub(super) fn memory(&self) -> usize {
        self.bytes.capacity()
    }
}

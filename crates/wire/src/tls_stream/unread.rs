//! Decrypted data between two reads.

use tokio::io::ReadBuf;

/// Data that waits for a reader: at most the rest of a record, or 8 KiB and a record of a client
/// that is held before it is served.
#[derive(Debug, Default)]
pub(super) struct Unread {
    data: Vec<u8>,
    taken: usize,
}

impl Unread {
    pub(super) fn len(&self) -> usize {
        self.data.len().saturating_sub(self.taken)
    }

    /// The memory of the data, in bytes.
    #[cfg(test)]
    pub(super) fn memory(&self) -> usize {
        self.data.capacity()
    }

    pub(super) fn extend(&mut self, data: &[u8]) {
        self.data.extend_from_slice(data);
    }

    /// Moves as much as fits to `reader`. Frees the memory with the last byte.
    pub(super) fn read(&mut self, reader: &mut ReadBuf<'_>) {
        let rest = self.data.get(self.taken..).unwrap_or_default();
        let count = rest.len().min(reader.remaining());
        reader.put_slice(rest.get(..count).unwrap_or_default());
        self.taken = self.taken.saturating_add(count);
        if self.len() == 0 {
            *self = Self::default();
        }
    }
}

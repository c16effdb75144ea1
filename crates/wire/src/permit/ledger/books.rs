//! The books of a ledger: who holds how much, and who waits.

use std::task::Waker;

use super::{BufferClass, ClassUse, Holder};
use crate::permit::ClientKey;
use crate::permit::client_shares::is_within_share;
use crate::permit::holdings::{Age, Holdings};

/// One of this many bytes of the limit is for handshakes.
const HANDSHAKE_PART: usize = 4;

#[derive(Debug)]
pub(super) struct Ledger {
    /// Maximum bytes; without a limit nothing is rejected.
    pub(super) limit: usize,
    /// Bytes of clients, and tasks that wait for a share. The limits of requests and connections
    /// bound the number of tasks.
    pub(super) clients: Holdings<Waker>,
    /// Bytes before the proof, and the tasks that an eviction wakes.
    pub(super) handshakes: Holdings<Waker>,
    /// The parts of `clients` that windows for uploads and received records take.
    uploads: Holdings<()>,
    records: Holdings<()>,
    pub(super) by_class: [ClassUse; BufferClass::ALL.len()],
}

impl Default for Ledger {
    fn default() -> Self {
        Self {
            limit: usize::MAX,
            clients: Holdings::default(),
            handshakes: Holdings::default(),
            uploads: Holdings::default(),
            records: Holdings::default(),
            by_class: Default::default(),
        }
    }
}

impl Ledger {
    /// Whether a client may hold `more` bytes.
    pub(super) fn permits(&self, holder: Holder, more: usize) -> bool {
        let for_handshakes = self.limit / HANDSHAKE_PART;
        let (limit, book) = match holder.class {
            BufferClass::Handshake => (for_handshakes, &self.handshakes),
            BufferClass::Request
            | BufferClass::Response
            | BufferClass::Tls
            | BufferClass::Upload => (self.limit - for_handshakes, &self.clients),
        };
        let all = book.total.saturating_add(more);
        let free = limit.saturating_sub(all);
        // All clients together hold less than the share of one, most of the time.
        is_within_share(all, free)
            || is_within_share(book.size_of(holder.client).saturating_add(more), free)
    }

    /// Counts that a client had its share.
    pub(super) fn record_rejection(&mut self, class: BufferClass) {
        if let Some(class) = self.by_class.get_mut(class as usize) {
            class.rejections = class.rejections.saturating_add(1);
        }
    }

    /// Changes the bytes of a client. Returns the waker of the next task if bytes are given back.
    pub(super) fn change(&mut self, holder: Holder, before: usize, bytes: usize) -> Option<Waker> {
        let Holder { client, class } = holder;
        let part = match class {
            BufferClass::Tls => Some(&mut self.records),
            BufferClass::Upload => Some(&mut self.uploads),
            BufferClass::Handshake | BufferClass::Request | BufferClass::Response => None,
        };
        if let Some(part) = part {
            part.resize(client, before, bytes);
        }
        self.clients.resize(client, before, bytes);
        self.change_class(class, before, bytes);
        if bytes < before { self.next_waker() } else { None }
    }

    fn change_class(&mut self, class: BufferClass, before: usize, bytes: usize) {
        if let Some(class) = self.by_class.get_mut(class as usize) {
            class.bytes = class.bytes.saturating_sub(before).saturating_add(bytes);
        }
    }

    /// Whether the records that a client has sent take less than the windows of its uploads.
    pub(super) fn has_unused_window(&self, client: ClientKey) -> bool {
        self.records.size_of(client) < self.uploads.size_of(client)
    }

    /// Removes the oldest task of the client that holds least, if the client is within its share.
    /// Otherwise no client with tasks is.
    pub(super) fn next_waker(&mut self) -> Option<Waker> {
        let client = self.clients.smallest()?;
        let may_go_on = self.permits(Holder { client, class: BufferClass::Response }, 0);
        let next = if may_go_on { self.clients.remove_oldest(client) } else { None };
        next.map(|(_, waker)| waker)
    }

    /// Adds a task of a client, which waits for a share.
    pub(super) fn wait(&mut self, client: ClientKey, waker: Waker) -> Age {
        let age = self.clients.next_age();
        self.clients.insert(client, age, 0, waker);
        age
    }

    /// Holds the bytes of a handshake. If they are more than before, others are evicted for them.
    /// Returns whether there is room, and the tasks whose bytes were evicted.
    pub(super) fn begin_handshake(
        &mut self,
        (client, age): (ClientKey, Age),
        bytes: usize,
        has_grown: bool,
        waker: &Waker,
    ) -> (bool, Vec<Waker>) {
        let (class, mut evicted) = (BufferClass::Handshake, Vec::new());
        while has_grown && !self.permits(Holder { client, class }, bytes) {
            self.record_rejection(class);
            let Some((given_back, waker)) = self.handshakes.evict(client, bytes) else {
                return (false, evicted);
            };
            self.change_class(class, given_back, 0);
            evicted.push(waker);
        }
        self.handshakes.insert(client, age, bytes, waker.clone());
        self.change_class(class, 0, bytes);
        (true, evicted)
    }

    /// Gives back the bytes of a handshake. Returns false if they were evicted.
    pub(super) fn end_handshake(&mut self, (client, age): (ClientKey, Age)) -> bool {
        let removed = self.handshakes.remove(client, age);
        self.change_class(BufferClass::Handshake, removed.as_ref().map_or(0, |it| it.0), 0);
        removed.is_some()
    }
}

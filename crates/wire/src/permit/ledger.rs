//! The memory ledger of a thread: buffered bytes belong to a client, or to an address whose peer has
//! not proved a key yet. Decision: `docs/decisions/memory-ledger.md`.
//!
//! Shares follow the rule of [`ClientShares`](super::ClientShares), in bytes: a client may take more only
//! while it holds less than three times the free bytes. Bytes before the proof have a budget of
//! their own, so they cannot take the clients' memory.
//!
//! A client beyond its share waits in the ledger, and is woken when bytes are given back. Before the
//! proof nothing waits, because an older handshake is evicted.
//!
//! The ledger is thread-local, because a worker shares nothing, and because a buffer that is dropped
//! anywhere below h2 or hyper cannot refer to it.

mod books;

use std::cell::{Cell, RefCell};
use std::task::{Context, Poll, Waker};

use bytes::Bytes;

use self::books::Ledger;
use super::ClientKey;
use super::holdings::Age;

/// The purpose of held bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BufferClass {
    /// Messages of a handshake that is not complete.
    Handshake,
    /// Requests in flight.
    Request,
    /// Pieces of responses that clients have not taken, encrypted ones included.
    Response,
    /// Received TLS records of clients that have proved their keys.
    Tls,
    /// Windows for uploads.
    Upload,
}

impl BufferClass {
    /// Every class.
    pub const ALL: [Self; 5] =
        [Self::Handshake, Self::Request, Self::Response, Self::Tls, Self::Upload];

    /// The label value.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Handshake => "handshake",
            Self::Request => "request",
            Self::Response => "response",
            Self::Tls => "tls",
            Self::Upload => "upload",
        }
    }
}

/// Size of reads from an upstream while the ledger is full, 16 KiB.
pub const MIN_READ: usize = 16 << 10;

/// The client that holds bytes, and what for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Holder {
    /// The client.
    pub client: ClientKey,
    /// The purpose of the bytes.
    pub class: BufferClass,
}

/// The use of one class.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ClassUse {
    /// Bytes that clients hold.
    pub bytes: usize,
    /// How often a client had its share.
    pub rejections: u64,
}

thread_local! {
    static LEDGER: RefCell<Ledger> = RefCell::default();
}

/// Sets the maximum bytes that this thread buffers.
pub fn set_limit(limit: usize) {
    LEDGER.with_borrow_mut(|ledger| ledger.limit = limit);
}

/// The use of every class in this thread, in the order of [`BufferClass::ALL`].
pub fn usage() -> [ClassUse; BufferClass::ALL.len()] {
    LEDGER.with_borrow(|ledger| ledger.by_class)
}

/// Whether clients hold less than an eighth of the limit.
pub fn is_nearly_empty() -> bool {
    max_read() == usize::MAX
}

/// Maximum size of a read from an upstream, in bytes: less, the more clients hold.
pub fn max_read() -> usize {
    LEDGER.with_borrow(|ledger| match ledger.clients.total.saturating_mul(8) / ledger.limit {
        0 => usize::MAX,
        1 => MIN_READ << 2,
        2 | 3 => MIN_READ << 1,
        _ => MIN_READ,
    })
}

/// Bytes that a client holds, until this is dropped.
#[derive(Debug, Default)]
pub struct Held {
    /// `None`: not counted.
    holder: Option<Holder>,
    bytes: usize,
    /// The age of its handshake, or of its wait for a share; 0 if there is none.
    age: Age,
}

impl Held {
    /// No bytes yet.
    pub fn new(holder: Holder) -> Self {
        Self { holder: Some(holder), bytes: 0, age: 0 }
    }

    /// Holds `bytes` instead of those before. Returns whether the share of the client permits it;
    /// otherwise nothing changes.
    #[must_use]
    pub fn resize(&mut self, bytes: usize) -> bool {
        let more = bytes.saturating_sub(self.bytes);
        let Some(holder) = self.holder.filter(|_| more > 0) else {
            self.set(bytes);
            return true;
        };
        LEDGER.with_borrow_mut(|ledger| {
            let permits = ledger.permits(holder, more);
            if permits {
                let _ = ledger.change(holder, self.bytes, bytes); // nothing is given back
                self.bytes = bytes;
            } else {
                ledger.record_rejection(holder.class);
            }
            permits
        })
    }

    /// Holds `bytes` regardless of the share.
    pub fn set(&mut self, bytes: usize) {
        if let Some(holder) = self.holder.filter(|_| bytes != self.bytes) {
            // Fails while the thread ends, when nobody looks at the ledger any more.
            let change = |it: &RefCell<Ledger>| it.borrow_mut().change(holder, self.bytes, bytes);
            let next = LEDGER.try_with(change).ok().flatten();
            self.bytes = bytes;
            next.into_iter().for_each(Waker::wake);
        }
    }

    /// Whether the client is within its share; if so, nothing waits for it. A handshake always is,
    /// because it may be evicted instead.
    pub fn has_share(&mut self) -> bool {
        let counted = self.holder.filter(|holder| holder.class != BufferClass::Handshake);
        counted.is_none_or(|holder| {
            self.leave();
            holder.has_share()
        })
    }

    /// Ready when the client is within its share. The task is woken when bytes are given back.
    pub fn poll_share(&mut self, context: &Context<'_>) -> Poll<()> {
        let Some(holder) = self.holder else { return Poll::Ready(()) };
        self.leave();
        LEDGER.with_borrow_mut(|ledger| {
            if ledger.permits(holder, 0) {
                return Poll::Ready(());
            }
            ledger.record_rejection(holder.class);
            self.age = ledger.wait(holder.client, context.waker().clone());
            Poll::Pending
        })
    }

    /// Whether the windows for uploads of the client cover more records than it has sent.
    pub fn has_unused_window(&self) -> bool {
        let has_unused =
            |it: Holder| LEDGER.with_borrow(|ledger| ledger.has_unused_window(it.client));
        self.holder.is_none_or(has_unused)
    }

    /// Holds the bytes of a buffer between two calls of its connection, after the proof regardless
    /// of the share. Returns whether the connection may go on: a handshake may not if it was
    /// evicted, or if there is no room for it.
    pub fn settle(&mut self, bytes: usize, context: &Context<'_>) -> bool {
        let Some(holder) = self.holder.filter(|it| it.class == BufferClass::Handshake) else {
            self.set(bytes);
            return true;
        };
        let before = self.bytes;
        if !self.release() {
            return false;
        }
        if bytes == 0 {
            return true;
        }
        let (has_room, evicted) = LEDGER.with_borrow_mut(|ledger| {
            if self.age == 0 {
                self.age = ledger.handshakes.next_age();
            }
            let entry = (holder.client, self.age);
            ledger.begin_handshake(entry, bytes, bytes > before, context.waker())
        });
        evicted.into_iter().for_each(Waker::wake);
        self.bytes = if has_room { bytes } else { 0 };
        has_room
    }

    /// Gives all bytes back. Returns false if the bytes of a handshake were evicted.
    pub fn release(&mut self) -> bool {
        match self.holder {
            Some(Holder { client, class: BufferClass::Handshake }) => {
                if std::mem::take(&mut self.bytes) == 0 {
                    return true;
                }
                let end = |it: &RefCell<Ledger>| it.borrow_mut().end_handshake((client, self.age));
                LEDGER.try_with(end).unwrap_or(true)
            }
            Some(_) | None => {
                self.leave();
                self.set(0);
                true
            }
        }
    }

    /// Stops waiting for a share. If the task was woken, the next one may take the share.
    fn leave(&mut self) {
        let age = std::mem::take(&mut self.age);
        let Some(holder) = self.holder.filter(|_| age != 0) else { return };
        let left = LEDGER.try_with(|it| {
            let mut ledger = it.borrow_mut();
            let has_waited = ledger.clients.remove(holder.client, age).is_some();
            if has_waited { None } else { ledger.next_waker() }
        });
        left.ok().flatten().into_iter().for_each(Waker::wake);
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.release();
    }
}

impl Holder {
    /// Whether the client is within its share.
    pub fn has_share(self) -> bool {
        LEDGER.with_borrow(|ledger| ledger.permits(self, 0))
    }

    /// The same bytes, held by the client until the last part of them is dropped. The charge of the
    /// request covers [`MIN_READ`] bytes that are `uncounted`. If pieces leave in order, a piece
    /// that exceeds them counts for those before it as well.
    pub fn hold(self, data: Bytes, uncounted: &Cell<usize>, in_order: bool) -> Bytes {
        let sum = uncounted.get().saturating_add(data.len());
        if sum <= MIN_READ {
            uncounted.set(sum);
            return data;
        }
        let mut held = Held::new(self);
        if in_order {
            uncounted.set(0);
            held.set(sum);
        } else {
            held.set(data.len());
        }
        Bytes::from_owner(HeldBytes { data, _held: held })
    }
}

struct HeldBytes {
    data: Bytes,
    _held: Held,
}

impl AsRef<[u8]> for HeldBytes {
    fn as_ref(&self) -> &[u8] {
        &self.data
    }
}

#[cfg(test)]
mod tests;

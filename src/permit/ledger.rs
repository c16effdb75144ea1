//! The memory ledger of a thread: every buffered byte belongs to a client, or to an address whose
//! peer has not proved a key yet. Decision: `docs/decisions/memory-ledger.md`.
//!
//! Shares follow the rule of [`ClientShares`](super::ClientShares), in bytes: a client may take more only
//! while it holds less than three times the free bytes. Bytes before the proof have a budget of
//! their own, so they cannot take the clients' memory.
//!
//! A client beyond its share waits in the ledger, and is woken when bytes are given back. Before the
//! proof nothing waits: the address that holds most loses its oldest handshake.
//!
//! The ledger is thread-local, because a worker shares nothing, and because a buffer that is dropped
//! anywhere below h2 or hyper cannot refer to it.

mod books;

use std::cell::{Cell, RefCell};
use std::task::{Context, Poll, Waker};

use bytes::Bytes;

use self::books::Ledger;
use super::ClientKey;

/// What bytes are held for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum BufferClass {
    /// Messages of a handshake that is not complete.
    Handshake,
    /// Requests in flight.
    Request,
    /// Pieces of responses that clients have not taken.
    Response,
    /// TLS records of clients that have proved their keys.
    Tls,
    /// Windows for uploads.
    Upload,
}

impl BufferClass {
    /// Every class.
    pub(crate) const ALL: [Self; 5] =
        [Self::Handshake, Self::Request, Self::Response, Self::Tls, Self::Upload];

    /// The label value.
    #[must_use]
    pub(crate) const fn as_str(self) -> &'static str {
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
pub(crate) const MIN_READ: usize = 16 << 10;

/// The client that holds bytes, and what for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Holder {
    pub(crate) client: ClientKey,
    pub(crate) class: BufferClass,
}

/// The use of one class.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct ClassUse {
    pub(crate) bytes: usize,
    /// How often a client had its share.
    pub(crate) rejections: u64,
}

thread_local! {
    static LEDGER: RefCell<Ledger> = RefCell::default();
}

/// Sets the maximum bytes that this thread buffers.
pub(crate) fn set_limit(limit: usize) {
    LEDGER.with_borrow_mut(|ledger| ledger.limit = limit);
}

/// The use of every class in this thread, in the order of [`BufferClass::ALL`].
pub(crate) fn usage() -> [ClassUse; BufferClass::ALL.len()] {
    LEDGER.with_borrow(|ledger| ledger.by_class)
}

/// Whether clients hold less than an eighth of the limit.
pub(crate) fn is_nearly_empty() -> bool {
    max_read() == usize::MAX
}

/// Maximum size of a read from an upstream, in bytes: less, the more clients hold.
pub(crate) fn max_read() -> usize {
    LEDGER.with_borrow(|ledger| match ledger.clients.total.saturating_mul(8) / ledger.limit {
        0 => usize::MAX,
        1 => MIN_READ << 2,
        2 | 3 => MIN_READ << 1,
        _ => MIN_READ,
    })
}

/// Bytes that a client holds, until this is dropped.
#[derive(Debug, Default)]
pub(crate) struct Held {
    /// `None`: not counted.
    holder: Option<Holder>,
    bytes: usize,
    /// The number of its [`Place`]; 0 if it does not wait.
    place: u64,
}

impl Held {
    /// No bytes yet.
    pub(crate) fn of(holder: Holder) -> Self {
        Self { holder: Some(holder), bytes: 0, place: 0 }
    }

    /// Holds `bytes` instead of those before. Returns whether the share of the client permits it;
    /// otherwise nothing changes.
    #[must_use]
    pub(crate) fn resize(&mut self, bytes: usize) -> bool {
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
    pub(crate) fn set(&mut self, bytes: usize) {
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
    pub(crate) fn has_share(&mut self) -> bool {
        let counted = self.holder.filter(|holder| holder.class != BufferClass::Handshake);
        counted.is_none_or(|holder| {
            self.leave();
            holder.has_share()
        })
    }

    /// Ready when the client is within its share. The task is woken when bytes are given back.
    pub(crate) fn poll_share(&mut self, context: &Context<'_>) -> Poll<()> {
        let Some(holder) = self.holder else { return Poll::Ready(()) };
        self.leave();
        LEDGER.with_borrow_mut(|ledger| {
            if ledger.permits(holder, 0) {
                return Poll::Ready(());
            }
            ledger.record_rejection(holder.class);
            ledger.wait(holder, &mut self.place, context.waker(), 0);
            Poll::Pending
        })
    }

    /// Holds the bytes of a buffer between two calls of its connection, after the proof regardless
    /// of the share. Returns whether the connection may go on: a handshake may not if it was
    /// evicted, or if there is no room for it.
    pub(crate) fn settle(&mut self, bytes: usize, context: &Context<'_>) -> bool {
        if bytes == self.bytes && self.place == 0 {
            return true;
        }
        let Some(holder) = self.holder.filter(|it| it.class == BufferClass::Handshake) else {
            self.set(bytes);
            return true;
        };
        let is_evicted = self.place != 0 && !self.leave();
        if is_evicted {
            return false;
        }
        let more = bytes.saturating_sub(self.bytes);
        let (has_room, wakers) = match more {
            0 => (true, Vec::new()),
            _ => LEDGER.with_borrow_mut(|ledger| ledger.evict(holder, more)),
        };
        wakers.into_iter().for_each(Waker::wake);
        if has_room {
            self.set(bytes);
        }
        if has_room && bytes > 0 {
            LEDGER.with_borrow_mut(|it| it.wait(holder, &mut self.place, context.waker(), bytes));
        }
        has_room
    }

    /// Stops waiting. Returns whether it still waited: otherwise it was woken for a share, which
    /// the next one may take, or its bytes were evicted.
    fn leave(&mut self) -> bool {
        let Some(holder) = self.holder.filter(|_| self.place != 0) else { return true };
        let place = (holder.client, std::mem::take(&mut self.place));
        let is_handshake = holder.class == BufferClass::Handshake;
        let left = LEDGER.try_with(|it| {
            let mut ledger = it.borrow_mut();
            let waited = ledger.book(holder.class).0.waiting.remove(&place).is_some();
            (waited, if waited || is_handshake { None } else { ledger.next_waker() })
        });
        let Ok((waited, next)) = left else { return true };
        if !waited && is_handshake {
            self.bytes = 0;
        }
        next.into_iter().for_each(Waker::wake);
        waited
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.leave();
        self.set(0);
    }
}

impl Holder {
    /// Whether the client is within its share.
    pub(crate) fn has_share(self) -> bool {
        LEDGER.with_borrow_mut(|ledger| ledger.permits(self, 0))
    }

    /// The same bytes, held by the client until the last part of them is dropped. The charge of the
    /// request covers [`MIN_READ`] bytes that are `uncounted`. If pieces leave in order, a piece
    /// that exceeds them counts for those before it as well.
    pub(crate) fn hold(self, data: Bytes, uncounted: &Cell<usize>, in_order: bool) -> Bytes {
        let sum = uncounted.get().saturating_add(data.len());
        if sum <= MIN_READ {
            uncounted.set(sum);
            return data;
        }
        let mut held = Held::of(self);
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

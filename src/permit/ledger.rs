//! The memory ledger of a thread: every buffered byte belongs to a client, or to an address whose
//! peer has not proved a key yet. Decision: `docs/decisions/memory-ledger.md`.
//!
//! Shares are those of [`ClientShares`](super::ClientShares), in bytes: a client may take more only
//! while it holds less than three times the free bytes. Bytes before the proof have a budget of
//! their own, so that they cannot take that of the clients.
//!
//! The ledger is thread-local, because a worker shares nothing, and because a buffer that is dropped
//! anywhere below h2 or hyper cannot refer to it.

use std::cell::RefCell;
use std::collections::HashMap;
use std::hash::BuildHasherDefault;

use bytes::Bytes;

use super::ClientKey;
use super::client_shares::{KeyItself, is_within_share};

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

/// One of this many bytes of the limit is for handshakes.
const HANDSHAKE_PART: usize = 4;
/// Size of reads from an upstream while the ledger is full, 16 KiB.
pub(crate) const MIN_READ: usize = 16 << 10;

/// The client that holds bytes, and what for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Holder {
    pub(crate) client: ClientKey,
    pub(crate) class: BufferClass,
}

#[derive(Debug)]
struct Ledger {
    /// Maximum bytes; without a limit nothing is rejected.
    limit: usize,
    clients: Book,
    handshakes: Book,
    by_class: [ClassUse; BufferClass::ALL.len()],
}

#[derive(Debug, Default)]
struct Book {
    held: HashMap<ClientKey, usize, BuildHasherDefault<KeyItself>>,
    total: usize,
}

/// The use of one class.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct ClassUse {
    pub(crate) bytes: usize,
    /// How often a client had its share.
    pub(crate) rejections: u64,
}

thread_local! {
    static LEDGER: RefCell<Ledger> = RefCell::new(Ledger {
        limit: usize::MAX,
        clients: Book::default(),
        handshakes: Book::default(),
        by_class: Default::default(),
    });
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

impl Ledger {
    fn book(&mut self, class: BufferClass) -> (&mut Book, usize) {
        let for_handshakes = self.limit / HANDSHAKE_PART;
        match class {
            BufferClass::Handshake => (&mut self.handshakes, for_handshakes),
            BufferClass::Request
            | BufferClass::Response
            | BufferClass::Tls
            | BufferClass::Upload => (&mut self.clients, self.limit - for_handshakes),
        }
    }

    /// Whether a client may hold `more` bytes; counted if not.
    fn permits(&mut self, holder: Holder, more: usize) -> bool {
        let (book, limit) = self.book(holder.class);
        let free = limit.saturating_sub(book.total).saturating_sub(more);
        let held = book.held.get(&holder.client).copied().unwrap_or_default();
        let permits = is_within_share(held.saturating_add(more), free);
        if !permits && let Some(class) = self.by_class.get_mut(holder.class as usize) {
            class.rejections = class.rejections.saturating_add(1);
        }
        permits
    }

    fn change(&mut self, holder: Holder, before: usize, bytes: usize) {
        let change = |sum: usize| sum.saturating_sub(before).saturating_add(bytes);
        let (book, _) = self.book(holder.class);
        book.total = change(book.total);
        let held = book.held.entry(holder.client).or_default();
        *held = change(*held);
        if *held == 0 {
            book.held.remove(&holder.client);
        }
        if let Some(class) = self.by_class.get_mut(holder.class as usize) {
            class.bytes = change(class.bytes);
        }
    }
}

/// Bytes that a client holds, until this is dropped.
#[derive(Debug, Default)]
pub(crate) struct Held {
    /// `None`: not counted.
    holder: Option<Holder>,
    bytes: usize,
}

impl Held {
    /// No bytes yet.
    pub(crate) fn of(holder: Holder) -> Self {
        Self { holder: Some(holder), bytes: 0 }
    }

    /// Holds `bytes` instead of those before. Returns whether the share of the client permits it;
    /// otherwise nothing changes.
    #[must_use]
    pub(crate) fn resize(&mut self, bytes: usize) -> bool {
        let more = bytes.saturating_sub(self.bytes);
        let Some(holder) = self.holder.filter(|_| bytes != self.bytes) else { return true };
        if more > 0 && !LEDGER.with_borrow_mut(|ledger| ledger.permits(holder, more)) {
            return false;
        }
        self.set(bytes);
        true
    }

    /// Holds `bytes` regardless of the share.
    fn set(&mut self, bytes: usize) {
        if let Some(holder) = self.holder.filter(|_| bytes != self.bytes) {
            // Fails while the thread ends, when nobody looks at the ledger any more.
            let _ = LEDGER.try_with(|it| it.borrow_mut().change(holder, self.bytes, bytes));
            self.bytes = bytes;
        }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.set(0);
    }
}

impl Holder {
    /// Whether the client is within its share; counted if not.
    pub(crate) fn has_share(self) -> bool {
        LEDGER.with_borrow_mut(|ledger| ledger.permits(self, 0))
    }

    /// The same bytes, held by the client until the last part of them is dropped. The charge of the
    /// request covers [`MIN_READ`] bytes of a body that are `uncounted`: a piece that exceeds them
    /// counts for those before it as well, which leave earlier.
    pub(crate) fn hold(self, data: Bytes, uncounted: &mut usize) -> Bytes {
        *uncounted = uncounted.saturating_add(data.len());
        if *uncounted <= MIN_READ {
            return data;
        }
        let mut held = Held::of(self);
        held.set(std::mem::take(uncounted));
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
mod tests {
    use std::net::{IpAddr, Ipv4Addr};

    use super::*;

    const NONE: IpAddr = IpAddr::V4(Ipv4Addr::UNSPECIFIED);

    fn holder(client: u8, class: BufferClass) -> Holder {
        Holder { client: ClientKey::new(Some(&[client]), NONE), class }
    }

    fn bytes_of(class: BufferClass) -> usize {
        usage()[class as usize].bytes
    }

    #[test]
    fn one_client_leaves_a_quarter_and_handshakes_have_a_budget_of_their_own() {
        set_limit(4 << 20);
        let take = |client, class| {
            let mut holding: Vec<_> = (0..1000).map(|_| Held::of(holder(client, class))).collect();
            holding.retain_mut(|held| held.resize(16 << 10));
            holding
        };
        let greedy = take(1, BufferClass::Request);
        assert_eq!(greedy.len(), 144, "three quarters of 3 MiB");
        let further =
            holder(1, BufferClass::Response).hold(vec![7; 10_000].into(), &mut MIN_READ.clone());
        assert!(!holder(1, BufferClass::Response).has_share());
        assert!(holder(2, BufferClass::Response).has_share());
        assert_eq!(usage()[BufferClass::Response as usize].rejections, 1);
        drop(further);
        assert_eq!(take(1, BufferClass::Handshake).len(), 48, "three quarters of 1 MiB");
        assert_eq!(bytes_of(BufferClass::Handshake), 0);
        assert_eq!(max_read(), MIN_READ);
        drop(greedy);
        assert_eq!((bytes_of(BufferClass::Request), max_read()), (0, usize::MAX));
        assert!(LEDGER.with_borrow(|it| it.clients.held.is_empty()));
    }

    #[test]
    fn a_piece_is_held_until_its_last_part_is_dropped() {
        let of_response = holder(1, BufferClass::Response);
        let mut uncounted = MIN_READ - 100;
        let covered = of_response.hold(vec![7; 100].into(), &mut uncounted);
        assert_eq!(bytes_of(BufferClass::Response), 0);
        let small = of_response.hold(vec![7; 100].into(), &mut uncounted);
        assert_eq!((bytes_of(BufferClass::Response), uncounted), (MIN_READ + 100, 0));
        drop((covered, small));
        let piece = of_response.hold(vec![7; 10_000].into(), &mut MIN_READ.clone());
        let mut rest = piece.slice(..);
        let part = rest.split_to(1);
        drop((piece, rest));
        assert_eq!(bytes_of(BufferClass::Response), MIN_READ + 10_000);
        assert_eq!(part, [7][..]);
        drop(part);
        assert_eq!(bytes_of(BufferClass::Response), 0);
    }

    #[test]
    fn without_a_limit_nothing_is_rejected() {
        let mut held = Held::of(holder(1, BufferClass::Tls));
        assert!(held.resize(1 << 40) && holder(1, BufferClass::Tls).has_share());
        assert!(Held::default().resize(1 << 40));
    }
}

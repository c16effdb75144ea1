//! The books of a ledger: who holds how much, and who waits.

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap};
use std::hash::BuildHasherDefault;
use std::ops::Bound;
use std::task::Waker;

use super::{BufferClass, ClassUse, Holder};
use crate::permit::ClientKey;
use crate::permit::client_shares::{KeyItself, is_within_share};

/// One of this many bytes of the limit is for handshakes.
const HANDSHAKE_PART: usize = 4;

#[derive(Debug)]
pub(super) struct Ledger {
    /// Maximum bytes; without a limit nothing is rejected.
    pub(super) limit: usize,
    pub(super) clients: Book,
    pub(super) handshakes: Book,
    pub(super) by_class: [ClassUse; BufferClass::ALL.len()],
    /// The number of places so far.
    pub(super) places: u64,
}

#[derive(Debug, Default)]
pub(super) struct Book {
    pub(super) held: HashMap<ClientKey, usize, BuildHasherDefault<KeyItself>>,
    pub(super) total: usize,
    /// By client, then by age. The limits of requests and connections bound the number.
    pub(super) waiting: BTreeMap<Place, Waiter>,
}

/// A client, and the number of a task that waits.
pub(super) type Place = (ClientKey, u64);

/// A task that waits for a share, or before the proof for the rest of a message.
#[derive(Debug)]
pub(super) struct Waiter {
    pub(super) waker: Waker,
    /// The bytes of a message before the proof. An eviction gives them back.
    pub(super) bytes: usize,
}

impl Default for Ledger {
    fn default() -> Self {
        Self {
            limit: usize::MAX,
            clients: Book::default(),
            handshakes: Book::default(),
            by_class: Default::default(),
            places: 0,
        }
    }
}

impl Ledger {
    pub(super) fn book(&mut self, class: BufferClass) -> (&mut Book, usize) {
        let for_handshakes = self.limit / HANDSHAKE_PART;
        match class {
            BufferClass::Handshake => (&mut self.handshakes, for_handshakes),
            BufferClass::Request
            | BufferClass::Response
            | BufferClass::Tls
            | BufferClass::Upload => (&mut self.clients, self.limit - for_handshakes),
        }
    }

    pub(super) fn permits(&mut self, holder: Holder, more: usize) -> bool {
        let (book, limit) = self.book(holder.class);
        book.permits(holder.client, more, limit)
    }

    /// Counts that a client had its share.
    pub(super) fn record_rejection(&mut self, class: BufferClass) {
        if let Some(class) = self.by_class.get_mut(class as usize) {
            class.rejections = class.rejections.saturating_add(1);
        }
    }

    /// Returns the waker of the next task if bytes are given back.
    pub(super) fn change(&mut self, holder: Holder, before: usize, bytes: usize) -> Option<Waker> {
        let change = |sum: usize| sum.saturating_sub(before).saturating_add(bytes);
        let (book, _) = self.book(holder.class);
        book.total = change(book.total);
        match book.held.entry(holder.client) {
            Entry::Occupied(held) if change(*held.get()) == 0 => {
                held.remove();
            }
            Entry::Occupied(mut held) => *held.get_mut() = change(*held.get()),
            Entry::Vacant(place) => {
                place.insert(change(0));
            }
        }
        if let Some(class) = self.by_class.get_mut(holder.class as usize) {
            class.bytes = change(class.bytes);
        }
        if bytes < before { self.next_waker() } else { None }
    }

    /// Removes the first task that waits and whose client is within its share.
    pub(super) fn next_waker(&mut self) -> Option<Waker> {
        let (book, limit) = self.book(BufferClass::Response);
        let mut from = Bound::Unbounded;
        loop {
            let (place, _) = book.waiting.range((from, Bound::Unbounded)).next()?;
            let place = *place;
            if book.permits(place.0, 0, limit) {
                return book.waiting.remove(&place).map(|waiter| waiter.waker);
            }
            from = Bound::Excluded((place.0, u64::MAX)); // the next client
        }
    }

    pub(super) fn wait(&mut self, holder: Holder, place: &mut u64, waker: &Waker, bytes: usize) {
        if *place == 0 {
            self.places = self.places.saturating_add(1);
            *place = self.places;
        }
        let waiter = Waiter { waker: waker.clone(), bytes };
        self.book(holder.class).0.waiting.insert((holder.client, *place), waiter);
    }

    /// Makes room for `more` bytes before the proof: the address that holds most loses its oldest
    /// handshakes, as long as it holds more than the address of `holder` would. Returns whether there
    /// is room, and the wakers of the tasks to wake.
    pub(super) fn evict(&mut self, holder: Holder, more: usize) -> (bool, Vec<Waker>) {
        let mut wakers = Vec::new();
        while !self.permits(holder, more) {
            let (book, _) = self.book(holder.class);
            let own = book.held.get(&holder.client).copied().unwrap_or_default();
            let largest = book.held.iter().max_by_key(|(_, held)| **held);
            let largest = largest.filter(|(_, held)| **held > own.saturating_add(more));
            let places = largest.map(|(client, _)| (*client, 0)..=(*client, u64::MAX));
            let oldest =
                places.and_then(|it| book.waiting.range(it).next()).map(|(place, _)| *place);
            let Some(place) = oldest else {
                self.record_rejection(holder.class);
                return (false, wakers);
            };
            if let Some(Waiter { waker, bytes }) = book.waiting.remove(&place) {
                let next = self.change(Holder { client: place.0, ..holder }, bytes, 0);
                self.record_rejection(holder.class);
                wakers.extend([waker].into_iter().chain(next));
            }
        }
        (true, wakers)
    }
}

impl Book {
    /// Whether a client may hold `more` bytes of `limit`.
    pub(super) fn permits(&self, client: ClientKey, more: usize, limit: usize) -> bool {
        let total = self.total.saturating_add(more);
        let free = limit.saturating_sub(total);
        // A client holds no more than all of them. While there is much free, this is enough.
        is_within_share(total, free) || {
            let held = self.held.get(&client).copied().unwrap_or_default();
            is_within_share(held.saturating_add(more), free)
        }
    }
}

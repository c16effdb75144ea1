//! The window of an HTTP/2 connection to a server (RFC 9113, section 5.2), of which each client has
//! a share. A server that does not read an upload returns none of the window that it took.

use std::cell::RefCell;
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use crate::permit::ClientKey;

/// Initial window of a connection, in bytes (section 6.9.2).
const INITIAL_WINDOW: u64 = 65_535;
/// Multiple of the free window that one client may hold.
const SHARE: u64 = 3;
/// Part of a large window that is enough for others, 1 MiB. nginx returns nothing of its 2 GiB before
/// three quarters are taken.
const RESERVE: u64 = 1 << 20;

/// The window of a connection.
#[derive(Debug)]
pub(crate) struct SendWindow(RefCell<WindowState>);

#[derive(Debug)]
struct WindowState {
    /// Bytes that may be sent.
    free: u64,
    /// The largest value of `free`.
    size: u64,
    /// Bytes that each client has sent on open streams and that the server has not returned.
    held: HashMap<ClientKey, u64>,
    /// The client of each upload, and its part of `held`.
    uploads: HashMap<u32, (ClientKey, u64)>,
    waiting: Vec<Waker>,
}

impl Default for SendWindow {
    fn default() -> Self {
        let (free, size) = (INITIAL_WINDOW, INITIAL_WINDOW);
        let (held, uploads, waiting) = Default::default();
        Self(RefCell::new(WindowState { free, size, held, uploads, waiting }))
    }
}

impl SendWindow {
    /// Whether a client may send a quarter of the window. An upload goes over another connection
    /// otherwise.
    pub(crate) fn has_room(&self, client: ClientKey) -> bool {
        let state = self.0.borrow();
        state.room(client) >= (state.size / 4).min(RESERVE / 4)
    }

    /// Records a WINDOW_UPDATE of the server; stream 0 is the connection.
    pub(crate) fn record_update(&self, stream: u32, increment: u32) {
        let (mut state, increment) = (self.0.borrow_mut(), u64::from(increment));
        if stream == 0 {
            state.free = state.free.saturating_add(increment);
            state.size = state.size.max(state.free);
        } else {
            state.give_back(stream, increment);
        }
        state.waiting.drain(..).for_each(Waker::wake);
    }
}

impl WindowState {
    /// Bytes that a client may send: it then holds three times the rest at most, or leaves
    /// [`RESERVE`]. A server need not return the window of a complete upload by stream, so nobody
    /// holds more than is taken.
    fn room(&self, client: ClientKey) -> u64 {
        let held = self.held.get(&client).copied().unwrap_or_default();
        let held = held.min(self.size.saturating_sub(self.free));
        let share = self.free.saturating_mul(SHARE).saturating_sub(held) / (SHARE + 1);
        share.max(self.free.saturating_sub(RESERVE))
    }

    fn give_back(&mut self, stream: u32, count: u64) {
        let Some((client, held)) = self.uploads.get_mut(&stream) else { return };
        let count = count.min(*held);
        *held -= count;
        if let Entry::Occupied(mut of_client) = self.held.entry(*client) {
            *of_client.get_mut() = of_client.get().saturating_sub(count);
            if *of_client.get() == 0 {
                of_client.remove();
            }
        }
    }
}

/// The share of one upload. The window that it holds is returned with its stream, when this is
/// dropped.
#[derive(Debug)]
pub(crate) struct WindowShare {
    window: Rc<SendWindow>,
    client: ClientKey,
    stream: u32,
}

impl WindowShare {
    pub(crate) fn new(window: &Rc<SendWindow>, client: ClientKey, stream: u32) -> Rc<Self> {
        window.0.borrow_mut().uploads.insert(stream, (client, 0));
        Rc::new(Self { window: Rc::clone(window), client, stream })
    }

    /// Bytes that may be sent now, at least one.
    pub(crate) fn poll_room(&self, context: &Context<'_>) -> Poll<usize> {
        let mut state = self.window.0.borrow_mut();
        match state.room(self.client) {
            0 => {
                if !state.waiting.iter().any(|waiting| waiting.will_wake(context.waker())) {
                    state.waiting.push(context.waker().clone());
                }
                Poll::Pending
            }
            room => Poll::Ready(usize::try_from(room).unwrap_or(usize::MAX)),
        }
    }

    /// Records bytes that are sent.
    pub(crate) fn record_sent(&self, count: usize) {
        let (mut state, count) = (self.window.0.borrow_mut(), count as u64);
        state.free = state.free.saturating_sub(count);
        if let Some((_, held)) = state.uploads.get_mut(&self.stream) {
            *held = held.saturating_add(count);
        }
        let held = state.held.entry(self.client).or_default();
        *held = held.saturating_add(count);
    }
}

impl Drop for WindowShare {
    fn drop(&mut self) {
        let mut state = self.window.0.borrow_mut();
        state.give_back(self.stream, u64::MAX);
        state.uploads.remove(&self.stream);
        if state.uploads.is_empty() {
            // h2 discards what a reset stream had queued, without a WINDOW_UPDATE.
            state.free = state.size;
        }
        state.waiting.drain(..).for_each(Waker::wake);
    }
}

#[cfg(test)]
mod tests {
    use std::net::{IpAddr, Ipv4Addr};

    use super::*;

    fn room(share: &WindowShare) -> usize {
        match share.poll_room(&Context::from_waker(Waker::noop())) {
            Poll::Ready(room) => room,
            Poll::Pending => 0,
        }
    }

    #[test]
    fn one_client_holds_three_quarters_of_the_window_at_most() {
        let client = |last| ClientKey::new(None, IpAddr::V4(Ipv4Addr::new(192, 0, 2, last)));
        let window = Rc::<SendWindow>::default();
        let [stalled, more] = [1, 3].map(|stream| WindowShare::new(&window, client(1), stream));
        assert_eq!(room(&stalled), 49_151);
        stalled.record_sent(49_151);
        assert_eq!((room(&stalled), room(&more)), (0, 0));
        assert!(!window.has_room(client(2)), "another connection is better");
        let other = WindowShare::new(&window, client(2), 5);
        assert_eq!(room(&other), 12_288);
        other.record_sent(12_288);
        // The server reads the upload of the other client.
        window.record_update(0, 12_288);
        assert_eq!((room(&stalled), room(&more)), (0, 0));
        window.record_update(5, 12_288);
        assert_eq!(room(&other), 12_288);
        // It reads the first upload to its end, and says so for the connection only.
        window.record_update(0, 49_151);
        assert_eq!(room(&more), 49_151);
        drop((stalled, more, other));
        let state = window.0.borrow();
        assert!(state.held.is_empty() && state.uploads.is_empty());
    }

    #[test]
    fn a_client_may_take_a_large_window_but_a_reserve_and_resets_lose_nothing() {
        let client = |last| ClientKey::new(None, IpAddr::V4(Ipv4Addr::new(192, 0, 2, last)));
        let window = Rc::<SendWindow>::default();
        let size = u32::MAX / 2;
        window.record_update(0, size - 65_535);
        let [upload, other] = [1, 2].map(|it| WindowShare::new(&window, client(it), it.into()));
        let taken = usize::try_from(u64::from(size) - RESERVE).unwrap();
        assert_eq!(room(&upload), taken);
        upload.record_sent(taken);
        assert_eq!(room(&upload), 0);
        assert_eq!(room(&other), (1 << 20) / 4 * 3);
        drop((upload, other));
        assert_eq!(window.0.borrow().free, u64::from(size));
    }
}

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
pub struct SendWindow(RefCell<WindowState>);

#[derive(Debug)]
struct WindowState {
    /// The window: what the server has given, without what was written.
    window: u64,
    /// The largest value of `window`.
    size: u64,
    /// Bytes of open uploads that h2 has not written yet. h2 discards them if it resets a stream.
    queued: u64,
    /// Bytes that each client has queued or sent on open streams and that the server has not
    /// returned.
    held: HashMap<ClientKey, u64>,
    uploads: HashMap<u32, StreamUpload>,
    /// The streams of the uploads with a `waker`.
    waiting: Vec<u32>,
}

/// An upload whose stream is open.
#[derive(Debug)]
struct StreamUpload {
    client: ClientKey,
    /// Its part of the client's bytes in [`WindowState::held`].
    held: u64,
    /// Its part of [`WindowState::queued`].
    queued: u64,
    waker: Option<Waker>,
}

impl Default for SendWindow {
    fn default() -> Self {
        let (window, size, queued) = (INITIAL_WINDOW, INITIAL_WINDOW, 0);
        let (held, uploads, waiting) = Default::default();
        Self(RefCell::new(WindowState { window, size, queued, held, uploads, waiting }))
    }
}

impl SendWindow {
    /// Whether a client may send a quarter of the window. An upload goes over another connection
    /// otherwise.
    pub fn has_room(&self, client: ClientKey) -> bool {
        let state = self.0.borrow();
        state.room(client) >= (state.size / 4).min(RESERVE / 4)
    }

    /// Records a WINDOW_UPDATE of the server; stream 0 is the connection.
    pub fn record_update(&self, stream: u32, increment: u32) {
        let (mut state, increment) = (self.0.borrow_mut(), u64::from(increment));
        if stream == 0 {
            state.window = state.window.saturating_add(increment);
            state.size = state.size.max(state.window);
        } else {
            state.give_back(stream, increment);
        }
        state.wake_all();
    }

    /// Records a DATA frame that h2 has written.
    pub fn record_written(&self, stream: u32, length: u64) {
        let mut state = self.0.borrow_mut();
        state.window = state.window.saturating_sub(length);
        let upload = state.uploads.get_mut(&stream);
        let written = upload.map_or(0, |upload| {
            let written = length.min(upload.queued);
            upload.queued -= written;
            written
        });
        state.queued = state.queued.saturating_sub(written);
    }

    /// Ends an upload whose stream has ended, which returns the window that it holds.
    pub fn end_upload(&self, stream: u32) {
        let mut state = self.0.borrow_mut();
        state.give_back(stream, u64::MAX);
        if let Some(upload) = state.uploads.remove(&stream) {
            state.queued = state.queued.saturating_sub(upload.queued);
        }
        state.wake_all();
    }
}

impl WindowState {
    /// Bytes that may be queued.
    fn free(&self) -> u64 {
        self.window.saturating_sub(self.queued)
    }

    /// Bytes that a client may send: it then holds three times the rest at most, or leaves
    /// [`RESERVE`]. A server need not return the window of a complete upload by stream, so nobody
    /// holds more than is taken.
    fn room(&self, client: ClientKey) -> u64 {
        let held = self.held.get(&client).copied().unwrap_or_default();
        let free = self.free();
        let held = held.min(self.size.saturating_sub(free));
        let share = free.saturating_mul(SHARE).saturating_sub(held) / (SHARE + 1);
        share.max(free.saturating_sub(RESERVE))
    }

    fn give_back(&mut self, stream: u32, count: u64) {
        let Some(upload) = self.uploads.get_mut(&stream) else { return };
        let count = count.min(upload.held);
        upload.held -= count;
        if let Entry::Occupied(mut of_client) = self.held.entry(upload.client) {
            *of_client.get_mut() = of_client.get().saturating_sub(count);
            if *of_client.get() == 0 {
                of_client.remove();
            }
        }
    }

    fn wake_all(&mut self) {
        for stream in self.waiting.drain(..) {
            let waker = self.uploads.get_mut(&stream).and_then(|upload| upload.waker.take());
            waker.into_iter().for_each(Waker::wake);
        }
    }
}

/// The share of one upload, until [`SendWindow::end_upload`].
#[derive(Debug)]
pub struct WindowShare {
    window: Rc<SendWindow>,
    client: ClientKey,
    stream: u32,
}

impl WindowShare {
    /// A share for the upload of `client` on `stream`.
    pub fn new(window: &Rc<SendWindow>, client: ClientKey, stream: u32) -> Self {
        let upload = StreamUpload { client, held: 0, queued: 0, waker: None };
        window.0.borrow_mut().uploads.insert(stream, upload);
        Self { window: Rc::clone(window), client, stream }
    }

    /// Bytes that may be queued now, at least one.
    pub fn poll_room(&self, context: &Context<'_>) -> Poll<usize> {
        let state = &mut *self.window.0.borrow_mut();
        let room = state.room(self.client);
        if room > 0 {
            return Poll::Ready(usize::try_from(room).unwrap_or(usize::MAX));
        }
        if let Some(upload) = state.uploads.get_mut(&self.stream)
            && upload.waker.replace(context.waker().clone()).is_none()
        {
            state.waiting.push(self.stream);
        }
        Poll::Pending
    }

    /// Records bytes that h2 has got.
    pub fn record_queued(&self, count: usize) {
        let (state, count) = (&mut *self.window.0.borrow_mut(), count as u64);
        let Some(upload) = state.uploads.get_mut(&self.stream) else { return };
        upload.queued = upload.queued.saturating_add(count);
        upload.held = upload.held.saturating_add(count);
        state.queued = state.queued.saturating_add(count);
        let held = state.held.entry(self.client).or_default();
        *held = held.saturating_add(count);
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

    /// Queues bytes, which h2 writes.
    fn send(share: &WindowShare, count: usize) {
        share.record_queued(count);
        share.window.record_written(share.stream, count as u64);
    }

    #[test]
    fn one_client_holds_three_quarters_of_the_window_at_most() {
        let client = |last| ClientKey::new(None, IpAddr::V4(Ipv4Addr::new(192, 0, 2, last)));
        let window = Rc::<SendWindow>::default();
        let [stalled, more] = [1, 3].map(|stream| WindowShare::new(&window, client(1), stream));
        assert_eq!(room(&stalled), 49_151);
        send(&stalled, 49_151);
        assert_eq!((room(&stalled), room(&more)), (0, 0));
        assert!(!window.has_room(client(2)), "another connection is better");
        let other = WindowShare::new(&window, client(2), 5);
        assert_eq!(room(&other), 12_288);
        send(&other, 12_288);
        // The server reads the upload of the other client.
        window.record_update(0, 12_288);
        assert_eq!((room(&stalled), room(&more)), (0, 0));
        window.record_update(5, 12_288);
        assert_eq!(room(&other), 12_288);
        // It reads the first upload to its end, and says so for the connection only.
        window.record_update(0, 49_151);
        assert_eq!(room(&more), 49_151);
        [1, 3, 5].into_iter().for_each(|stream| window.end_upload(stream));
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
        send(&upload, taken);
        assert_eq!(room(&upload), 0);
        assert_eq!(room(&other), (1 << 20) / 4 * 3);
        // A reset returns what h2 has not written, and nothing else, while other uploads go on.
        other.record_queued(1000);
        window.record_written(2, 400);
        window.end_upload(2);
        assert_eq!(window.0.borrow().free(), RESERVE - 400);
        window.record_update(0, u32::try_from(taken).unwrap() + 400);
        window.end_upload(1);
        assert_eq!(window.0.borrow().free(), u64::from(size));
    }

    #[test]
    fn an_upload_waits_once_however_often_it_is_polled() {
        let window = Rc::<SendWindow>::default();
        let client = ClientKey::new(None, IpAddr::V4(Ipv4Addr::LOCALHOST));
        let shares = [1, 3].map(|stream| WindowShare::new(&window, client, stream));
        send(&shares[0], 49_151);
        for share in shares.iter().cycle().take(100) {
            assert_eq!(room(share), 0);
        }
        assert_eq!(window.0.borrow().waiting, [1, 3]);
        window.end_upload(1);
        assert!(window.0.borrow().waiting.is_empty());
    }
}

//! The HTTP/2 connections to a server, and the stream slots on them that its requests share.
//!
//! A stream that its client does not read holds its slot. One client therefore gets three quarters
//! of the slots at most ([`ClientShares`]), and a further connection is opened when slots or
//! windows are short.

mod waiting;

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::{Duration, Instant};

use keygate_wire::permit::{ClientKey, ClientShares, ShareGuard};
use tokio::sync::oneshot;

use self::waiting::{QueuePlace, WaitQueue};
use super::error::UpstreamError;
use super::http2::{ConnectionId, Http2Connection};
use super::isolation::Isolation;

/// Maximum number of connections to a server for its requests, in one worker.
const MAX_CONNECTIONS: usize = 4;
/// Maximum number of requests that wait for a slot. One client has three quarters of the places.
const MAX_WAITING: usize = 4096;
/// Time after a failure to open a further connection during which no other attempt is made.
const BACK_OFF: Duration = Duration::from_secs(1);

/// The connections to a server for one purpose.
#[derive(Debug)]
pub(crate) struct Http2Pool {
    purpose: PoolPurpose,
    /// The only client, if the pool is of an isolated one.
    pub(super) owner: Option<ClientKey>,
    connections: RefCell<Vec<Http2Connection>>,
    shares: ClientShares,
    waiting: RefCell<WaitQueue<oneshot::Sender<WaitEnd>>>,
    /// Whether a connection is being opened, for all callers (single flight).
    is_opening: Cell<bool>,
    /// No further connection is opened before this time.
    open_after: Cell<Option<Instant>>,
    isolation: Rc<Isolation>,
    /// Whether a connection has failed under requests, none of which has counted it against the
    /// server. Many requests fail with one connection.
    pub(super) has_failure: Cell<bool>,
}

/// The traffic of the connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PoolPurpose {
    /// Requests, which wait for a free slot if [`MAX_CONNECTIONS`] are open.
    Requests,
    /// Tunnels, which last: none waits for the end of another.
    Tunnels,
}

/// A slot for one of the streams that a server allows. It is held until the response has been read
/// to its end and the request has been sent.
#[derive(Debug)]
pub(crate) struct StreamSlot {
    pub(crate) http2: Http2Connection,
    client: ClientKey,
    pool: Rc<Http2Pool>,
    share: Option<ShareGuard>,
}

/// A request that waits for a slot. It leaves the queue when this is dropped.
#[derive(Debug)]
struct QueuedRequest<'a> {
    pool: &'a Http2Pool,
    place: QueuePlace,
    end: oneshot::Receiver<WaitEnd>,
}

impl Drop for QueuedRequest<'_> {
    fn drop(&mut self) {
        self.pool.waiting.borrow_mut().remove(self.place);
    }
}

/// The end of a wait.
#[derive(Debug)]
enum WaitEnd {
    Failed(UpstreamError),
    /// The request may have to open a connection.
    Retry,
    Served(StreamSlot),
}

impl Http2Pool {
    pub(crate) fn new(
        purpose: PoolPurpose,
        owner: Option<ClientKey>,
        isolation: &Rc<Isolation>,
    ) -> Rc<Self> {
        Rc::new(Self {
            purpose,
            owner,
            has_failure: Cell::new(false),
            connections: RefCell::default(),
            shares: ClientShares::default(),
            waiting: RefCell::default(),
            is_opening: Cell::new(false),
            open_after: Cell::new(None),
            isolation: Rc::clone(isolation),
        })
    }

    /// Waits for a slot. Calls `open` if a connection must be opened, whose outcome goes to
    /// [`Self::end_opening`]. Cancel-safe.
    ///
    /// # Errors
    /// Returns an error if no connection can be opened, if the server ends the new one before a
    /// request, or if too many requests wait.
    pub(crate) async fn acquire(
        self: &Rc<Self>,
        client: ClientKey,
        has_upload: bool,
        open: impl Fn(),
    ) -> Result<StreamSlot, UpstreamError> {
        let mut has_waited = false;
        if has_upload && self.is_short_of_window(client) && self.may_open() {
            self.is_opening.set(true);
            open(); // for the next uploads: this one goes on as its share permits
        }
        loop {
            let mut slot = match self.take(client, has_upload) {
                Some(slot) => slot,
                None => {
                    has_waited = true;
                    match (&mut self.wait(client, &open)?.end).await {
                        Ok(WaitEnd::Served(slot)) => slot,
                        Ok(WaitEnd::Retry) => continue,
                        Ok(WaitEnd::Failed(error)) => return Err(error),
                        Err(_) => return Err(UpstreamError::CONNECTION_LIMIT), // the pool is gone
                    }
                }
            };
            if slot.http2.accepts_requests().await {
                return Ok(slot);
            }
            // A connection that was idle in the pool may have ended by a timeout of the server. A
            // new one that ends would be opened again and again.
            if has_waited && !slot.http2.is_used() {
                self.connections.borrow_mut().retain(|other| other.id() != slot.http2.id());
                if self.fail_opening(&UpstreamError::ENDED_UNUSED) {
                    return Err(UpstreamError::ENDED_UNUSED);
                }
            }
            self.remove(slot.http2.id());
        }
    }

    fn wait(&self, client: ClientKey, open: impl Fn()) -> Result<QueuedRequest<'_>, UpstreamError> {
        let mut waiting = self.waiting.borrow_mut();
        let left = MAX_WAITING.saturating_sub(waiting.len());
        if waiting.count_of(client) >= left.saturating_mul(3) {
            return Err(UpstreamError::CONNECTION_LIMIT);
        }
        let (sender, end) = oneshot::channel();
        let place = waiting.push(client, sender);
        drop(waiting);
        let waiting = QueuedRequest { pool: self, place, end };
        if self.may_open() {
            self.is_opening.set(true);
            open();
        }
        Ok(waiting)
    }

    /// Takes a free slot; `None` if there is none, or if the client has its share.
    fn take(self: &Rc<Self>, client: ClientKey, has_upload: bool) -> Option<StreamSlot> {
        let connections = self.connections.borrow();
        let share = self.shares.take(client, free_streams(&connections))?;
        // The first one with a free slot, so that later ones become idle and close.
        let free = || connections.iter().filter(|http2| http2.free_streams() > 0);
        let roomy = free().find(|http2| !has_upload || http2.has_room(client));
        let http2 = roomy.or_else(|| free().next())?.clone();
        http2.begin_stream();
        Some(StreamSlot { http2, client, pool: Rc::clone(self), share: Some(share) })
    }

    fn is_short_of_window(&self, client: ClientKey) -> bool {
        let connections = self.connections.borrow();
        !connections.is_empty() && !connections.iter().any(|http2| http2.has_room(client))
    }

    fn may_open(&self) -> bool {
        let count = self.connections.borrow().len();
        let has_backed_off =
            || self.open_after.get().is_none_or(|open_after| Instant::now() >= open_after);
        !self.is_opening.get()
            && match self.purpose {
                PoolPurpose::Requests => {
                    count == 0 || (count < MAX_CONNECTIONS && has_backed_off())
                }
                PoolPurpose::Tunnels => true,
            }
    }

    /// Ends the opening of a connection. If it has failed, all requests that wait get the error,
    /// unless they can wait for a slot of another connection.
    pub(crate) fn end_opening(self: &Rc<Self>, outcome: Result<Http2Connection, UpstreamError>) {
        self.is_opening.set(false);
        match outcome {
            Ok(http2) if self.purpose == PoolPurpose::Tunnels && http2.free_streams() == 0 => {
                self.wake_all(|| WaitEnd::Failed(UpstreamError::CONNECTION_LIMIT));
            }
            Ok(http2) => {
                self.add(http2);
                if self.purpose == PoolPurpose::Tunnels {
                    self.wake_all(|| WaitEnd::Retry);
                }
            }
            Err(error) => {
                self.fail_opening(&error);
            }
        }
    }

    /// Backs off from opening connections. All requests that wait get the error, unless they can
    /// wait for a slot of another connection, or for one that is being opened. Returns whether they
    /// cannot.
    fn fail_opening(&self, error: &UpstreamError) -> bool {
        self.open_after.set(Some(Instant::now() + BACK_OFF));
        let has_other =
            self.purpose == PoolPurpose::Requests && !self.connections.borrow().is_empty();
        let is_final = !has_other && !self.is_opening.get();
        if is_final {
            self.wake_all(|| WaitEnd::Failed(error.clone()));
        }
        is_final
    }

    /// Adds a connection, unless there are enough.
    pub(crate) fn add(self: &Rc<Self>, http2: Http2Connection) {
        let mut connections = self.connections.borrow_mut();
        if self.purpose == PoolPurpose::Tunnels || connections.len() < MAX_CONNECTIONS {
            connections.push(http2);
        }
        drop(connections);
        self.update();
    }

    /// Removes a connection, so that it gets no further requests. It closes with its last one.
    pub(crate) fn remove(self: &Rc<Self>, http2: ConnectionId) {
        self.connections.borrow_mut().retain(|other| other.id() != http2);
        self.update();
    }

    /// Removes a connection that has failed under a request.
    pub(crate) fn remove_failed(self: &Rc<Self>, http2: ConnectionId) {
        let mut connections = self.connections.borrow_mut();
        let failed = connections.iter_mut().find(|other| other.id() == http2);
        failed.into_iter().for_each(|failed| self.record_fault(failed));
        drop(connections);
        self.remove(http2);
    }

    /// Records the client whose request may have ended a connection. The end of a shared connection
    /// with one request says nothing.
    fn record_fault(&self, http2: &mut Http2Connection) {
        self.has_failure.set(true);
        if let Some((client, has_others)) = http2.suspect()
            && (has_others || self.owner.is_some())
        {
            self.isolation.record_fault(client, self.owner.is_some());
        }
    }

    /// Follows a change of the connections: drops those that have ended, and serves requests that
    /// wait.
    pub(crate) fn update(self: &Rc<Self>) {
        let mut has_ended_unused = false;
        self.connections.borrow_mut().retain_mut(|http2| {
            has_ended_unused |= http2.is_closed() && !http2.is_used();
            if http2.is_closed() && http2.has_streams() {
                self.record_fault(http2);
            }
            !http2.is_closed()
        });
        if has_ended_unused && !self.waiting.borrow().is_empty() {
            self.fail_opening(&UpstreamError::ENDED_UNUSED);
        }
        self.serve_waiting();
    }

    /// Gives free slots to requests that wait, or has one of them open a connection.
    fn serve_waiting(self: &Rc<Self>) {
        while let Some((waiter, slot)) = self.next_served() {
            let _ = waiter.send(WaitEnd::Served(slot)); // a cancelled one returns the slot
        }
        if !self.waiting.borrow().is_empty()
            && self.may_open()
            && let Some(waiter) = self.next_waiter()
        {
            let _ = waiter.send(WaitEnd::Retry); // if it is cancelled, the next tick repeats
        }
    }

    /// The first waiting request that may take a free slot, and its slot.
    ///
    /// A client without a free share holds three slots at least, so that at most a third of the
    /// slots in use are clients to pass over.
    fn next_served(self: &Rc<Self>) -> Option<(oneshot::Sender<WaitEnd>, StreamSlot)> {
        let free = free_streams(&self.connections.borrow());
        if free == 0 {
            return None;
        }
        let may_take = |client| self.shares.may_take(client, free);
        let (client, waiter) = self.waiting.borrow_mut().take_first(may_take)?;
        let slot = self.take(client, true)?;
        Some((waiter, slot))
    }

    fn next_waiter(&self) -> Option<oneshot::Sender<WaitEnd>> {
        self.waiting.borrow_mut().take_first(|_| true).map(|(_, waiter)| waiter)
    }

    fn wake_all(&self, end: impl Fn() -> WaitEnd) {
        while let Some(waiter) = self.next_waiter() {
            let _ = waiter.send(end()); // a request that was cancelled needs none
        }
    }

    /// Removes connections that are closed, older than `max_age`, or unused for `max_idle`.
    pub(crate) fn drop_stale(self: &Rc<Self>, max_idle: Duration, max_age: Option<Duration>) {
        self.connections.borrow_mut().retain(|http2| {
            http2.idle_time() < max_idle && max_age.is_none_or(|max_age| http2.age() < max_age)
        });
        self.update();
    }
}

fn free_streams(connections: &[Http2Connection]) -> usize {
    connections.iter().map(Http2Connection::free_streams).fold(0, usize::saturating_add)
}

impl StreamSlot {
    /// Removes the connection from its pool, because a request on it has failed.
    pub(crate) fn remove_connection(&self) {
        self.pool.remove_failed(self.http2.id());
    }

    /// Whether the failure of this response counts: many responses fail with one connection.
    pub(super) fn takes_failure(&self) -> bool {
        !self.http2.is_closed() || self.pool.has_failure.take()
    }
}

impl AsMut<Http2Connection> for StreamSlot {
    fn as_mut(&mut self) -> &mut Http2Connection {
        &mut self.http2
    }
}

impl AsRef<Http2Connection> for StreamSlot {
    fn as_ref(&self) -> &Http2Connection {
        &self.http2
    }
}

impl Drop for StreamSlot {
    fn drop(&mut self) {
        if self.http2.is_reset() && self.pool.owner.is_none() {
            self.pool.isolation.record_reset(self.client);
        }
        self.http2.end_stream();
        self.share = None; // before the slot goes to the next request
        self.pool.serve_waiting();
    }
}

#[cfg(test)]
impl Http2Pool {
    /// Makes the next requests wait, as if a connection was being opened.
    pub(crate) fn begin_opening(&self) {
        self.is_opening.set(true);
    }
}

#[cfg(test)]
mod tests;

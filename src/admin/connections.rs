//! The open admin connections: bounded in number and in time.
//!
//! A peer that does not read its responses must not keep probes and scrapes away. If all places are
//! taken, a new connection evicts the oldest one of the peer that has most.

use std::cell::{Cell, RefCell};
use std::net::IpAddr;
use std::rc::Rc;
use std::time::Duration;

use tokio::sync::Notify;
use tokio::task::AbortHandle;
use tokio::time::{Instant, timeout_at};

/// Maximum open admin connections.
pub(super) const MAX_CONNECTIONS: usize = 64;
/// Minimum time that a connection has before it may be evicted, 1 s. A probe takes less.
const MIN_AGE: Duration = Duration::from_secs(1);

/// The open connections.
#[derive(Debug, Default)]
pub(super) struct Connections {
    entries: RefCell<Vec<AdminConnection>>,
    next_id: Cell<u64>,
    /// Notified when a connection closes.
    closed: Notify,
}

#[derive(Debug)]
struct AdminConnection {
    id: u64,
    /// The network of the peer, as [`network_of`](crate::permit::network_of) gives it; `None` for a
    /// Unix socket.
    peer: Option<IpAddr>,
    opened: Instant,
    /// `None` until the task of the connection runs.
    task: Option<AbortHandle>,
}

/// The place of one connection, until it is dropped.
#[derive(Debug)]
pub(super) struct ConnectionPermit {
    all: Rc<Connections>,
    id: u64,
}

impl Connections {
    /// Takes a permit for a connection of `peer`. If none is free, evicts a connection, or waits
    /// until one is old enough.
    pub(super) async fn enter(self: &Rc<Self>, peer: Option<IpAddr>) -> ConnectionPermit {
        while self.entries.borrow().len() >= MAX_CONNECTIONS {
            if !self.evict(Instant::now()) {
                let oldest = self.entries.borrow().iter().map(|entry| entry.opened).min();
                let wait_until = oldest.unwrap_or_else(Instant::now) + MIN_AGE;
                let _ = timeout_at(wait_until, self.closed.notified()).await; // either way, look again
            }
        }
        let id = self.next_id.get();
        self.next_id.set(id.wrapping_add(1));
        let entry = AdminConnection { id, peer, opened: Instant::now(), task: None };
        self.entries.borrow_mut().push(entry);
        ConnectionPermit { all: Rc::clone(self), id }
    }

    /// Makes a connection evictable.
    pub(super) fn set_task(&self, id: u64, task: AbortHandle) {
        let mut entries = self.entries.borrow_mut();
        if let Some(entry) = entries.iter_mut().find(|entry| entry.id == id) {
            entry.task = Some(task);
        }
    }

    /// Closes the oldest connection of the peer that has most, among those older than [`MIN_AGE`].
    fn evict(&self, now: Instant) -> bool {
        let mut entries = self.entries.borrow_mut();
        let count = |peer| entries.iter().filter(|entry| entry.peer == peer).count();
        let is_old = |entry: &AdminConnection| now.duration_since(entry.opened) >= MIN_AGE;
        // Entries are in the order of their age, and `max_by_key` returns the last maximum.
        let candidates = entries.iter().enumerate().rev().filter(|(_, entry)| is_old(entry));
        let Some((position, _)) = candidates.max_by_key(|(_, entry)| count(entry.peer)) else {
            return false;
        };
        if let Some(task) = entries.remove(position).task {
            task.abort();
        }
        true
    }
}

impl ConnectionPermit {
    pub(super) fn id(&self) -> u64 {
        self.id
    }
}

impl Drop for ConnectionPermit {
    fn drop(&mut self) {
        self.all.entries.borrow_mut().retain(|entry| entry.id != self.id);
        self.all.closed.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn the_oldest_connection_of_the_peer_with_most_is_evicted() {
        let connections = Rc::new(Connections::default());
        let [many, one] = [1, 2].map(|last| Some(IpAddr::from(Ipv4Addr::new(10, 0, 0, last))));
        let first = connections.enter(one).await;
        let mut places = Vec::new();
        for _ in 1..MAX_CONNECTIONS {
            places.push(connections.enter(many).await);
        }
        let began = Instant::now();
        let newest = connections.enter(one).await;
        assert!(began.elapsed() >= MIN_AGE, "a young connection was evicted");
        let ids: Vec<u64> = connections.entries.borrow().iter().map(|entry| entry.id).collect();
        assert_eq!(ids.len(), MAX_CONNECTIONS);
        assert!(ids.contains(&first.id()) && ids.contains(&newest.id()));
        assert!(!ids.contains(&places[0].id()) && ids.contains(&places[1].id()));
        drop(places);
        let began = Instant::now();
        drop(connections.enter(many).await);
        assert_eq!(began.elapsed(), Duration::ZERO);
    }
}

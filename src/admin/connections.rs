//! The open admin connections: bounded in number and in time.
//!
//! A peer that does not read its responses must not keep probes and scrapes away. Each peer has a
//! share of the places: less than three times the free ones. A connection beyond it evicts the
//! oldest one of its peer, because the new one may be a probe. Accepting never waits for a place.

use std::cell::{Cell, RefCell};
use std::net::IpAddr;
use std::rc::Rc;

use tokio::task::AbortHandle;

/// Maximum open admin connections.
pub(super) const MAX_CONNECTIONS: usize = 64;
/// Multiple of the free places that one peer may hold.
const SHARE: usize = 3;

/// The open connections.
#[derive(Debug, Default)]
pub(super) struct Connections {
    entries: RefCell<Vec<AdminConnection>>,
    next_id: Cell<u64>,
}

#[derive(Debug)]
struct AdminConnection {
    id: u64,
    /// The network of the peer, as [`network_of`](crate::permit::network_of) gives it; `None` for a
    /// Unix socket.
    peer: Option<IpAddr>,
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
    /// Takes a permit for a connection of `peer`. Evicts another one if the peer has its share.
    pub(super) fn enter(self: &Rc<Self>, peer: Option<IpAddr>) -> ConnectionPermit {
        let free = MAX_CONNECTIONS.saturating_sub(self.entries.borrow().len());
        let held = self.count(peer);
        if held >= free.saturating_mul(SHARE) {
            self.evict((held > 0).then_some(peer));
        }
        let id = self.next_id.get();
        self.next_id.set(id.wrapping_add(1));
        self.entries.borrow_mut().push(AdminConnection { id, peer, task: None });
        ConnectionPermit { all: Rc::clone(self), id }
    }

    fn count(&self, peer: Option<IpAddr>) -> usize {
        self.entries.borrow().iter().filter(|entry| entry.peer == peer).count()
    }

    /// Makes a connection evictable.
    pub(super) fn set_task(&self, id: u64, task: AbortHandle) {
        let mut entries = self.entries.borrow_mut();
        if let Some(entry) = entries.iter_mut().find(|entry| entry.id == id) {
            entry.task = Some(task);
        }
    }

    /// Closes the oldest connection of `peer`; if `None`, of the peer that has most.
    fn evict(&self, peer: Option<Option<IpAddr>>) {
        let peers: Vec<_> = self.entries.borrow().iter().map(|entry| entry.peer).collect();
        let Some(peer) = peer.or(peers.iter().copied().max_by_key(|peer| self.count(*peer))) else {
            return;
        };
        // Entries are in the order of their age.
        let Some(oldest) = peers.iter().position(|other| *other == peer) else { return };
        if let Some(task) = self.entries.borrow_mut().remove(oldest).task {
            task.abort();
        }
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
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    #[test]
    fn a_peer_has_a_share_and_its_oldest_connection_is_evicted() {
        let connections = Rc::new(Connections::default());
        let peer = |last| Some(IpAddr::from(Ipv4Addr::new(10, 0, 0, last)));
        let [many, one] = [1, 2].map(peer);
        let share = MAX_CONNECTIONS * SHARE / (SHARE + 1);
        let first = connections.enter(one);
        let places: Vec<_> = (0..MAX_CONNECTIONS).map(|_| connections.enter(many)).collect();
        assert!(connections.count(many) <= share && connections.count(many) > share - SHARE);
        let newest = connections.enter(many);
        let ids: Vec<u64> = connections.entries.borrow().iter().map(|entry| entry.id).collect();
        assert!(ids.contains(&first.id()) && ids.contains(&newest.id()));
        assert!(!ids.contains(&places[0].id()));
        // Peers with one connection each take all places. The peer that has most gives way.
        let others: Vec<_> = (3..=30).map(|it| connections.enter(peer(it))).collect();
        assert_eq!(connections.entries.borrow().len(), MAX_CONNECTIONS);
        assert!((3..=30).all(|it| connections.count(peer(it)) == 1));
        drop((places, others));
        assert_eq!(connections.entries.borrow().len(), 2);
    }
}

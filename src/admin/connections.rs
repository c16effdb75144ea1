//! The open admin connections: bounded in number and in time.
//!
//! A peer that does not read its responses must not keep probes and scrapes away. Each peer has a
//! share of the places: less than three times the free ones. A connection beyond it evicts the
//! oldest one of its peer that runs no command, because the new one may be a probe. Accepting never
//! waits for a place.

use std::cell::{Cell, RefCell};
use std::net::IpAddr;
use std::rc::Rc;

use keygate_wire::permit::may_take_one;
use tokio::task::AbortHandle;

/// Maximum open admin connections.
pub(super) const MAX_CONNECTIONS: usize = 64;

/// The open connections.
#[derive(Debug, Default)]
pub(super) struct Connections {
    entries: RefCell<Vec<AdminConnection>>,
    next_id: Cell<u64>,
}

#[derive(Debug)]
struct AdminConnection {
    id: u64,
    /// The network of the peer, as [`network_of`](keygate_wire::permit::network_of) gives it; `None` for a
    /// Unix socket.
    peer: Option<IpAddr>,
    /// `None` until the task of the connection runs.
    task: Option<AbortHandle>,
    is_commanding: Rc<Cell<bool>>,
}

/// The place of one connection, until it is dropped.
#[derive(Debug)]
pub(super) struct ConnectionPermit {
    all: Rc<Connections>,
    pub(super) id: u64,
    /// Whether the connection runs a command.
    pub(super) is_commanding: Rc<Cell<bool>>,
}

impl Connections {
    /// Takes a permit for a connection of `peer`. Evicts another one if the peer has its share;
    /// `None` if all of them run commands.
    pub(super) fn enter(self: &Rc<Self>, peer: Option<IpAddr>) -> Option<ConnectionPermit> {
        let free = MAX_CONNECTIONS.saturating_sub(self.entries.borrow().len());
        let held = self.count(peer);
        if !may_take_one(held, free) && !self.evict((held > 0).then_some(peer)) {
            return None;
        }
        let (id, is_commanding) = (self.next_id.get(), Rc::default());
        self.next_id.set(id.wrapping_add(1));
        self.entries.borrow_mut().push(AdminConnection {
            id,
            peer,
            task: None,
            is_commanding: Rc::clone(&is_commanding),
        });
        Some(ConnectionPermit { all: Rc::clone(self), id, is_commanding })
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

    /// Closes the oldest connection of `peer` that runs no command; if `None`, of the peer that has
    /// most. Returns whether there was one.
    fn evict(&self, peer: Option<Option<IpAddr>>) -> bool {
        // Entries are in the order of their age.
        let may_close = |entry: &&AdminConnection| !entry.is_commanding.get();
        let evictable: Vec<_> =
            self.entries.borrow().iter().filter(may_close).map(|it| (it.id, it.peer)).collect();
        let largest = evictable.iter().map(|(_, peer)| *peer).max_by_key(|it| self.count(*it));
        let peer = peer.or(largest);
        let oldest = evictable.into_iter().find(|(_, other)| Some(*other) == peer);
        let Some((id, _)) = oldest else { return false };
        self.entries.borrow_mut().retain_mut(|entry| {
            entry.task.take_if(|_| entry.id == id).inspect(AbortHandle::abort);
            entry.id != id
        });
        true
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
        let share = MAX_CONNECTIONS * 3 / 4;
        let first = connections.enter(one).unwrap();
        let places: Vec<_> = (0..MAX_CONNECTIONS).filter_map(|_| connections.enter(many)).collect();
        assert!(connections.count(many) <= share && connections.count(many) > share - 3);
        let newest = connections.enter(many).unwrap();
        let ids: Vec<u64> = connections.entries.borrow().iter().map(|entry| entry.id).collect();
        assert!(ids.contains(&first.id) && ids.contains(&newest.id));
        assert!(!ids.contains(&places[0].id));
        // Peers with one connection each take all places. The peer that has most gives way.
        let others: Vec<_> = (3..=30).filter_map(|it| connections.enter(peer(it))).collect();
        assert_eq!(connections.entries.borrow().len(), MAX_CONNECTIONS);
        assert!((3..=30).all(|it| connections.count(peer(it)) == 1));
        drop((places, others));
        assert_eq!(connections.entries.borrow().len(), 2);
    }

    #[test]
    fn a_connection_that_runs_a_command_is_not_evicted() {
        let connections = Rc::new(Connections::default());
        let command = connections.enter(None).unwrap();
        command.is_commanding.set(true);
        let places: Vec<_> = (0..MAX_CONNECTIONS).filter_map(|_| connections.enter(None)).collect();
        let has = |id| connections.entries.borrow().iter().any(|entry| entry.id == id);
        assert!(has(command.id) && !has(places[0].id));
        places.iter().for_each(|place| place.is_commanding.set(true));
        assert!(connections.enter(None).is_none());
    }
}

//! How many connections each address has open, over all workers. Looked at once for each connection;
//! the locks are many and held for a moment.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

const SHARDS: usize = 64;

/// Open connections by the address of the client.
#[derive(Debug)]
pub(super) struct Peers {
    shards: Vec<Mutex<HashMap<IpAddr, usize>>>,
    hasher: RandomState,
}

/// A connection counts as long as this lives.
#[derive(Debug)]
pub(super) struct Present {
    peers: Arc<Peers>,
    address: IpAddr,
    /// How many connections the address had, with this one, when it was made.
    pub(super) count: usize,
}

impl Peers {
    pub(super) fn new() -> Arc<Self> {
        let shards = std::iter::repeat_with(Mutex::default).take(SHARDS).collect();
        Arc::new(Self { shards, hasher: RandomState::new() })
    }

    /// Counts a connection from an address.
    pub(super) fn enter(self: &Arc<Self>, address: IpAddr) -> Present {
        let address = address.to_canonical();
        let mut shard = self.shard(&address);
        let count = shard.entry(address).or_default();
        *count += 1;
        Present { peers: Arc::clone(self), address, count: *count }
    }

    #[expect(clippy::indexing_slicing, reason = "there are so many shards")]
    #[expect(clippy::cast_possible_truncation, reason = "any bits of a hash do")]
    fn shard(&self, address: &IpAddr) -> MutexGuard<'_, HashMap<IpAddr, usize>> {
        let index = self.hasher.hash_one(address) as usize % SHARDS;
        self.shards[index].lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Present {
    fn drop(&mut self) {
        let mut shard = self.peers.shard(&self.address);
        if let Some(count) = shard.get_mut(&self.address) {
            *count = count.saturating_sub(1);
            if *count == 0 {
                shard.remove(&self.address);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_count_while_they_are_open_and_addresses_are_forgotten() {
        let peers = Peers::new();
        let [one, mapped, other] =
            ["192.0.2.1", "::ffff:192.0.2.1", "192.0.2.2"].map(|it| it.parse().unwrap());
        let first = peers.enter(one);
        let second = peers.enter(mapped);
        assert_eq!((first.count, second.count, peers.enter(other).count), (1, 2, 1));
        drop(first);
        assert_eq!(peers.enter(one).count, 2);
        drop(second);
        assert!(peers.shards.iter().all(|shard| shard.lock().unwrap().is_empty()));
    }
}

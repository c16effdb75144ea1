//! Open connections for each client network, over all workers: an IPv4 address, or the /64 of an
//! IPv6 address, because one host may use all addresses of a /64.
//!
//! Each connection locks one of many shards twice: when it begins and when it ends.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

const SHARDS: usize = 64;

/// Open connections by the address of the client.
#[derive(Debug)]
pub struct PerIpCounts {
    shards: Vec<Mutex<HashMap<IpAddr, usize>>>,
    hasher: RandomState,
}

/// Counts one connection of an address while it lives.
#[derive(Debug)]
pub struct PerIpGuard {
    counts: Arc<PerIpCounts>,
    address: IpAddr,
    /// Open connections of the address when this one was counted, itself included.
    pub count: usize,
}

impl PerIpCounts {
    /// Counts of no connection.
    pub fn new() -> Arc<Self> {
        let shards = std::iter::repeat_with(Mutex::default).take(SHARDS).collect();
        Arc::new(Self { shards, hasher: RandomState::new() })
    }

    /// Counts a connection from the network of `address`. An IPv4-mapped address counts as IPv4.
    pub fn enter(self: &Arc<Self>, address: IpAddr) -> PerIpGuard {
        let address = network_of(address);
        let mut shard = self.shard(&address);
        let count = shard.entry(address).or_default();
        *count += 1;
        PerIpGuard { counts: Arc::clone(self), address, count: *count }
    }

    #[expect(clippy::indexing_slicing, reason = "the index is below the number of shards")]
    #[expect(clippy::cast_possible_truncation, reason = "any bits of the hash will do")]
    fn shard(&self, address: &IpAddr) -> MutexGuard<'_, HashMap<IpAddr, usize>> {
        let index = self.hasher.hash_one(address) as usize % SHARDS;
        self.shards[index].lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The network that counts as one client: an IPv4 address, or the /64 of an IPv6 address. An
/// IPv4-mapped address is its IPv4 address.
pub fn network_of(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V4(address) => address.into(),
        IpAddr::V6(address) => Ipv6Addr::from_bits(address.to_bits() >> 64 << 64).into(),
    }
}

impl Drop for PerIpGuard {
    fn drop(&mut self) {
        let mut shard = self.counts.shard(&self.address);
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
    fn connections_count_while_they_are_open_and_unused_addresses_are_dropped() {
        let counts = PerIpCounts::new();
        let [one, mapped, other] =
            ["192.0.2.1", "::ffff:192.0.2.1", "192.0.2.2"].map(|it| it.parse().unwrap());
        let first = counts.enter(one);
        let second = counts.enter(mapped);
        assert_eq!((first.count, second.count, counts.enter(other).count), (1, 2, 1));
        drop(first);
        assert_eq!(counts.enter(one).count, 2);
        drop(second);
        assert!(counts.shards.iter().all(|shard| shard.lock().unwrap().is_empty()));
    }

    #[test]
    fn the_addresses_of_one_ipv6_network_count_as_one_client() {
        let counts = PerIpCounts::new();
        let [one, neighbour, other] = ["2001:db8::1", "2001:db8::ffff:2", "2001:db8:0:1::1"]
            .map(|address| address.parse().unwrap());
        let _first = counts.enter(one);
        assert_eq!((counts.enter(neighbour).count, counts.enter(other).count), (2, 1));
    }
}

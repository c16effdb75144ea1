//! Open connections for each client network, over all workers: an IPv4 address, or the /64 of an
//! IPv6 address, because one host may use all addresses of a /64.
//!
//! Each connection locks them twice: when it begins and when it ends.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Open connections by the address of the client.
#[derive(Debug, Default)]
pub struct PerIpCounts(Mutex<HashMap<IpAddr, usize>>);

/// Counts one connection of an address while it lives.
#[derive(Debug)]
pub struct PerIpGuard {
    counts: Arc<PerIpCounts>,
    address: IpAddr,
    /// Open connections of the address when this one was counted, itself included.
    pub count: usize,
}

impl PerIpCounts {
    /// Counts a connection from the network of `address`. An IPv4-mapped address counts as IPv4.
    pub fn enter(self: &Arc<Self>, address: IpAddr) -> PerIpGuard {
        let address = network_of(address);
        let mut counts = self.lock();
        let count = counts.entry(address).or_default();
        *count += 1;
        PerIpGuard { counts: Arc::clone(self), address, count: *count }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<IpAddr, usize>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
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
        let mut counts = self.counts.lock();
        if let Some(count) = counts.get_mut(&self.address) {
            *count = count.saturating_sub(1);
            if *count == 0 {
                counts.remove(&self.address);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_count_while_they_are_open_and_unused_addresses_are_dropped() {
        let counts = Arc::<PerIpCounts>::default();
        let [one, mapped, other] =
            ["192.0.2.1", "::ffff:192.0.2.1", "192.0.2.2"].map(|it| it.parse().unwrap());
        let first = counts.enter(one);
        let second = counts.enter(mapped);
        assert_eq!((first.count, second.count, counts.enter(other).count), (1, 2, 1));
        drop(first);
        assert_eq!(counts.enter(one).count, 2);
        drop(second);
        assert!(counts.lock().is_empty());
    }

    #[test]
    fn the_addresses_of_one_ipv6_network_count_as_one_client() {
        let counts = Arc::<PerIpCounts>::default();
        let [one, neighbour, other] = ["2001:db8::1", "2001:db8::ffff:2", "2001:db8:0:1::1"]
            .map(|address| address.parse().unwrap());
        let _first = counts.enter(one);
        assert_eq!((counts.enter(neighbour).count, counts.enter(other).count), (2, 1));
    }
}

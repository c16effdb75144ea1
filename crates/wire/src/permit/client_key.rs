//! The client that a share belongs to.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::net::{IpAddr, Ipv6Addr};
use std::sync::LazyLock;

use super::network_of;

/// A client: its public key, or its network if it has none. Behind a load balancer, many clients
/// have one address.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ClientKey(u64);

impl ClientKey {
    /// The client with this public key, or without one at `address`.
    pub fn new(key: Option<&[u8]>, address: IpAddr) -> Self {
        // The key of the hash is secret, so that no client can choose the key of another one.
        static HASHER: LazyLock<RandomState> = LazyLock::new(RandomState::new);
        Self(match key {
            Some(key) => HASHER.hash_one(key),
            None => HASHER.hash_one(network_of(address)),
        })
    }

    /// A client that has not proved a key: its IPv4 address, or its /48 of IPv6. One customer may
    /// have all of a /48 (RFC 6177).
    pub fn before_proof(address: IpAddr) -> Self {
        Self::new(
            None,
            match address.to_canonical() {
                IpAddr::V4(address) => address.into(),
                IpAddr::V6(address) => Ipv6Addr::from_bits(address.to_bits() >> 80 << 80).into(),
            },
        )
    }

    /// The place of the client in a table of this size, which is not 0.
    pub fn place(self, size: usize) -> usize {
        usize::try_from(self.0).unwrap_or_default().checked_rem(size).unwrap_or_default()
    }
}

/// Hashes a [`ClientKey`], which is a secret hash already, as itself.
#[derive(Debug, Default)]
pub(super) struct IdentityHasher(u64);

impl Hasher for IdentityHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        self.0 = bytes.iter().fold(self.0, |hash, byte| hash << 8 | u64::from(*byte));
    }

    fn write_u64(&mut self, key: u64) {
        self.0 = key;
    }
}

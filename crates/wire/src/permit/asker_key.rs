//! The identity by which the connections of an asker are counted and log lines about it limited.

use std::net::IpAddr;

use super::network_of;

/// An asker: a network over TCP, or a user of a Unix socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum AskerKey {
    /// An IPv4 address, or the /64 of an IPv6 address.
    Network(IpAddr),
    /// The user id; `None` if the kernel has none.
    User(Option<u32>),
}

impl AskerKey {
    /// The network of a peer over TCP.
    pub fn from_address(address: IpAddr) -> Self {
        Self::Network(network_of(address))
    }
}

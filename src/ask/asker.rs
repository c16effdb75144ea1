//! The peer that asks: who it is, and whether it may ask.

use std::fmt;
use std::net::SocketAddr;

use tokio::net::UnixStream;

use crate::config::AuthorizerConfig;

/// The peer of a connection to an authorizer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum AskingPeer {
    /// A peer over TCP.
    Tcp(SocketAddr),
    /// The user id of a process, as the kernel tells it; `None` if it cannot.
    Unix(Option<u32>),
}

impl AskingPeer {
    pub(super) fn of_tcp(peer: SocketAddr) -> Self {
        Self::Tcp(peer)
    }

    pub(super) fn of_unix(stream: &UnixStream) -> Self {
        Self::Unix(stream.peer_cred().ok().map(|credentials| credentials.uid()))
    }

    /// Whether `config` permits this peer to ask.
    pub(super) fn is_permitted(&self, config: &AuthorizerConfig) -> bool {
        match self {
            Self::Tcp(peer) => config.askers.permits_address(peer.ip()),
            Self::Unix(Some(uid)) => config.askers.permits_uid(*uid),
            Self::Unix(None) => config.askers.uids.is_empty(),
        }
    }
}

impl fmt::Display for AskingPeer {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(peer) => peer.ip().to_canonical().fmt(formatter),
            Self::Unix(Some(uid)) => write!(formatter, "uid {uid}"),
            Self::Unix(None) => formatter.write_str("unix"),
        }
    }
}

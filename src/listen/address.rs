//! One address in the configuration: the state that its sockets share, and its limits.

use std::future::poll_fn;
use std::net::IpAddr;
use std::pin::pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use keygate_wire::permit::{Permit, ResizableSemaphore, UnprovenConnections};
use tokio::time::timeout;
use tracing::warn;

use super::{SocketFile, SocketOwner};
use crate::config::{AuthorizerLimits, Config, LimitsConfig, ListenAddress};

/// Maximum time for the TLS handshake of an asker, 10 s.
const ASKER_HANDSHAKE: Duration = Duration::from_secs(10);
/// Minimum time without an acknowledgement from an asker after which its connection is aborted,
/// 5 s.
const MIN_UNACKNOWLEDGED: Duration = Duration::from_secs(5);

/// Time that an evicted connection has to return its permit before another one is evicted, 100 ms.
const EVICTION: Duration = Duration::from_millis(100);

/// The state that all sockets of one address share.
#[derive(Debug)]
pub(super) struct Address {
    /// The address in the configuration, by which services are found.
    pub(super) configured: ListenAddress,
    /// The bound address: its port is the real one if the configuration has port 0.
    pub(super) local: ListenAddress,
    /// The file of a Unix socket that this process has bound. Removed with the last socket.
    pub(super) file: Option<SocketFile>,
    timeouts: Mutex<Timeouts>,
    /// One permit for each open connection.
    pub(super) permits: ResizableSemaphore,
    /// The connections that are evicted while no permit is free.
    pub(super) unproven: Arc<UnprovenConnections>,
}

/// The limits of one address, from all services that share it.
#[derive(Debug, Clone, Copy)]
pub(super) struct AddressLimits {
    /// Maximum number of open connections: the sum over the services.
    pub(super) max_connections: usize,
    pub(super) timeouts: Timeouts,
}

/// The longest timeouts of the services on one address. SNI chooses the service only after the
/// handshake has begun.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Timeouts {
    pub(super) handshake: Duration,
    /// Maximum time without an acknowledgement from a client. The connection is aborted then.
    pub(super) unacknowledged: Duration,
}

impl AddressLimits {
    pub(super) fn new(config: &Config, address: &ListenAddress) -> Self {
        let mut authorizers = config.authorizers.iter();
        if let Some(authorizer) = authorizers.find(|it| it.listen == *address) {
            return Self::from_authorizer(&authorizer.limits);
        }
        let services = config.services.iter();
        let services = services.filter(|it| ListenAddress::Tcp(it.listen) == *address);
        let limits = services.map(|service| &service.limits);
        let connections = limits.clone().map(|limits| limits.max_connections);
        let handshake = limits.clone().map(|limits| limits.handshake_timeout);
        let unacknowledged = limits.map(LimitsConfig::unacknowledged_timeout);
        Self {
            max_connections: connections.fold(0, usize::saturating_add),
            timeouts: Timeouts {
                handshake: handshake.max().unwrap_or_default(),
                unacknowledged: unacknowledged.max().unwrap_or_default(),
            },
        }
    }

    /// The limits of an authorizer, which has its address for itself.
    fn from_authorizer(limits: &AuthorizerLimits) -> Self {
        let unacknowledged = limits.idle_timeout.max(MIN_UNACKNOWLEDGED);
        // One asker may have `max_connections`, and must leave some to others.
        let of_others = (limits.max_connections / 4).max(1);
        Self {
            max_connections: limits.max_connections.saturating_add(of_others),
            timeouts: Timeouts { handshake: ASKER_HANDSHAKE, unacknowledged },
        }
    }
}

impl Address {
    pub(super) fn new(
        configured: ListenAddress,
        local: ListenAddress,
        limits: AddressLimits,
        file: Option<SocketFile>,
    ) -> Self {
        Self {
            configured,
            local,
            file,
            timeouts: Mutex::new(limits.timeouts),
            permits: ResizableSemaphore::new(limits.max_connections),
            unproven: Arc::default(),
        }
    }

    pub(super) fn set_limits(&self, limits: AddressLimits) {
        *self.timeouts.lock().unwrap_or_else(PoisonError::into_inner) = limits.timeouts;
        self.permits.set_limit(limits.max_connections);
    }

    pub(super) fn set_owner(&self, owner: &SocketOwner) {
        if let Some(Err(error)) = self.file.as_ref().map(|file| file.set_owner(owner)) {
            let address = &self.local;
            warn!(%address, %error, "mode and group of the socket cannot be changed");
        }
    }

    /// Waits for a permit for a connection from `peer`, and evicts others if none is free. Returns
    /// the number of evicted ones as well; `None` if the address is closed. Behind a trusted proxy,
    /// `peer` is the proxy, because its PROXY header is read later.
    pub(super) async fn permit(&self, peer: IpAddr) -> Option<(Permit, usize)> {
        let mut acquire = pin!(self.permits.acquire());
        let mut evicted = 0;
        loop {
            let mut may_evict = true;
            let permit = poll_fn(|context| {
                let permit = acquire.as_mut().poll(context);
                // Above a lowered limit, an eviction returns no permit.
                let may_evict = std::mem::take(&mut may_evict) && !self.permits.is_over_limit();
                if permit.is_pending() && may_evict {
                    evicted += usize::from(self.unproven.evict(peer));
                }
                permit
            });
            if let Ok(permit) = timeout(EVICTION, permit).await {
                return Some((permit.ok()?, evicted));
            }
        }
    }

    pub(super) fn timeouts(&self) -> Timeouts {
        *self.timeouts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

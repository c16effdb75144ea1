//! The open connections of each address, for the status.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use keygate_wire::permit::ResizableSemaphore;

use super::Address;
use crate::config::ListenAddress;

/// The open connections of all addresses. Clones share them.
#[derive(Debug, Clone, Default)]
pub struct AddressLoads(Arc<Mutex<BTreeMap<ListenAddress, ResizableSemaphore>>>);

/// The open connections of one address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AddressLoad {
    /// The address in the configuration.
    pub address: ListenAddress,
    /// Number of open connections, those in their handshake included.
    pub open: usize,
    /// Maximum number of open connections.
    pub max: usize,
}

impl AddressLoads {
    /// Replaces the addresses.
    pub(super) fn set<'a>(&self, addresses: impl Iterator<Item = &'a Arc<Address>>) {
        let permits = addresses.map(|it| (it.configured.clone(), it.permits.clone())).collect();
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = permits;
    }

    /// The load of each address now.
    pub(crate) fn all(&self) -> Vec<AddressLoad> {
        let permits = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let loads = permits.iter().map(|(address, permits)| AddressLoad {
            address: address.clone(),
            open: permits.in_use(),
            max: permits.limit(),
        });
        loads.collect()
    }
}

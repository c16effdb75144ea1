//! The addresses that the workers listen on, as configurations replace one another.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::mpsc;
use tracing::info;

use super::bind::{BindError, bind_listener, configured_addresses, resolved_owner};
use super::{Address, AddressLimits, AddressLoads, ListenSocket, Listener, SocketOwner};
use crate::config::{Config, ListenAddress};
use crate::process::inherited_sockets::InheritedSockets;

/// A change of the sockets that one worker accepts on.
#[derive(Debug)]
pub(crate) enum ListenChange {
    Add(ListenSocket),
    Remove(ListenAddress),
}

/// The addresses in use, and the workers that accept on them.
#[derive(Debug)]
pub struct Addresses {
    known: HashMap<ListenAddress, Arc<Address>>,
    workers: Vec<mpsc::UnboundedSender<ListenChange>>,
    loads: AddressLoads,
    /// Kept open, because a later configuration may name an address again.
    inherited: InheritedSockets,
}

impl Addresses {
    pub(crate) fn new(
        listeners: &[Listener],
        workers: Vec<mpsc::UnboundedSender<ListenChange>>,
        inherited: InheritedSockets,
    ) -> Self {
        let known = listeners.iter().map(|listener| &listener.address);
        let known: HashMap<_, _> =
            known.map(|it| (it.configured.clone(), Arc::clone(it))).collect();
        let loads = AddressLoads::default();
        loads.set(known.values());
        Self { known, workers, loads, inherited }
    }

    /// The open connections of each address.
    pub(crate) fn loads(&self) -> AddressLoads {
        self.loads.clone()
    }

    /// Binds the addresses that `config` adds. The returned function makes the workers accept there
    /// and stop accepting on addresses that are no longer configured.
    ///
    /// # Errors
    /// Returns an error if an address cannot be bound; nothing has changed then.
    pub fn prepare(
        this: &Arc<Mutex<Self>>,
        config: &Config,
    ) -> Result<impl FnOnce() + Send + use<>, BindError> {
        let addresses = Arc::clone(this);
        let locked = this.lock().unwrap_or_else(PoisonError::into_inner);
        let configured: BTreeSet<ListenAddress> = configured_addresses(config);
        let added = configured.iter().filter(|address| !locked.known.contains_key(*address));
        let workers = locked.workers.len();
        let added = added
            .map(|address| bind_listener(config, workers, address, &locked.inherited))
            .collect::<Result<Vec<_>, _>>()?;
        let has_file = |address: &ListenAddress| {
            locked.known.get(address).is_some_and(|known| known.file.is_some())
        };
        let owners = configured.iter().filter(|address| has_file(address));
        let owners = owners
            .map(|address| Ok((address.clone(), resolved_owner(config, address)?)))
            .collect::<Result<Vec<_>, _>>()?;
        drop(locked);
        let limits =
            configured.iter().map(|address| (address.clone(), AddressLimits::new(config, address)));
        let limits: Vec<_> = limits.collect();
        Ok(move || {
            let mut addresses = addresses.lock().unwrap_or_else(PoisonError::into_inner);
            addresses.commit(added, &limits);
            addresses.set_owners(&owners);
        })
    }

    /// Forgets all addresses. The file of a Unix socket is removed when no worker accepts on it any
    /// more.
    pub(crate) fn close(&mut self) {
        self.known.clear();
        self.loads.set(self.known.values());
    }

    /// Applies mode and group of Unix sockets that were bound before.
    fn set_owners(&self, owners: &[(ListenAddress, SocketOwner)]) {
        for (address, owner) in owners {
            if let Some(known) = self.known.get(address) {
                known.set_owner(owner);
            }
        }
    }

    fn commit(&mut self, added: Vec<Listener>, limits: &[(ListenAddress, AddressLimits)]) {
        let is_configured =
            |address: &ListenAddress| limits.iter().any(|(configured, _)| configured == address);
        let closed = self.known.keys().filter(|address| !is_configured(address));
        for address in closed.cloned().collect::<Vec<_>>() {
            info!(%address, "no longer listening");
            self.known.remove(&address);
            for worker in &self.workers {
                let _ = worker.send(ListenChange::Remove(address.clone())); // fails if the worker has ended
            }
        }
        for (address, limits) in limits {
            if let Some(known) = self.known.get(address) {
                known.set_limits(*limits);
            }
        }
        for listener in added {
            let address = Arc::clone(&listener.address);
            info!(address = %address.local, "listening");
            self.known.insert(address.configured.clone(), address);
            for (worker, socket) in self.workers.iter().zip(listener.into_sockets()) {
                let _ = worker.send(ListenChange::Add(socket)); // fails if the worker has ended
            }
        }
        self.loads.set(self.known.values());
    }
}

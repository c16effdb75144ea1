//! Limits for what clients hold: permits under a limit that may change, shares of each client,
//! buffered bytes, and connections before the proof of a key.

mod asker_key;
mod client_key;
mod client_shares;
mod holdings;
pub mod ledger;
mod per_ip;
mod resizable;
mod unproven;

use std::cell::Cell;
use std::rc::Rc;

pub use self::asker_key::AskerKey;
pub use self::client_key::ClientKey;
pub use self::client_shares::{ClientShares, ShareGuard, may_take_one};
pub use self::ledger::BufferClass;
pub use self::per_ip::{PerIpCounts, PerIpGuard, network_of};
pub use self::resizable::{Permit, ResizableSemaphore};
pub use self::unproven::{Place, Unproven, UnprovenConnections};

/// A count that one thread shares.
#[derive(Debug, Clone, Default)]
pub struct Count(Rc<Cell<usize>>);

/// Adds one to a [`Count`] while it lives.
#[derive(Debug)]
pub struct CountGuard(Count);

impl Count {
    /// The number of guards that are alive.
    pub fn get(&self) -> usize {
        self.0.get()
    }

    /// Counts one more, until the guard is dropped.
    pub fn enter(&self) -> CountGuard {
        self.0.set(self.0.get().saturating_add(1));
        CountGuard(self.clone())
    }
}

impl Drop for CountGuard {
    fn drop(&mut self) {
        let count = &self.0.0;
        count.set(count.get().saturating_sub(1));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_guard_counts_until_it_is_dropped() {
        let count = Count::default();
        let (first, second) = (count.enter(), count.enter());
        assert_eq!(count.get(), 2);
        drop(first);
        assert_eq!(count.get(), 1);
        drop(second);
        assert_eq!(count.get(), 0);
    }
}

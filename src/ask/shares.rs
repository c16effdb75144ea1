//! The connections of each asker, over all workers.
//!
//! An asker may hold `max_connections`. The address permits a quarter more, so one asker never
//! fills it.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::future::ready;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::timeout;

use crate::permit::{AskerKey, Permit, ResizableSemaphore, Unproven};
use crate::snapshot::Authorizer;

/// Maximum time that a connection above the share of its asker waits, 150 ms. Hosts wait longer for
/// an answer: Envoy 200 ms for each attempt with the shipped files, nginx 2 s.
const QUEUE_TIME: Duration = Duration::from_millis(150);

/// The connections of each asker.
#[derive(Debug, Clone, Default)]
pub(crate) struct AskerShares(Arc<Mutex<HashMap<ShareKey, Share>>>);

/// The id of an authorizer, and one of its askers.
type ShareKey = (usize, AskerKey);

#[derive(Debug)]
struct Share {
    permits: ResizableSemaphore,
    /// The connections that are open or wait.
    connections: usize,
    waiting: WaitingCount,
}

/// The number of connections of an asker that wait because it has its share. Clones share it.
#[derive(Debug, Clone, Default)]
pub(super) struct WaitingCount(Arc<AtomicUsize>);

impl WaitingCount {
    /// Whether an open connection must make room after its next answer. A host keeps idle
    /// connections for its other threads, which may be all that the asker is permitted.
    pub(super) fn is_any(&self) -> bool {
        self.0.load(Ordering::Relaxed) > 0
    }

    fn enter(&self) -> Waiting {
        self.0.fetch_add(1, Ordering::Relaxed);
        Waiting(self.clone())
    }
}

/// A connection that waits.
struct Waiting(WaitingCount);

impl Drop for Waiting {
    fn drop(&mut self) {
        self.0.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// One connection of an asker, until it is dropped.
#[derive(Debug)]
pub(super) struct AskerShare {
    _of_asker: Permit,
    _of_address: Permit,
    _place: Place,
    /// The connections of the asker that wait.
    pub(super) waiting: WaitingCount,
}

/// A connection that is open or waits.
#[derive(Debug)]
struct Place {
    shares: AskerShares,
    key: ShareKey,
}

impl AskerShares {
    /// Counts a connection that has a permit of its address. If the asker has its share, waits for
    /// [`QUEUE_TIME`], without that permit and without the guard, because an eviction would give no
    /// permit back. `None` if no connection was free in time, or if as many wait as may be open.
    pub(super) async fn take(
        &self,
        authorizer: &Authorizer,
        asker: AskerKey,
        of_address: Permit,
        unproven: &mut Option<Unproven>,
    ) -> Option<AskerShare> {
        let max_connections = authorizer.config.limits.max_connections;
        let (place, permits, waiting) = self.enter((authorizer.id, asker), max_connections)?;
        let free = tokio::select! {
            biased;
            permit = permits.acquire() => permit.ok(),
            () = ready(()) => None,
        };
        let (of_asker, of_address) = match free {
            Some(of_asker) => (of_asker, of_address),
            None => {
                let of_addresses = of_address.release();
                let _waiting = waiting.enter();
                *unproven = None;
                let both = async {
                    Some((permits.acquire().await.ok()?, of_addresses.acquire().await.ok()?))
                };
                timeout(QUEUE_TIME, both).await.ok()??
            }
        };
        Some(AskerShare { _of_asker: of_asker, _of_address: of_address, _place: place, waiting })
    }

    fn enter(
        &self,
        key: ShareKey,
        limit: usize,
    ) -> Option<(Place, ResizableSemaphore, WaitingCount)> {
        let mut shares = self.lock();
        let share = shares.entry(key).or_insert_with(|| Share {
            permits: ResizableSemaphore::new(limit),
            connections: 0,
            waiting: WaitingCount::default(),
        });
        if share.permits.limit() != limit {
            share.permits.set_limit(limit); // changed by a reload
        }
        if share.connections >= limit.saturating_mul(2) {
            return None;
        }
        share.connections = share.connections.saturating_add(1);
        let place = Place { shares: self.clone(), key };
        Some((place, share.permits.clone(), share.waiting.clone()))
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<ShareKey, Share>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if let Entry::Occupied(mut share) = self.shares.lock().entry(self.key) {
            let connections = share.get().connections.saturating_sub(1);
            share.get_mut().connections = connections;
            if connections == 0 {
                share.remove();
            }
        }
    }
}

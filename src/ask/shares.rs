//! The connections of each asker, over all workers.
//!
//! An asker may hold `max_connections`. The address permits a quarter more, so one asker never
//! fills it.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::future::ready;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use keygate_wire::permit::{AskerKey, Permit, ResizableSemaphore, Unproven};
use tokio::time::timeout;

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

/// The connections of an asker that wait because it has its share. Clones share the count.
#[derive(Debug, Clone, Default)]
pub(super) struct WaitingCount(Arc<Mutex<Waits>>);

#[derive(Debug, Default)]
struct Waits {
    waiting: usize,
    /// The waiting connections for which no open connection makes room yet.
    without_room: usize,
}

impl WaitingCount {
    /// Whether an open connection must make room after its next answer: one for each that waits. A
    /// host keeps idle connections for its other threads, which may be all that the asker is
    /// permitted.
    pub(super) fn make_room_for_one(&self) -> bool {
        let mut waits = self.lock();
        let fewer = waits.without_room.checked_sub(1);
        fewer.inspect(|fewer| waits.without_room = *fewer).is_some()
    }

    fn enter(&self) -> Waiting {
        let mut waits = self.lock();
        waits.waiting = waits.waiting.saturating_add(1);
        waits.without_room = waits.without_room.saturating_add(1);
        Waiting(self.clone())
    }

    fn lock(&self) -> MutexGuard<'_, Waits> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A connection that waits.
struct Waiting(WaitingCount);

impl Drop for Waiting {
    fn drop(&mut self) {
        let mut waits = self.0.lock();
        waits.waiting = waits.waiting.saturating_sub(1);
        waits.without_room = waits.without_room.min(waits.waiting);
    }
}

/// One connection of an asker, until it is dropped.
#[derive(Debug)]
pub(super) struct AskerShare {
    _of_asker: Permit,
    _of_address: Permit,
    _place: AskerPlace,
    /// The connections of the asker that wait.
    pub(super) waiting: WaitingCount,
}

/// A connection that is open or waits.
#[derive(Debug)]
struct AskerPlace {
    shares: AskerShares,
    key: ShareKey,
}

impl AskerShares {
    /// Counts a connection that has a permit of its address. If the asker has its share, waits for
    /// [`QUEUE_TIME`] without that permit. It is not evicted then, which would give no permit back. `None` if no connection was free in time, or if as many wait as may be open.
    pub(super) async fn take(
        &self,
        key: ShareKey,
        max_connections: usize,
        of_address: Permit,
        mut unproven: Option<&mut Unproven>,
    ) -> Option<AskerShare> {
        let (place, permits, waiting) = self.enter(key, max_connections)?;
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
                unproven.iter_mut().for_each(|it| it.set_evictable(false));
                let both = async {
                    Some((permits.acquire().await.ok()?, of_addresses.acquire().await.ok()?))
                };
                let both = timeout(QUEUE_TIME, both).await.ok()??;
                unproven.into_iter().for_each(|it| it.set_evictable(true));
                both
            }
        };
        Some(AskerShare { _of_asker: of_asker, _of_address: of_address, _place: place, waiting })
    }

    fn enter(
        &self,
        key: ShareKey,
        limit: usize,
    ) -> Option<(AskerPlace, ResizableSemaphore, WaitingCount)> {
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
        let place = AskerPlace { shares: self.clone(), key };
        Some((place, share.permits.clone(), share.waiting.clone()))
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<ShareKey, Share>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for AskerPlace {
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

#[cfg(test)]
mod tests {
    use std::future::pending;
    use std::net::{IpAddr, Ipv4Addr};

    use keygate_wire::permit::UnprovenConnections;
    use tokio::task::{LocalSet, yield_now};

    use super::*;

    #[tokio::test]
    async fn a_connection_that_has_waited_may_be_evicted() {
        let address = IpAddr::V4(Ipv4Addr::LOCALHOST);
        let key = (0, AskerKey::from_address(address));
        let (shares, of_address) = (AskerShares::default(), ResizableSemaphore::new(2));
        let all = Arc::new(UnprovenConnections::default());
        let take = async |unproven| {
            let permit = of_address.acquire().await.unwrap();
            shares.take(key, 1, permit, unproven).await.unwrap()
        };
        let first = take(None).await;
        let (shares, permit) = (shares.clone(), of_address.acquire().await.unwrap());
        let tasks = LocalSet::new();
        tasks
            .run_until(async {
                Arc::clone(&all).spawn(address, true, |mut unproven| async move {
                    let _share = shares.take(key, 1, permit, Some(&mut unproven)).await.unwrap();
                    pending::<()>().await;
                });
                yield_now().await;
                assert!(!all.evict(address), "it waits");
                drop(first);
                yield_now().await;
                assert!(all.evict(address));
            })
            .await;
    }

    #[test]
    fn one_connection_makes_room_for_each_that_waits() {
        let count = WaitingCount::default();
        let (first, second) = (count.enter(), count.enter());
        assert!(count.make_room_for_one());
        drop(first); // by the room of any connection
        assert!(count.make_room_for_one());
        assert!(!count.make_room_for_one(), "one waits, and one makes room");
        drop(second);
        let third = count.enter();
        drop(third);
        assert!(!count.make_room_for_one(), "none waits");
    }
}

//! Connections whose clients have not proved a key. While no permit is free, one of them is evicted
//! for a new connection, by the rule of [`Holdings::evict`].
//!
//! A client that has proved its key may hold a share of the places, by the rule of [`may_take_one`].
//!
//! All workers share the connections of one listening address, because they share its permits. Each
//! connection locks them twice when it begins, twice when its handshake ends, and once at its end.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::task::AbortHandle;

use super::holdings::{Age, Holdings};
use super::{ClientKey, may_take_one};

/// The connections of one listening address without a proof of a key.
#[derive(Debug, Default)]
pub struct UnprovenConnections(Mutex<Tasks>);

#[derive(Debug, Default)]
struct Tasks {
    evictable: Holdings<AbortHandle>,
    others: HashMap<Age, AbortHandle>,
    /// The places of clients that have proved their keys.
    proven: Holdings<()>,
}

/// The place of a connection whose client has proved its key, until it is dropped.
#[derive(Debug)]
pub struct Place {
    all: Arc<UnprovenConnections>,
    client: ClientKey,
}

/// A connection without a proof of a key, until it is dropped.
#[derive(Debug)]
pub struct Unproven {
    all: Arc<UnprovenConnections>,
    client: ClientKey,
    is_evictable: bool,
    age: Age,
}

impl UnprovenConnections {
    /// Spawns the task of a connection from `address`, which may be aborted while it holds the guard
    /// and [is evictable](Unproven::is_evictable).
    pub fn spawn<F: Future<Output = ()> + 'static>(
        self: Arc<Self>,
        address: IpAddr,
        is_evictable: bool,
        task: impl FnOnce(Unproven) -> F,
    ) {
        let client = ClientKey::before_proof(address);
        let age = self.lock().evictable.next_age();
        let task = task(Unproven { all: Arc::clone(&self), client, is_evictable, age });
        let task = tokio::task::spawn_local(task).abort_handle();
        self.lock().insert(client, is_evictable, age, task);
    }

    /// Aborts a connection for a new one from `address`. Returns whether there was one.
    pub fn evict(&self, address: IpAddr) -> bool {
        let evicted = self.lock().evictable.evict(ClientKey::before_proof(address), 1);
        evicted.inspect(|(_, task)| task.abort()).is_some()
    }

    /// Takes one of `limit` places for a client that has proved its key; `None` if it has its share.
    /// Connections without a proof take nothing from the share, because they are evicted.
    pub fn take_place(self: Arc<Self>, client: ClientKey, limit: usize) -> Option<Place> {
        let mut all = self.lock();
        let free = limit.saturating_sub(all.proven.total);
        let may_take = may_take_one(all.proven.size_of(client), free);
        if may_take {
            all.proven.resize(client, 0, 1);
        }
        drop(all);
        may_take.then(|| Place { all: self, client })
    }

    fn lock(&self) -> MutexGuard<'_, Tasks> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Tasks {
    fn insert(&mut self, client: ClientKey, is_evictable: bool, age: Age, task: AbortHandle) {
        if is_evictable {
            self.evictable.insert(client, age, 1, task);
        } else {
            self.others.insert(age, task);
        }
    }

    fn remove(&mut self, client: ClientKey, is_evictable: bool, age: Age) -> Option<AbortHandle> {
        if is_evictable {
            self.evictable.remove(client, age).map(|(_, task)| task)
        } else {
            self.others.remove(&age)
        }
    }
}

impl Unproven {
    /// Whether the connection may be evicted for another one. One of a trusted proxy may not before
    /// its PROXY header, because new ones would evict each other, whatever their clients are.
    pub fn is_evictable(&self) -> bool {
        self.is_evictable
    }

    /// Counts the connection for the address that a PROXY header names, and makes it evictable.
    pub fn set_address(&mut self, address: IpAddr) {
        self.change(ClientKey::before_proof(address), true);
    }

    /// Sets whether the connection may be evicted.
    pub fn set_evictable(&mut self, is_evictable: bool) {
        self.change(self.client, is_evictable);
    }

    fn change(&mut self, client: ClientKey, is_evictable: bool) {
        let mut all = self.all.lock();
        if let Some(task) = all.remove(self.client, self.is_evictable, self.age) {
            all.insert(client, is_evictable, self.age, task);
            (self.client, self.is_evictable) = (client, is_evictable);
        }
    }

    /// Records that the client has proved its key. Returns false if the connection was evicted
    /// before; its task is then aborted after this poll, and must not go on.
    #[must_use]
    pub fn prove(self) -> bool {
        self.leave()
    }

    fn leave(&self) -> bool {
        self.all.lock().remove(self.client, self.is_evictable, self.age).is_some()
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.all.lock().proven.resize(self.client, 1, 0);
    }
}

impl Drop for Unproven {
    fn drop(&mut self) {
        self.leave();
    }
}

#[cfg(test)]
mod tests {
    use std::future::pending;

    use tokio::task::{LocalSet, yield_now};

    use super::*;

    const ADDRESSES: [&str; 4] = ["2001:db8:0:1::", "2001:db8:0:2::", "192.0.2.1", "192.0.2.9"];

    #[tokio::test]
    async fn the_address_with_most_connections_loses_its_oldest_one() {
        let all = Arc::new(UnprovenConnections::default());
        let [many, same, one, late] = ADDRESSES.map(|it| it.parse::<IpAddr>().unwrap());
        let open = || {
            let all = all.lock();
            [one, many, late].map(|it| all.evictable.size_of(ClientKey::before_proof(it)))
        };
        let spawn = |address, then: Option<IpAddr>| {
            Arc::clone(&all).spawn(address, true, move |mut guard| async move {
                then.inspect(|address| guard.set_address(*address));
                pending::<()>().await;
            });
        };
        let tasks = LocalSet::new();
        tasks
            .run_until(async {
                assert!(!all.evict(one), "there is none");
                [one, many, same, many, same].into_iter().for_each(|it| spawn(it, None));
                assert!(all.evict(late) && all.evict(late));
                assert_eq!(open(), [1, 2, 0]);
                assert!(all.evict(same), "its own");
                assert_eq!(open(), [1, 1, 0]);
                assert!(!all.evict(late), "each has one that is young");
                spawn(one, Some(late));
                yield_now().await;
                assert_eq!(open(), [1, 1, 1]);
                assert!(all.evict(late), "its own of equal ones");
                assert_eq!(open(), [1, 1, 0]);
            })
            .await;
        drop(tasks);
        assert!(all.lock().evictable.is_empty());
    }

    #[tokio::test]
    async fn newcomers_behind_a_proxy_do_not_evict_each_other() {
        let all = Arc::new(UnprovenConnections::default());
        let [proxy, _, client, _] = ADDRESSES.map(|it| it.parse::<IpAddr>().unwrap());
        let tasks = LocalSet::new();
        tasks
            .run_until(async {
                Arc::clone(&all).spawn(proxy, false, move |mut guard| async move {
                    guard.set_address(client);
                    guard.set_evictable(false);
                    guard.set_evictable(true);
                    pending::<()>().await;
                });
                assert!(!all.evict(proxy), "its header has not come");
                yield_now().await;
                assert!(!all.evict(proxy), "it is young");
                assert!(all.evict(client), "its own");
            })
            .await;
        drop(tasks);
        let all = all.lock();
        assert!(all.evictable.is_empty() && all.others.is_empty());
    }

    #[tokio::test]
    async fn a_connection_that_is_evicted_while_it_runs_has_no_proof() {
        let all = Arc::new(UnprovenConnections::default());
        let [address, ..] = ADDRESSES.map(|it| it.parse::<IpAddr>().unwrap());
        let (proved, proofs) = std::sync::mpsc::channel();
        let tasks = LocalSet::new();
        for is_evicted in [false, true] {
            let (all, proved) = (Arc::clone(&all), proved.clone());
            let evicting = Arc::clone(&all);
            tasks
                .run_until(async {
                    all.spawn(address, true, move |guard| async move {
                        assert!(!is_evicted || evicting.evict(address));
                        proved.send(guard.prove()).unwrap();
                    });
                    yield_now().await;
                })
                .await;
            assert_eq!(proofs.try_recv(), Ok(!is_evicted));
        }
        assert!(!all.evict(address), "a proof is the end");
    }
}

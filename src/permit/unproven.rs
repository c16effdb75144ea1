//! Connections whose clients have not proved a key: while no permit is free, the address that holds
//! most of them loses its oldest one for a new connection.
//!
//! All workers share the connections of one listening address, because they share its permits. Each
//! connection locks them when it begins and when its handshake ends.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::hash::BuildHasherDefault;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::task::AbortHandle;

use super::ClientKey;
use super::client_shares::KeyItself;

/// The connections of one listening address without a proof of a key.
#[derive(Debug, Default)]
pub(crate) struct UnprovenConnections(Mutex<Queues>);

/// The tasks of one client, by age.
type Queue = BTreeMap<u64, AbortHandle>;

#[derive(Debug, Default)]
struct Queues {
    by_client: HashMap<ClientKey, Queue, BuildHasherDefault<KeyItself>>,
    /// The clients by the number of their connections; of equal ones, the oldest connection last.
    by_size: BTreeSet<(usize, Reverse<u64>, ClientKey)>,
    /// The number of connections so far.
    count: u64,
}

/// A connection without a proof of a key, until it is dropped.
#[derive(Debug)]
pub(crate) struct Unproven {
    all: Arc<UnprovenConnections>,
    client: ClientKey,
    age: u64,
}

impl UnprovenConnections {
    /// Spawns the task of a connection from `address`, which may be aborted as long as it holds the
    /// guard.
    pub(crate) fn spawn<F: Future<Output = ()> + 'static>(
        self: Arc<Self>,
        address: IpAddr,
        task: impl FnOnce(Unproven) -> F,
    ) {
        let client = ClientKey::before_proof(address);
        let age = self.queues().next_age();
        let task = tokio::task::spawn_local(task(Unproven { all: Arc::clone(&self), client, age }));
        self.queues().change(client, |queue| queue.insert(age, task.abort_handle()));
    }

    /// Aborts the oldest connection of the address that holds most, for a new one from `address`,
    /// which loses its own if none holds more. Returns whether there was one.
    pub(crate) fn evict(&self, address: IpAddr) -> bool {
        let task = self.queues().take_oldest(ClientKey::before_proof(address));
        task.inspect(AbortHandle::abort).is_some()
    }

    fn queues(&self) -> MutexGuard<'_, Queues> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Queues {
    fn next_age(&mut self) -> u64 {
        self.count = self.count.saturating_add(1);
        self.count
    }

    fn change<T>(&mut self, client: ClientKey, change: impl FnOnce(&mut Queue) -> T) -> T {
        let queue = self.by_client.entry(client).or_default();
        let rank = |queue: &Queue| {
            let oldest = queue.first_key_value().map(|(age, _)| *age);
            (queue.len(), Reverse(oldest.unwrap_or_default()), client)
        };
        self.by_size.remove(&rank(queue));
        let changed = change(queue);
        if queue.is_empty() {
            self.by_client.remove(&client);
        } else {
            self.by_size.insert(rank(queue));
        }
        changed
    }

    fn take_oldest(&mut self, newcomer: ClientKey) -> Option<AbortHandle> {
        let (size, _, largest) = *self.by_size.last()?;
        let own = self.by_client.get(&newcomer).map_or(0, BTreeMap::len);
        let from = if own < size { largest } else { newcomer };
        self.change(from, BTreeMap::pop_first).map(|(_, task)| task)
    }
}

impl Unproven {
    /// Counts the connection for another address, which a PROXY header names.
    pub(crate) fn set_address(&mut self, address: IpAddr) {
        let mut queues = self.all.queues();
        if let Some(task) = queues.change(self.client, |queue| queue.remove(&self.age)) {
            self.client = ClientKey::before_proof(address);
            queues.change(self.client, |queue| queue.insert(self.age, task));
        }
    }
}

impl Drop for Unproven {
    fn drop(&mut self) {
        self.all.queues().change(self.client, |queue| queue.remove(&self.age));
    }
}

#[cfg(test)]
mod tests {
    use std::future::pending;

    use tokio::task::{LocalSet, yield_now};

    use super::*;

    /// The ages of the connections that are open, by address.
    fn open(all: &UnprovenConnections, address: &str) -> Vec<u64> {
        let client = ClientKey::before_proof(address.parse().unwrap());
        let queues = all.queues();
        queues.by_client.get(&client).map_or_else(Vec::new, |it| it.keys().copied().collect())
    }

    #[tokio::test]
    async fn the_address_with_most_connections_loses_its_oldest_one() {
        let all = Arc::new(UnprovenConnections::default());
        let of = |address: &str| address.parse::<IpAddr>().unwrap();
        let [many, same, one, late] =
            ["2001:db8:0:1::", "2001:db8:0:2::", "192.0.2.1", "192.0.2.9"];
        let tasks = LocalSet::new();
        tasks
            .run_until(async {
                assert!(!all.evict(of(one)), "there is none");
                for address in [one, many, same, many] {
                    Arc::clone(&all).spawn(of(address), |guard| async move {
                        pending::<()>().await;
                        drop(guard);
                    });
                }
                assert!(all.evict(of(late)));
                assert_eq!((open(&all, one), open(&all, many)), (vec![1], vec![3, 4]));
                assert!(all.evict(of(same)), "its own");
                assert_eq!((open(&all, one), open(&all, many)), (vec![1], vec![4]));
                assert!(all.evict(of(late)), "the oldest one of equal addresses");
                assert_eq!((open(&all, one), open(&all, many)), (vec![], vec![4]));
                Arc::clone(&all).spawn(of(one), |mut guard| async move {
                    guard.set_address(of(late));
                    pending::<()>().await;
                });
                yield_now().await;
                assert_eq!((open(&all, one), open(&all, late)), (vec![], vec![5]));
                assert!(all.evict(of(late)), "its own of equal ones");
                assert_eq!((open(&all, late), open(&all, many)), (vec![], vec![4]));
            })
            .await;
        drop(tasks);
        let queues = all.queues();
        assert!(queues.by_client.is_empty() && queues.by_size.is_empty());
    }
}

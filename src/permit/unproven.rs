//! Connections whose clients have not proved a key. While no permit is free, one of them is evicted
//! for a new connection, by the rule of [`Holdings::evict`].
//!
//! All workers share the connections of one listening address, because they share its permits. Each
//! connection locks them twice when it begins, and once when its handshake ends.

use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::task::AbortHandle;

use super::ClientKey;
use super::holdings::{Age, Holdings};

/// The connections of one listening address without a proof of a key.
#[derive(Debug, Default)]
pub(crate) struct UnprovenConnections(Mutex<Holdings<AbortHandle>>);

/// A connection without a proof of a key, until it is dropped.
#[derive(Debug)]
pub(crate) struct Unproven {
    all: Arc<UnprovenConnections>,
    client: ClientKey,
    age: Age,
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
        let age = self.lock().next_age();
        let task = tokio::task::spawn_local(task(Unproven { all: Arc::clone(&self), client, age }));
        self.lock().insert(client, age, 1, task.abort_handle());
    }

    /// Aborts a connection for a new one from `address`. Returns whether there was one.
    pub(crate) fn evict(&self, address: IpAddr) -> bool {
        let evicted = self.lock().evict(ClientKey::before_proof(address), 1);
        evicted.inspect(|(_, task)| task.abort()).is_some()
    }

    fn lock(&self) -> MutexGuard<'_, Holdings<AbortHandle>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Unproven {
    /// Counts the connection for another address, which a PROXY header names.
    pub(crate) fn set_address(&mut self, address: IpAddr) {
        let mut all = self.all.lock();
        if let Some((_, task)) = all.remove(self.client, self.age) {
            self.client = ClientKey::before_proof(address);
            all.insert(self.client, self.age, 1, task);
        }
    }

    /// Records that the client has proved its key. Returns false if the connection was evicted
    /// before; its task is then aborted after this poll, and must not go on.
    #[must_use]
    pub(crate) fn prove(self) -> bool {
        self.leave()
    }

    fn leave(&self) -> bool {
        self.all.lock().remove(self.client, self.age).is_some()
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
            [one, many, late].map(|it| all.size_of(ClientKey::before_proof(it)))
        };
        let spawn = |address, then: Option<IpAddr>| {
            Arc::clone(&all).spawn(address, move |mut guard| async move {
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
        assert!(all.lock().is_empty());
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
                    all.spawn(address, move |guard| async move {
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

//! A queue of waiting requests, in the order of their arrival, of which some clients may be passed
//! over.

use std::collections::{BTreeMap, HashMap};

use keygate_wire::permit::ClientKey;

/// Waiting requests. Each operation costs the logarithm of their number, and one step for each
/// client that is passed over.
#[derive(Debug)]
pub(crate) struct WaitQueue<T> {
    /// The number of the next request.
    next: u64,
    /// Number of requests.
    length: usize,
    by_client: HashMap<ClientKey, BTreeMap<u64, T>>,
    /// The first request of each client.
    first: BTreeMap<u64, ClientKey>,
}

/// A place in a [`WaitQueue`].
#[derive(Debug, Clone, Copy)]
pub(crate) struct QueuePlace {
    client: ClientKey,
    number: u64,
}

impl<T> Default for WaitQueue<T> {
    fn default() -> Self {
        Self { next: 0, length: 0, by_client: HashMap::new(), first: BTreeMap::new() }
    }
}

impl<T> WaitQueue<T> {
    pub(crate) fn len(&self) -> usize {
        self.length
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// Number of requests of one client.
    pub(crate) fn count_of(&self, client: ClientKey) -> usize {
        self.by_client.get(&client).map_or(0, BTreeMap::len)
    }

    /// Adds a request at the end.
    pub(crate) fn push(&mut self, client: ClientKey, waiter: T) -> QueuePlace {
        let number = self.next;
        self.next = self.next.wrapping_add(1);
        let own = self.by_client.entry(client).or_default();
        if own.is_empty() {
            self.first.insert(number, client);
        }
        own.insert(number, waiter);
        self.length = self.length.saturating_add(1);
        QueuePlace { client, number }
    }

    /// Removes a request, if it still waits.
    pub(crate) fn remove(&mut self, place: QueuePlace) -> Option<T> {
        let QueuePlace { client, number } = place;
        let own = self.by_client.get_mut(&client)?;
        let waiter = own.remove(&number)?;
        self.length = self.length.saturating_sub(1);
        let next = own.keys().next().copied();
        if next.is_none() {
            self.by_client.remove(&client);
        }
        if self.first.remove(&number).is_some()
            && let Some(next) = next
        {
            self.first.insert(next, client);
        }
        Some(waiter)
    }

    /// Takes the first request of a client that `may_take`, and its client.
    pub(crate) fn take_first(
        &mut self,
        may_take: impl Fn(ClientKey) -> bool,
    ) -> Option<(ClientKey, T)> {
        let mut first = self.first.iter().map(|(number, client)| (*number, *client));
        let (number, client) = first.find(|(_, client)| may_take(*client))?;
        let waiter = self.remove(QueuePlace { client, number })?;
        Some((client, waiter))
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::net::{IpAddr, Ipv4Addr};

    use super::*;

    fn client(number: u8) -> ClientKey {
        ClientKey::new(None, IpAddr::V4(Ipv4Addr::new(192, 0, 2, number)))
    }

    fn drain(queue: &mut WaitQueue<u32>, may_take: impl Fn(ClientKey) -> bool) -> Vec<u32> {
        std::iter::from_fn(|| queue.take_first(&may_take)).map(|(_, waiter)| waiter).collect()
    }

    #[test]
    fn requests_leave_in_the_order_of_their_arrival_whatever_their_clients() {
        let mut queue = WaitQueue::default();
        for (number, of) in [1, 2, 1, 1, 3, 2].into_iter().enumerate() {
            queue.push(client(of), u32::try_from(number).unwrap());
        }
        assert_eq!((queue.len(), queue.count_of(client(1))), (6, 3));
        assert_eq!(drain(&mut queue, |_| true), [0, 1, 2, 3, 4, 5]);
        assert!(queue.is_empty() && queue.count_of(client(1)) == 0);
    }

    #[test]
    fn a_client_that_has_its_share_keeps_its_place() {
        let mut queue = WaitQueue::default();
        for (number, of) in [1, 1, 2, 1, 2].into_iter().enumerate() {
            queue.push(client(of), u32::try_from(number).unwrap());
        }
        assert_eq!(drain(&mut queue, |of| of != client(1)), [2, 4]);
        queue.push(client(2), 5);
        assert_eq!(drain(&mut queue, |_| true), [0, 1, 3, 5]);
    }

    #[test]
    fn a_cancelled_request_leaves_from_any_place() {
        let mut queue = WaitQueue::default();
        let places: Vec<QueuePlace> = (0..4).map(|number| queue.push(client(1), number)).collect();
        let other = queue.push(client(2), 4);
        for place in [places[0], places[2], other] {
            assert!(queue.remove(place).is_some() && queue.remove(place).is_none());
        }
        assert_eq!(queue.len(), 2);
        assert_eq!(drain(&mut queue, |_| true), [1, 3]);
        assert!(queue.remove(places[1]).is_none(), "it was taken");
        assert!(queue.by_client.is_empty() && queue.first.is_empty());
    }

    #[test]
    fn one_look_at_a_client_passes_over_all_its_requests() {
        let mut queue = WaitQueue::default();
        for number in 0..4000 {
            queue.push(client(1), number);
        }
        queue.push(client(2), 4000);
        let looks = Cell::new(0);
        let taken = queue.take_first(|of| {
            looks.set(looks.get() + 1);
            of == client(2)
        });
        assert_eq!(taken, Some((client(2), 4000)));
        assert_eq!(looks.get(), 2);
        assert_eq!(queue.len(), 4000);
    }
}

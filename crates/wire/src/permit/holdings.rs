//! The shares of clients of a resource, and its entries by age: connections that may be evicted, or
//! tasks that wait.
//!
//! One rule selects the entry that is evicted, for all resources ([`Holdings::evict`]).

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::hash::BuildHasherDefault;
use std::sync::LazyLock;
use std::time::{Duration, Instant};

use super::client_key::{ClientKey, IdentityHasher};

/// The age after which the entry of an address may be evicted for an address that holds nothing,
/// 1 s. A handshake takes a few round trips.
const EVICTABLE: Duration = Duration::from_secs(1);

/// When an entry began, in nanoseconds since the first one of the process; never 0.
pub(super) type Age = u64;

/// The clients that hold a resource. Each operation costs the logarithm of their number.
#[derive(Debug)]
pub(super) struct Holdings<T> {
    by_client: HashMap<ClientKey, Holding<T>, BuildHasherDefault<IdentityHasher>>,
    /// The clients with entries by size; of equal ones, the client with the oldest entry last.
    by_size: BTreeSet<(usize, Reverse<Age>, ClientKey)>,
    by_age: BTreeMap<Age, ClientKey>,
    /// The units that all clients hold.
    pub(super) total: usize,
    youngest: Age,
}

/// The units that one client holds, and its entries with the units of each.
#[derive(Debug)]
struct Holding<T> {
    size: usize,
    entries: BTreeMap<Age, (usize, T)>,
}

impl<T> Default for Holdings<T> {
    fn default() -> Self {
        let (by_client, by_size, by_age) = Default::default();
        Self { by_client, by_size, by_age, total: 0, youngest: 0 }
    }
}

impl<T> Holdings<T> {
    /// The units that `client` holds.
    pub(super) fn size_of(&self, client: ClientKey) -> usize {
        self.by_client.get(&client).map_or(0, |it| it.size)
    }

    /// An age for a new entry.
    pub(super) fn next_age(&mut self) -> Age {
        self.youngest = now().max(self.youngest.saturating_add(1));
        self.youngest
    }

    /// Changes `before` of the units that a client holds to `after`.
    pub(super) fn resize(&mut self, client: ClientKey, before: usize, after: usize) {
        self.change(client, |it| it.size = it.size.saturating_sub(before).saturating_add(after));
    }

    /// Adds an entry and its units.
    pub(super) fn insert(&mut self, client: ClientKey, age: Age, units: usize, entry: T) {
        self.change(client, |it| {
            it.size = it.size.saturating_add(units);
            it.entries.insert(age, (units, entry));
        });
        self.by_age.insert(age, client);
    }

    /// Removes an entry and its units, if it is still there.
    pub(super) fn remove(&mut self, client: ClientKey, age: Age) -> Option<(usize, T)> {
        let removed = self.change(client, |it| {
            let removed = it.entries.remove(&age)?;
            it.size = it.size.saturating_sub(removed.0);
            Some(removed)
        });
        removed.inspect(|_| _ = self.by_age.remove(&age))
    }

    /// Removes the oldest entry of a client.
    pub(super) fn remove_oldest(&mut self, client: ClientKey) -> Option<(usize, T)> {
        let (age, _) = self.by_client.get(&client)?.entries.first_key_value()?;
        self.remove(client, *age)
    }

    /// Removes an entry for `more` units of `newcomer`: the oldest one of the client that holds most,
    /// if that client holds more than the newcomer would; else the oldest one of the newcomer. If the
    /// newcomer has no entry, the oldest one of all if it is [`EVICTABLE`].
    pub(super) fn evict(&mut self, newcomer: ClientKey, more: usize) -> Option<(usize, T)> {
        let victim = self.victim(newcomer, more, now())?;
        self.remove_oldest(victim)
    }

    fn change<R>(&mut self, client: ClientKey, change: impl FnOnce(&mut Holding<T>) -> R) -> R {
        let rank = |it: &Holding<T>| {
            it.entries.first_key_value().map(|(age, _)| (it.size, Reverse(*age), client))
        };
        let empty = || Holding { size: 0, entries: BTreeMap::new() };
        let holding = self.by_client.entry(client).or_insert_with(empty);
        let (size, before) = (holding.size, rank(holding));
        let changed = change(holding);
        let after = rank(holding);
        self.total = self.total.saturating_sub(size).saturating_add(holding.size);
        if holding.size == 0 && after.is_none() {
            self.by_client.remove(&client);
        }
        if before != after {
            before.inspect(|rank| _ = self.by_size.remove(rank));
            self.by_size.extend(after);
        }
        changed
    }

    /// The client that has entries and holds least.
    pub(super) fn smallest(&self) -> Option<ClientKey> {
        self.by_size.first().map(|(_, _, client)| *client)
    }

    /// The client that loses an entry at the time `now`.
    fn victim(&self, newcomer: ClientKey, more: usize, now: Age) -> Option<ClientKey> {
        let (size, _, largest) = *self.by_size.last()?;
        if size > self.size_of(newcomer).saturating_add(more) {
            return Some(largest);
        }
        if self.by_client.get(&newcomer).is_some_and(|own| !own.entries.is_empty()) {
            return Some(newcomer);
        }
        let (age, oldest) = self.by_age.first_key_value()?;
        let is_old = u128::from(now.saturating_sub(*age)) >= EVICTABLE.as_nanos();
        is_old.then_some(*oldest)
    }
}

/// The present, as the age of an entry that begins now.
fn now() -> Age {
    static START: LazyLock<Instant> = LazyLock::new(Instant::now);
    START.elapsed().as_nanos().try_into().unwrap_or(Age::MAX)
}

#[cfg(test)]
impl<T> Holdings<T> {
    pub(super) fn is_empty(&self) -> bool {
        let has_entries = !self.by_size.is_empty() || !self.by_age.is_empty();
        !has_entries && self.by_client.is_empty() && self.total == 0
    }
}

#[cfg(test)]
mod tests {
    use std::net::{IpAddr, Ipv4Addr};

    use super::*;

    fn client(number: u8) -> ClientKey {
        ClientKey::new(Some(&[number]), IpAddr::V4(Ipv4Addr::UNSPECIFIED))
    }

    /// Clients with one entry of one unit for each of these ages.
    fn holdings(ages: &[(u8, Age)]) -> Holdings<()> {
        let mut holdings = Holdings::default();
        for (number, age) in ages {
            holdings.insert(client(*number), *age, 1, ());
        }
        holdings
    }

    #[test]
    fn the_victim_is_the_largest_client_or_else_the_newcomer() {
        let all = holdings(&[(1, 1), (2, 2), (2, 3), (2, 4), (3, 5), (3, 6)]);
        let victim = |newcomer, more| all.victim(client(newcomer), more, 7);
        assert_eq!(victim(9, 1), Some(client(2)));
        assert_eq!(victim(1, 1), Some(client(2)), "3 are more than 1 and another one");
        assert_eq!(victim(3, 1), Some(client(3)), "3 are no more than 2 and another one");
        assert_eq!(victim(2, 1), Some(client(2)));
        assert_eq!(victim(1, 2), Some(client(1)));
        assert_eq!(all.smallest(), Some(client(1)));
        assert_eq!(all.total, 6);
    }

    #[test]
    fn a_newcomer_that_holds_nothing_replaces_no_young_entry_of_its_own_size() {
        let all = holdings(&[(1, 20), (2, 10)]);
        let old = 10 + Age::try_from(EVICTABLE.as_nanos()).unwrap();
        assert_eq!(all.victim(client(9), 1, old - 1), None);
        assert_eq!(all.victim(client(9), 1, old), Some(client(2)), "the oldest one");
        assert_eq!(holdings(&[]).victim(client(9), 1, old), None);
    }

    #[test]
    fn a_young_entry_that_is_the_largest_does_not_keep_an_old_one() {
        let mut all = holdings(&[(1, 10)]);
        let old = 10 + Age::try_from(EVICTABLE.as_nanos()).unwrap();
        all.insert(client(2), old, 2, ());
        assert_eq!(all.victim(client(9), 2, old), Some(client(1)));
        assert!(all.remove_oldest(client(1)).is_some());
        assert_eq!(all.victim(client(9), 2, old), None);
        assert!(all.remove_oldest(client(2)).is_some() && all.is_empty());
    }
}

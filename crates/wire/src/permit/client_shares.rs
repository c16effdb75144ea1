//! Shares: what one client may hold of a resource that all clients share, in one thread.
//!
//! A client may take one more unit only while it holds less than three times the number of free
//! units. One client alone holds three quarters at most, two hold three sevenths each, and some
//! units are always left for a client that holds none. A limit below 4 has no such reserve.

use std::cell::RefCell;
use std::rc::Rc;

use super::client_key::ClientKey;
use super::holdings::Holdings;

/// Multiple of the free units that one client may hold.
const SHARE: usize = 3;

/// Whether a client may hold `held` units while `free` are left.
pub(super) fn is_within_share(held: usize, free: usize) -> bool {
    held <= free.saturating_mul(SHARE)
}

/// Whether a client that holds `held` units may take one of `free`.
pub fn may_take_one(held: usize, free: usize) -> bool {
    is_within_share(held.saturating_add(1), free)
}

/// The units that each client holds. Clones share them.
#[derive(Debug, Clone, Default)]
pub struct ClientShares(Rc<RefCell<Holdings<()>>>);

/// One unit that a client holds, until it is dropped.
#[derive(Debug)]
pub struct ShareGuard {
    shares: ClientShares,
    client: ClientKey,
}

impl ClientShares {
    /// The units that all clients hold together.
    pub fn total(&self) -> usize {
        self.0.borrow().total
    }

    /// Whether `client` may take one of `free` units.
    pub fn may_take(&self, client: ClientKey, free: usize) -> bool {
        may_take_one(self.0.borrow().size_of(client), free)
    }

    /// Takes one of `free` units; `None` if the client has its share.
    pub fn take(&self, client: ClientKey, free: usize) -> Option<ShareGuard> {
        let may_take = self.may_take(client, free);
        may_take.then(|| {
            self.0.borrow_mut().resize(client, 0, 1);
            ShareGuard { shares: self.clone(), client }
        })
    }
}

impl Drop for ShareGuard {
    fn drop(&mut self) {
        self.shares.0.borrow_mut().resize(self.client, 1, 0);
    }
}

#[cfg(test)]
mod tests {
    use std::net::{IpAddr, Ipv4Addr};

    use super::*;

    /// The units of each client after all of them took as many as they could, in turn.
    fn held(limit: usize, clients: u8) -> Vec<usize> {
        let shares = ClientShares::default();
        let keys: Vec<_> = (0..clients).map(|it| ClientKey::new(Some(&[it]), NONE)).collect();
        let mut guards: Vec<_> = keys.iter().map(|_| Vec::new()).collect();
        for _ in 0..limit {
            for (key, guards) in keys.iter().zip(&mut guards) {
                guards.extend(shares.take(*key, limit - shares.total()));
            }
        }
        guards.iter().map(Vec::len).collect()
    }

    const NONE: IpAddr = IpAddr::V4(Ipv4Addr::UNSPECIFIED);

    #[test]
    fn one_client_leaves_a_quarter_and_several_leave_a_rest() {
        assert_eq!(held(100, 1), [75]);
        assert_eq!(held(4, 1), [3]);
        assert_eq!(held(1, 1), [1], "a small limit has no reserve");
        let two = held(100, 2);
        assert!(two.iter().all(|count| (42..=43).contains(count)), "{two:?}");
        assert!(held(100, 9).iter().sum::<usize>() < 100);
    }

    #[test]
    fn a_unit_is_free_again_when_its_guard_is_dropped() {
        let shares = ClientShares::default();
        let client = ClientKey::new(None, NONE);
        let unit = shares.take(client, 1).unwrap();
        assert_eq!(shares.total(), 1);
        assert!(!shares.may_take(client, 0) && shares.take(client, 0).is_none());
        drop(unit);
        assert_eq!(shares.total(), 0);
        assert!(shares.0.borrow().is_empty());
    }

    #[test]
    fn a_client_is_its_key_or_else_its_network() {
        let [one, other] = ["192.0.2.1", "192.0.2.2"].map(|it| it.parse().unwrap());
        assert_eq!(ClientKey::new(Some(b"a"), one), ClientKey::new(Some(b"a"), other));
        assert_ne!(ClientKey::new(Some(b"a"), one), ClientKey::new(Some(b"b"), one));
        assert_ne!(ClientKey::new(None, one), ClientKey::new(None, other));
        let [one, neighbour] = ["2001:db8::1", "2001:db8::2"].map(|it| it.parse().unwrap());
        assert_eq!(ClientKey::new(None, one), ClientKey::new(None, neighbour));
        let [subnet, site] = ["2001:db8:0:9::1", "2001:db8:1::1"].map(|it| it.parse().unwrap());
        assert_ne!(ClientKey::new(None, one), ClientKey::new(None, subnet));
        assert_eq!(ClientKey::before_proof(one), ClientKey::before_proof(subnet));
        assert_ne!(ClientKey::before_proof(one), ClientKey::before_proof(site));
    }
}

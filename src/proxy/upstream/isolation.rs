//! Clients whose requests may have ended a shared HTTP/2 connection, or would end one by their
//! resets. Such a client gets connections of its own: its next request ends no request of another
//! client.

use std::cell::RefCell;
use std::time::{Duration, Instant};

use keygate_wire::permit::{ClientKey, ClientShares, ShareGuard};

/// Time for which an isolation lasts after the last fault.
const PERIOD: Duration = Duration::from_secs(60);
/// Maximum number of clients that are remembered. The oldest fault is forgotten for a new one.
const MAX_CLIENTS: usize = 64;

/// Maximum number of streams that keygate resets for all clients in [`RESET_PERIOD`]; one client has
/// three quarters. nghttp2 ends a connection after 1,000 resets, and 33 more each second.
const MAX_RESETS: usize = 400;
/// Period of the resets, 30 s.
const RESET_PERIOD: Duration = Duration::from_secs(30);

/// The clients of one upstream that get connections of their own, in one worker.
#[derive(Debug, Default)]
pub(crate) struct Isolation {
    suspects: RefCell<Vec<SuspectedClient>>,
    resets: RefCell<Resets>,
}

/// The resets of one period on shared connections.
#[derive(Debug, Default)]
struct Resets {
    began: Option<Instant>,
    shares: ClientShares,
    taken: Vec<ShareGuard>,
}

#[derive(Debug)]
struct SuspectedClient {
    client: ClientKey,
    last: Instant,
    proof: ProofState,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ProofState {
    /// Its request was the newest one on a shared connection, which is chance if it is busy.
    Missing,
    /// A connection has failed that no other client used.
    Found,
    Reported,
}

impl Isolation {
    /// Records that a connection has failed while the request of `client` was its newest. It proves
    /// the fault if the client was `alone` on it.
    pub(super) fn record_fault(&self, client: ClientKey, alone: bool) {
        let mut suspects = self.suspects.borrow_mut();
        suspects.retain(|suspect| suspect.last.elapsed() < PERIOD);
        let position = suspects.iter().position(|suspect| suspect.client == client);
        let mut proof =
            position.map_or(ProofState::Missing, |position| suspects.remove(position).proof);
        if alone && proof == ProofState::Missing {
            proof = ProofState::Found;
        }
        if suspects.len() >= MAX_CLIENTS {
            suspects.remove(0);
        }
        suspects.push(SuspectedClient { client, last: Instant::now(), proof });
    }

    /// Records that keygate has reset a stream of `client` on a shared connection.
    pub(super) fn record_reset(&self, client: ClientKey) {
        let is_within_share = self.resets.borrow_mut().take(client, Instant::now());
        if !is_within_share {
            self.record_fault(client, false);
        }
    }

    /// Whether a client gets connections of its own.
    pub(super) fn contains(&self, client: ClientKey) -> bool {
        let suspects = self.suspects.borrow(); // empty as a rule
        suspects.iter().any(|it| it.client == client && it.last.elapsed() < PERIOD)
    }

    /// Whether the client has begun to get connections of its own, because its fault is proved, and
    /// that was not reported.
    pub(crate) fn take_report(&self, client: ClientKey) -> bool {
        let mut suspects = self.suspects.borrow_mut();
        let found =
            |it: &&mut SuspectedClient| it.client == client && it.proof == ProofState::Found;
        suspects.iter_mut().find(found).is_some_and(|it| {
            it.proof = ProofState::Reported;
            true
        })
    }
}

impl Resets {
    /// Counts a reset. Returns whether the share of the client permits it.
    fn take(&mut self, client: ClientKey, now: Instant) -> bool {
        if self.began.is_none_or(|began| now.duration_since(began) >= RESET_PERIOD) {
            self.began = Some(now);
            self.taken.clear();
        }
        let share = self.shares.take(client, MAX_RESETS.saturating_sub(self.taken.len()));
        let is_within_share = share.is_some();
        self.taken.extend(share);
        is_within_share
    }
}

#[cfg(test)]
mod tests {
    use std::net::{IpAddr, Ipv4Addr};

    use super::*;

    #[test]
    fn only_a_connection_of_its_own_proves_a_fault_and_few_clients_are_remembered() {
        let client = |last| ClientKey::new(None, IpAddr::V4(Ipv4Addr::new(192, 0, 2, last)));
        let isolation = Isolation::default();
        (0..3).for_each(|_| isolation.record_fault(client(1), false));
        assert!(isolation.contains(client(1)) && !isolation.contains(client(2)));
        assert!(!isolation.take_report(client(1)));
        isolation.record_fault(client(1), true);
        assert!(isolation.take_report(client(1)) && !isolation.take_report(client(1)));
        (100..200).for_each(|last| isolation.record_fault(client(last), false));
        assert!(!isolation.contains(client(1)));
        assert_eq!(isolation.suspects.borrow().len(), MAX_CLIENTS);
    }

    #[test]
    fn a_client_that_resets_more_than_its_share_is_isolated_and_others_have_a_rest() {
        let client = |last| ClientKey::new(None, IpAddr::V4(Ipv4Addr::new(192, 0, 2, last)));
        let isolation = Isolation::default();
        (0..300).for_each(|_| isolation.record_reset(client(1)));
        assert!(!isolation.contains(client(1)), "three quarters");
        isolation.record_reset(client(1));
        isolation.record_reset(client(2));
        assert!(isolation.contains(client(1)) && !isolation.contains(client(2)));
        let mut resets = Resets::default();
        let now = Instant::now();
        assert!((0..300).all(|_| resets.take(client(1), now)));
        assert!(!resets.take(client(1), now));
        assert!(resets.take(client(1), now + RESET_PERIOD));
        assert_eq!(resets.taken.len(), 1);
    }
}

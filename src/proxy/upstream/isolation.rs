//! Clients whose requests end shared HTTP/2 connections. Such a client gets connections of its own,
//! so that its next request ends no request of another client.

use std::cell::RefCell;
use std::time::{Duration, Instant};

use crate::permit::ClientKey;

/// Number of connections that end under the newest request of a client before it is isolated. One
/// may end because its server restarts.
const MAX_FAULTS: u32 = 2;
/// Time for which a fault counts, and an isolation lasts.
const PERIOD: Duration = Duration::from_secs(60);
/// Maximum number of clients that are remembered. The oldest fault is forgotten for a new one.
const MAX_CLIENTS: usize = 64;

/// The clients of one upstream that have ended a shared connection, in one worker.
#[derive(Debug, Default)]
pub(crate) struct Isolation(RefCell<Vec<SuspectedClient>>);

#[derive(Debug)]
struct SuspectedClient {
    client: ClientKey,
    faults: u32,
    last: Instant,
    is_reported: bool,
}

impl SuspectedClient {
    fn is_isolated(&self) -> bool {
        self.faults >= MAX_FAULTS && self.last.elapsed() < PERIOD
    }
}

impl Isolation {
    /// Records that a connection has ended while the request of `client` was its newest.
    pub(super) fn record_fault(&self, client: ClientKey) {
        let mut suspects = self.0.borrow_mut();
        suspects.retain(|suspect| suspect.last.elapsed() < PERIOD);
        let position = suspects.iter().position(|suspect| suspect.client == client);
        let position = position.or_else(|| (suspects.len() >= MAX_CLIENTS).then_some(0));
        let before = position.map(|position| suspects.remove(position));
        let before = before.filter(|suspect| suspect.client == client);
        let (faults, is_reported) = before.map_or((0, false), |it| (it.faults, it.is_reported));
        let (faults, last) = (faults.saturating_add(1), Instant::now());
        suspects.push(SuspectedClient { client, faults, last, is_reported });
    }

    /// Whether a client gets connections of its own.
    pub(super) fn contains(&self, client: ClientKey) -> bool {
        let suspects = self.0.borrow(); // empty as a rule
        suspects.iter().any(|suspect| suspect.client == client && suspect.is_isolated())
    }

    /// Whether the isolation of a client has begun and was not reported.
    pub(super) fn take_report(&self, client: ClientKey) -> bool {
        let mut suspects = self.0.borrow_mut();
        let suspect =
            suspects.iter_mut().find(|suspect| suspect.client == client && suspect.is_isolated());
        suspect.is_some_and(|suspect| !std::mem::replace(&mut suspect.is_reported, true))
    }
}

#[cfg(test)]
mod tests {
    use std::net::{IpAddr, Ipv4Addr};

    use super::*;

    #[test]
    fn a_client_is_isolated_after_two_faults_and_few_clients_are_remembered() {
        let client = |last| ClientKey::new(None, IpAddr::V4(Ipv4Addr::new(192, 0, 2, last)));
        let isolation = Isolation::default();
        isolation.record_fault(client(1));
        assert!(!isolation.contains(client(1)) && !isolation.take_report(client(1)));
        isolation.record_fault(client(2));
        isolation.record_fault(client(1));
        assert!(isolation.contains(client(1)) && !isolation.contains(client(2)));
        assert!(isolation.take_report(client(1)) && !isolation.take_report(client(1)));
        (100..200).for_each(|last| isolation.record_fault(client(last)));
        assert!(!isolation.contains(client(1)));
        assert_eq!(isolation.0.borrow().len(), MAX_CLIENTS);
    }
}

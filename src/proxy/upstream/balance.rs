//! Load balancing: chooses the server of a request.

use std::cell::{Cell, RefCell};

use crate::config::Balance;

/// A server that may be chosen.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Candidate {
    /// Index in the list of servers.
    pub(crate) index: usize,
    /// Share of the requests, relative to the other servers.
    pub(crate) weight: u32,
    /// Requests without a complete response.
    pub(crate) in_flight: usize,
}

/// Chooses one of several healthy servers.
#[derive(Debug)]
pub(crate) struct Balancer {
    balance: Balance,
    random: RefCell<fastrand::Rng>,
    turn: Cell<u64>,
}

impl Balancer {
    pub(crate) fn new(balance: Balance) -> Self {
        Self { balance, random: RefCell::new(fastrand::Rng::new()), turn: Cell::new(0) }
    }

    /// The index of the chosen server; `None` without candidates.
    pub(crate) fn choose(&self, candidates: &[Candidate]) -> Option<usize> {
        let chosen = match self.balance {
            Balance::LeastRequests => {
                let (one, other) = (self.draw(candidates)?, self.draw(candidates)?);
                // Compares requests per unit of weight without a division.
                let load = |one: Candidate, other: Candidate| {
                    (one.in_flight as u64).saturating_mul(other.weight.into())
                };
                if load(other, one) < load(one, other) { other } else { one }
            }
            Balance::Random => self.draw(candidates)?,
            Balance::RoundRobin => {
                let turn = self.turn.replace(self.turn.get().wrapping_add(1));
                at(candidates, turn.checked_rem(total(candidates))?)?
            }
        };
        Some(chosen.index)
    }

    fn draw(&self, candidates: &[Candidate]) -> Option<Candidate> {
        let total = total(candidates);
        (total > 0).then(|| at(candidates, self.random.borrow_mut().u64(..total))).flatten()
    }
}

fn total(candidates: &[Candidate]) -> u64 {
    candidates.iter().map(|candidate| u64::from(candidate.weight)).sum()
}

/// The candidate whose share of the sum of all weights contains `place`.
fn at(candidates: &[Candidate], mut place: u64) -> Option<Candidate> {
    candidates.iter().copied().find(|candidate| {
        let weight = u64::from(candidate.weight);
        let is_chosen = place < weight;
        place = place.saturating_sub(weight);
        is_chosen
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn servers(all: &[(u32, usize)]) -> Vec<Candidate> {
        let all = all.iter().enumerate();
        all.map(|(index, (weight, in_flight))| Candidate {
            index,
            weight: *weight,
            in_flight: *in_flight,
        })
        .collect()
    }

    fn shares(balance: Balance, servers: &[Candidate]) -> Vec<usize> {
        let balancer = Balancer::new(balance);
        let mut counts = vec![0; servers.len()];
        for _ in 0..6000 {
            counts[balancer.choose(servers).unwrap()] += 1;
        }
        counts
    }

    #[test]
    fn round_robin_gives_each_server_its_exact_share() {
        assert_eq!(
            shares(Balance::RoundRobin, &servers(&[(1, 9), (2, 0), (3, 0)])),
            [1000, 2000, 3000]
        );
    }

    #[test]
    fn random_gives_each_server_about_its_share() {
        let counts = shares(Balance::Random, &servers(&[(1, 0), (2, 0), (3, 0)]));
        for (count, share) in counts.into_iter().zip([1000_i32, 2000, 3000]) {
            // Six standard deviations are less than 250.
            assert!((i32::try_from(count).unwrap() - share).abs() < 250, "{count} of {share}");
        }
    }

    #[test]
    fn least_requests_prefers_the_less_loaded_server() {
        let counts = shares(Balance::LeastRequests, &servers(&[(1, 0), (1, 5)]));
        assert!(counts[0] > counts[1] * 2, "{counts:?}");
        // A server of weight 3 gets three times the requests.
        let counts = shares(Balance::LeastRequests, &servers(&[(3, 6), (1, 3)]));
        assert!(counts[0] > counts[1] * 5, "{counts:?}");
    }

    #[test]
    fn without_candidates_none_is_chosen() {
        for balance in [Balance::LeastRequests, Balance::Random, Balance::RoundRobin] {
            assert_eq!(Balancer::new(balance).choose(&[]), None);
        }
    }
}

//! The primes that RSA moduli share, found over all of them at once.
//!
//! For moduli N with the product P, the sum D of all P / N is P / N modulo each N, so
//! gcd(N, D mod N) has the primes of N that another modulus has. A tree of products gives P and D.
//! A tree of remainders, from the root to the leaves, gives D mod N. Source: Bernstein, "Fast
//! multiplication and its applications", 2008, and Heninger, Durumeric, Wustrow, Halderman, "Mining
//! Your Ps and Qs", USENIX Security 2012, section 3.2.

use std::collections::{BTreeMap, BTreeSet};

use num_bigint::BigUint;
use num_integer::Integer;

use super::MAX_BITS;

/// Room for products that are being computed, as a multiple of the size of all moduli. 25,000
/// moduli of 2048 bits took 219 MiB, of which the levels have 92.
const WORKING_ROOM: u64 = 24;

/// Maximum number of pairs that are compared to find the primes of moduli whose primes are all
/// shared: a minute for 2048 bits, which is enough for 1,400 such moduli.
const MAX_PAIRS: usize = 1 << 20;

/// RSA moduli, which are searched for shared primes.
#[derive(Debug, Default)]
pub struct BatchGcd {
    /// Odd, because factors of two are removed.
    moduli: Vec<BigUint>,
}

impl BatchGcd {
    /// Adds a modulus, big-endian, that was not added before. Returns false, and adds nothing, if
    /// the modulus is 0 or larger than any that is checked.
    pub fn add(&mut self, modulus: &[u8]) -> bool {
        let modulus = BigUint::from_bytes_be(modulus);
        let Some(zeros) = modulus.trailing_zeros() else { return false };
        let is_checked = modulus.bits() <= MAX_BITS;
        if is_checked {
            self.moduli.push(modulus >> zeros);
        }
        is_checked
    }

    /// The estimated memory of a search, in bytes: a level of the tree of products is as large as
    /// all moduli.
    #[must_use]
    pub fn memory(&self) -> u64 {
        let bytes = self.moduli.iter().map(BigUint::bits).sum::<u64>() / 8;
        bytes * (u64::from(self.moduli.len().max(1).ilog2()) + WORKING_ROOM)
    }

    /// The moduli that share a prime, as groups of positions in the order of [`BatchGcd::add`]. A
    /// group of one shares primes with moduli that were not found out, because there are too many.
    /// `progress` is called with the bits of the nodes of both trees that are done, and of all.
    #[must_use]
    pub fn groups(self, progress: impl FnMut(u64, u64)) -> Vec<Vec<usize>> {
        let found = shared_parts(&self.moduli, progress).into_iter().enumerate();
        let mut groups: BTreeMap<BigUint, BTreeSet<usize>> = BTreeMap::new();
        for (position, part) in found.filter(|(_, part)| part.bits() > 1) {
            groups.entry(part).or_default().insert(position);
        }
        // A part may be of several primes, of which other moduli have one each.
        let parts: Vec<_> = groups.clone().into_iter().collect();
        groups.retain(|_, group| group.len() > 1);
        let pairs = parts
            .iter()
            .zip(1..)
            .flat_map(|(one, next)| parts.iter().skip(next).map(move |other| (one, other)));
        let unresolved = pairs.filter(|(one, other)| one.1.len() == 1 || other.1.len() == 1);
        for ((part, own), (other, of_other)) in unresolved.take(MAX_PAIRS) {
            let common = part.gcd(other);
            if common.bits() > 1 {
                groups.entry(common).or_default().extend(own.union(of_other));
            }
        }
        let known: BTreeSet<_> = groups.values().flatten().copied().collect();
        groups.extend(parts.into_iter().filter(|(_, own)| own.is_disjoint(&known)));
        groups.into_values().map(|group| group.into_iter().collect()).collect()
    }
}

/// The product of the primes of each modulus that another one has; 1 if there is none.
fn shared_parts(moduli: &[BigUint], mut progress: impl FnMut(u64, u64)) -> Vec<BigUint> {
    let depth = u64::from(moduli.len().next_power_of_two().ilog2());
    let total = 2 * (depth + 1) * moduli.iter().map(BigUint::bits).sum::<u64>();
    let mut done = 0;
    let mut count = |node: &BigUint| {
        done = total.min(done + node.bits());
        progress(done, total);
    };
    let mut levels = vec![moduli.to_vec()];
    let mut sums = vec![BigUint::from(1_u32); moduli.len()];
    while let Some(level) = levels.last().filter(|level| level.len() > 1) {
        let pairs = level.chunks(2).zip(sums.chunks(2));
        let next = pairs.map(|pair| {
            let (product, sum) = match pair {
                ([one, other], [of_one, of_other]) => {
                    (one * other, of_one * other + of_other * one)
                }
                (nodes, sums) => (nodes.iter().product(), sums.iter().sum()),
            };
            count(&product);
            (product, sum)
        });
        let (products, next_sums) = next.unzip();
        sums = next_sums;
        levels.push(products);
    }
    let mut remainders = sums; // of the root
    while let Some(level) = levels.pop() {
        let parents = remainders.iter().flat_map(|parent| [parent, parent]);
        let children = level.iter().zip(parents).map(|(node, parent)| {
            count(node);
            parent % node
        });
        remainders = children.collect();
    }
    moduli.iter().zip(remainders).map(|(modulus, remainder)| modulus.gcd(&remainder)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Different odd primes.
    fn primes() -> Vec<u32> {
        let is_prime = |number: &u32| {
            (2..*number).take_while(|it| it * it <= *number).all(|it| !number.is_multiple_of(&it))
        };
        (60_000..61_000).filter(is_prime).collect()
    }

    /// The groups by the gcd of each pair.
    fn groups_by_pairs(moduli: &[BigUint]) -> BTreeSet<Vec<usize>> {
        let mut groups: BTreeMap<BigUint, BTreeSet<usize>> = BTreeMap::new();
        for (index, one) in moduli.iter().enumerate() {
            for (other_index, other) in moduli.iter().enumerate().take(index) {
                let common = one.gcd(other);
                if common > 1_u32.into() {
                    groups.entry(common).or_default().extend([index, other_index]);
                }
            }
        }
        groups.into_values().map(|group| group.into_iter().collect()).collect()
    }

    fn groups(moduli: &[BigUint]) -> BTreeSet<Vec<usize>> {
        let mut search = BatchGcd::default();
        assert!(moduli.iter().all(|modulus| search.add(&modulus.to_bytes_be())));
        let (mut before, mut all) = (0, 0);
        let groups = search.groups(|done, total| {
            assert!((before..=total).contains(&done));
            (before, all) = (done, total);
        });
        assert!(before >= all / 2, "{before} of {all}");
        groups.into_iter().collect()
    }

    #[test]
    fn shared_primes_are_those_of_all_pairs() {
        let primes = primes();
        let mut state = 1_u64;
        for count in (0..40).chain([200, 333]) {
            // Fewer primes than moduli: some share both.
            for choices in [primes.len(), 8 + count / 4] {
                let mut next = || {
                    state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                    let index = (state >> 33) as usize % choices.min(primes.len());
                    BigUint::from(primes[index])
                };
                let moduli: BTreeSet<_> = (0..count).map(|_| next() * next()).collect();
                let moduli: Vec<_> = moduli.into_iter().collect();
                assert_eq!(groups(&moduli), groups_by_pairs(&moduli), "{moduli:?}");
            }
        }
    }

    #[test]
    fn each_of_too_many_moduli_to_compare_is_found() {
        let is_prime = |number: &u32| (3..300).step_by(2).all(|it| !number.is_multiple_of(&it));
        let primes: Vec<_> = (60_001..90_000).step_by(2).filter(is_prime).take(1602).collect();
        let (triples, _) = primes.as_chunks();
        let pairs = triples.iter().flat_map(|[p, q, r]| [(p, q), (q, r), (r, p)]);
        let moduli: Vec<_> = pairs.map(|(p, q)| BigUint::from(*p) * *q).collect();
        let found = groups(&moduli);
        assert!(found.iter().any(|group| group.len() == 1), "too few moduli");
        assert_eq!(found.into_iter().flatten().collect::<BTreeSet<_>>().len(), 1602);
    }

    #[test]
    fn moduli_of_all_sizes_are_searched_together() {
        let mersenne = |exponent: u32| (BigUint::from(1_u32) << exponent) - 1_u32;
        let [a, b, c, d] = [521, 607, 1279, 2203].map(mersenne);
        let moduli =
            [&a * &b, &c * &d, 15_u32.into(), &b * &c, 4_u32.into(), 35_u32.into(), 1_u32.into()];
        let expected = [vec![0, 3], vec![1, 3], vec![2, 5]];
        assert_eq!(groups(&moduli), expected.into_iter().collect());
        let mut search = BatchGcd::default();
        assert!(!search.add(&[]) && !search.add(&[0]) && !search.add(&[0xff; 1025]));
        assert!(search.add(&[0xff; 1024]) && search.memory() > 1024);
        assert!(search.groups(|_, _| {}).is_empty());
    }
}

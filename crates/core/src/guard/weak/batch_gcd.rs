//! The primes that RSA moduli share, found over all of them at once.
//!
//! For moduli N with the product P, the sum D of all P / N is P / N modulo each N, so
//! gcd(N, D mod N) has the primes of N that another modulus has. A tree of products gives P and D.
//! A tree of remainders, from the root to the leaves, gives D mod N. Source: Bernstein, "Scaled
//! remainder trees", 2004, and Heninger, Durumeric, Wustrow, Halderman, "Mining Your Ps and Qs",
//! USENIX Security 2012, section 3.2.
//!
//! Remainders are scaled by the low bits and not by the high ones, because odd numbers have an
//! inverse modulo 2^k, and nothing is rounded: a node with the product P has y with y·P = T modulo
//! 2^k, for a T that is D times a power of two modulo P. The child A of P = A·B has the upper bits of
//! y·B. T grows by a factor of two a level at most, for which a node has bits to [`SPARE_BITS`].

use std::collections::{BTreeMap, BTreeSet};

use num_bigint::BigUint;
use num_integer::Integer;

use super::MAX_MODULUS_BITS;

/// Bits of a node beyond its product: one for the sign, one for each level of both trees, and the
/// logarithm of the number of moduli.
const SPARE_BITS: u64 = 128;
/// Room for products that are being computed, as a multiple of the size of all moduli. 25,000 moduli
/// of 2048 bits took 243 MiB, of which the levels have 92.
const WORKING_ROOM: u64 = 26;

/// Different RSA moduli, which are searched for shared primes.
#[derive(Debug, Default)]
pub struct BatchGcd {
    /// Odd, because factors of two are removed.
    moduli: Vec<BigUint>,
}

impl BatchGcd {
    /// Adds a modulus, big-endian. Each is added once. Returns false, and adds nothing, if the
    /// modulus is 0 or larger than any that is checked.
    pub fn add(&mut self, modulus: &[u8]) -> bool {
        let modulus = BigUint::from_bytes_be(modulus);
        let Some(zeros) = modulus.trailing_zeros() else { return false };
        let is_checked = modulus.bits() <= MAX_MODULUS_BITS;
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

    /// The moduli that share a prime, as groups of positions in the order of [`BatchGcd::add`].
    /// `progress` is called with the work that is done and all work, in units of this module.
    #[must_use]
    pub fn groups(self, progress: impl FnMut(u64, u64)) -> Vec<Vec<usize>> {
        let found = shared_parts(&self.moduli, progress);
        let found: Vec<_> = found.iter().enumerate().filter(|(_, part)| part.bits() > 1).collect();
        let mut groups: BTreeMap<BigUint, BTreeSet<usize>> = BTreeMap::new();
        for (position, part) in &found {
            groups.entry((*part).clone()).or_default().insert(*position);
        }
        // A part may be of several primes, of which other moduli have one each.
        let alone: Vec<_> = { groups.iter() }
            .filter_map(|(part, group)| (group.len() == 1).then_some((part.clone(), group.clone())))
            .collect();
        for (part, own) in alone {
            groups.remove(&part);
            for (other, others_part) in found.iter().filter(|(other, _)| !own.contains(other)) {
                let common = part.gcd(others_part);
                if common.bits() > 1 {
                    groups.entry(common).or_default().extend(own.iter().chain([other]));
                }
            }
        }
        groups.into_values().map(|group| group.into_iter().collect()).collect()
    }
}

/// The product of the primes of each modulus that another one has; 1 if there is none.
fn shared_parts(moduli: &[BigUint], progress: impl FnMut(u64, u64)) -> Vec<BigUint> {
    if moduli.len() < 2 {
        return vec![BigUint::from(1_u32); moduli.len()];
    }
    let mut progress = Progress::new(moduli, progress);
    let mut levels = vec![moduli.to_vec()];
    let mut sums = vec![BigUint::from(1_u32); moduli.len()];
    while let Some(level) = levels.last().filter(|level| level.len() > 1) {
        let pairs = level.chunks(2).zip(sums.chunks(2));
        let next = pairs.map(|pair| match pair {
            ([one, other], [of_one, of_other]) => {
                progress.add(3, one);
                (one * other, of_one * other + of_other * one)
            }
            (nodes, sums) => (nodes.iter().product(), sums.iter().sum()),
        });
        let (products, next_sums) = next.unzip();
        sums = next_sums;
        levels.push(products);
    }
    let (Some(root), Some(sum)) = (levels.pop().and_then(|mut it| it.pop()), sums.pop()) else {
        return Vec::new();
    };
    let bits = root.bits() + SPARE_BITS;
    let mut scaled = vec![(low_bits(inverse(&root, bits, &mut progress) * sum, bits), bits)];
    progress.add(1, &root);
    drop(root);
    while let Some(level) = levels.pop() {
        let mut children = Vec::with_capacity(level.len());
        for (nodes, (parent, bits)) in level.chunks(2).zip(scaled) {
            let [one, other] = nodes else {
                children.push((parent, bits)); // a node without a sibling is its parent
                continue;
            };
            for (node, sibling) in [(one, other), (other, one)] {
                let of_node = node.bits() + SPARE_BITS;
                let upper = low_bits(&parent * sibling, bits) >> (bits.saturating_sub(of_node));
                children.push((upper, of_node));
                progress.add(2, node);
            }
        }
        scaled = children;
    }
    let leaves = moduli.iter().zip(scaled).map(|(modulus, (scaled, bits))| {
        let remainder = low_bits(scaled * modulus, bits);
        let is_negative = remainder.bit(bits - 1);
        let size = if is_negative { (BigUint::from(1_u32) << bits) - remainder } else { remainder };
        modulus.gcd(&size)
    });
    leaves.collect()
}

/// The inverse of an odd number modulo 2^`bits`, by Newton's iteration.
fn inverse(odd: &BigUint, bits: u64, progress: &mut Progress<impl FnMut(u64, u64)>) -> BigUint {
    let halves = std::iter::successors(Some(bits), |bits| (*bits > 1).then_some(bits - bits / 2));
    let mut precisions: Vec<_> = halves.collect();
    precisions.reverse();
    let (mut inverse, mut known) = (BigUint::from(1_u32), 1);
    for next in precisions {
        // odd · inverse = 1 + error · 2^known
        let error = low_bits(low_bits(odd.clone(), next) * &inverse, next) >> known;
        let correction = low_bits(error * &inverse, next - known);
        if correction.bits() > 0 {
            inverse += ((BigUint::from(1_u32) << (next - known)) - correction) << known;
        }
        progress.add(1, &inverse);
        known = next;
    }
    inverse
}

fn low_bits(number: BigUint, bits: u64) -> BigUint {
    if number.bits() <= bits { number } else { number & ((BigUint::from(1_u32) << bits) - 1_u32) }
}

/// The work of a search. Its unit is about the time of a multiplication of one bit.
struct Progress<F> {
    report: F,
    done: u64,
    total: u64,
}

impl<F: FnMut(u64, u64)> Progress<F> {
    fn new(moduli: &[BigUint], report: F) -> Self {
        let bits = moduli.iter().map(BigUint::bits).sum::<u64>();
        let counts = std::iter::successors(Some(moduli.len() as u64), |count| Some(count / 2));
        let counts = counts.take_while(|count| *count > 1);
        // Three products for each pair in one tree, and four in the other.
        let of_trees = counts.map(|count| 7 * (count / 2) * work(bits / count)).sum::<u64>();
        Self { report, done: 0, total: of_trees + 5 * work(bits) / 2 }
    }

    /// Adds `count` products of numbers of this size.
    fn add(&mut self, count: u64, number: &BigUint) {
        self.done = self.total.min(self.done + count * work(number.bits()));
        (self.report)(self.done, self.total);
    }
}

/// The work of a product of numbers of this size: multiplication of num-bigint takes the size to the
/// power of 1.5, for large ones.
fn work(bits: u64) -> u64 {
    bits * bits.isqrt()
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

    #[test]
    fn the_inverse_of_each_odd_number_is_found_to_each_precision() {
        for odd in [1_u32, 3, 5, 0xffff_fffb, 0x1234_5677] {
            for bits in 1..200 {
                let odd = BigUint::from(odd).pow(3);
                let mut progress = Progress::new(&[], |_, _| {});
                let inverse = inverse(&odd, bits, &mut progress);
                assert_eq!(low_bits(inverse * odd, bits), 1_u32.into());
            }
        }
    }
}

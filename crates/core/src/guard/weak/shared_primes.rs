//! Primes that several RSA keys are known to share, as products.
//!
//! Anybody who has the product of many primes finds the one that divides a modulus by the greatest
//! common divisor. The remainder of the product modulo the modulus comes first, which takes most of
//! the time. A product is therefore for moduli of one size. Source: badkeys 0.0.21, `sharedprimes`.

use std::collections::BTreeSet;

use aws_lc_rs::digest::{SHA256, digest};
use num_bigint::BigUint;
use num_integer::Integer;

use super::MAX_MODULUS_BITS;

/// Size of the smallest modulus that is checked, in bits.
const MIN_MODULUS_BITS: u64 = 512;
/// Maximum size of the products for moduli of one size, in bits, 512 KiB. badkeys has 250 KiB for
/// 1024 bits, and 77 KiB for 2048 bits.
const MAX_PRODUCT_BITS: u64 = 1 << 22;
/// Maximum of the size of the products times the size of the moduli, in bits: 256 KiB for 2048
/// bits. It bounds the time of a check to some 2 ms.
const MAX_WORK: u64 = 1 << 32;

/// Products of primes, each for moduli of one size.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SharedPrimes {
    /// The size of the moduli in bits, and the product.
    products: BTreeSet<(u64, BigUint)>,
    /// Exclusive or of the first bytes of the SHA-256 of each product.
    id: u64,
}

impl SharedPrimes {
    /// Adds the product of `text`, the size of the moduli in bits, a colon, and the product in hex.
    /// Returns `None` if it is no odd number above 1, or if the products become too large.
    pub(in crate::guard) fn add(&mut self, text: &str) -> Option<()> {
        let (bits, product) = text.split_once(':')?;
        let is_number = bits.bytes().all(|it| it.is_ascii_digit());
        let is_hex = product.bytes().all(|it| it.is_ascii_hexdigit());
        let bits = bits.parse().ok().filter(|_| is_number && is_hex)?;
        let product = BigUint::parse_bytes(product.as_bytes(), 16)?;
        let is_product = product.bit(0) && product.bits() > 1;
        let is_of_size = (MIN_MODULUS_BITS..=MAX_MODULUS_BITS).contains(&bits);
        if !is_product || !is_of_size {
            return None;
        }
        self.push(bits, product);
        (!self.exceeds_limit(bits)).then_some(())
    }

    fn push(&mut self, bits: u64, product: BigUint) {
        let content = [&bits.to_be_bytes()[..], &product.to_bytes_be()].concat();
        if self.products.insert((bits, product)) {
            let first = digest(&SHA256, &content).as_ref().first_chunk().copied();
            self.id ^= u64::from_be_bytes(first.unwrap_or_default());
        }
    }

    /// The products of both.
    pub(in crate::guard) fn union(&self, other: &Self) -> Self {
        let mut all = self.clone();
        other.products.iter().cloned().for_each(|(bits, product)| all.push(bits, product));
        all
    }

    /// Tells these products from others.
    pub(super) fn id(&self) -> u64 {
        self.id
    }

    /// The products for moduli of this size.
    fn of_size(&self, bits: u64) -> impl Iterator<Item = &BigUint> {
        self.products.iter().filter(move |(of, _)| *of == bits).map(|(_, product)| product)
    }

    /// The first size of moduli for which the products are too large to be checked.
    pub(in crate::guard) fn oversize(&self) -> Option<u64> {
        self.products.iter().map(|(bits, _)| *bits).find(|bits| self.exceeds_limit(*bits))
    }

    /// Whether the check of a modulus of this size would take too long.
    pub(super) fn exceeds_limit(&self, bits: u64) -> bool {
        let size = self.of_size(bits).map(BigUint::bits).sum::<u64>();
        size > MAX_PRODUCT_BITS.min(MAX_WORK / bits.max(1))
    }

    /// Number of primes of half the size of a modulus that the products have room for, of those
    /// that `other` does not have.
    #[must_use]
    pub fn count_without(&self, other: &Self) -> usize {
        let products = self.products.difference(&other.products);
        let primes = products.map(|(bits, product)| product.bits().div_ceil(bits / 2));
        usize::try_from(primes.sum::<u64>()).unwrap_or(usize::MAX)
    }

    /// [`SharedPrimes::count_without`] any other products.
    #[must_use]
    pub fn count(&self) -> usize {
        self.count_without(&Self::default())
    }

    /// Whether a modulus has a prime of a product for its size.
    pub(super) fn has_prime_of(&self, modulus: &BigUint) -> bool {
        self.of_size(modulus.bits()).any(|it| modulus.gcd(&(it % modulus)).bits() > 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mersenne(exponent: u32) -> BigUint {
        (BigUint::from(1_u32) << exponent) - 1_u32
    }

    fn primes(lines: &[(u64, &BigUint)]) -> SharedPrimes {
        let mut primes = SharedPrimes::default();
        for (bits, product) in lines {
            primes.add(&format!("{bits}:{}", product.to_str_radix(16))).unwrap();
        }
        primes
    }

    #[test]
    fn a_modulus_with_a_prime_of_a_product_for_its_size_is_found() {
        let [a, b, c] = [521, 607, 1279].map(mersenne);
        let modulus = &a * &b;
        for product in [&a, &b, &modulus, &(&a * &c)] {
            let product = primes(&[(1128, product)]);
            let other = primes(&[(1128, &c)]);
            assert!(product.has_prime_of(&modulus) && !other.has_prime_of(&modulus));
            assert!(product.union(&other).has_prime_of(&modulus));
            assert!(other.union(&product).has_prime_of(&modulus));
            let other_sizes = product.products.iter().flat_map(|(_, it)| [(1127, it), (1129, it)]);
            assert!(!primes(&other_sizes.collect::<Vec<_>>()).has_prime_of(&modulus), "the size");
        }
        assert!(!SharedPrimes::default().has_prime_of(&BigUint::ZERO));
    }

    #[test]
    fn a_line_that_is_no_product_is_rejected() {
        let add = |line: &str| SharedPrimes::default().add(line);
        for wrong in [
            "",
            "3",
            "2048:",
            "2048:0",
            "2048:1",
            "2048:4",
            "511:7",
            "8193:7",
            "x:7",
            ":7",
            "2048:g",
            "+2048:7",
            "2048:+7",
            "2048:7_7",
            "2048: 7",
            "2_048:7",
            "18446744073709551616:7",
        ] {
            assert_eq!(add(wrong), None, "{wrong}");
        }
        assert!(["512:7", "8192:7", "02048:7", "2048:00fF"].iter().all(|line| add(line).is_some()));
    }

    /// The time of a check is bounded by both sizes, over all lists.
    #[test]
    fn the_size_of_all_products_for_one_size_is_bounded() {
        for (bits, kib) in [(512, 512), (1024, 512), (2048, 256), (4096, 128), (8192, 64)] {
            let half = mersenne(kib << 12);
            let (mut both, other) = (primes(&[(bits, &half)]), primes(&[(bits, &(&half - 2_u32))]));
            assert_eq!(both.union(&both).oversize(), None, "the same product");
            assert_eq!(both.union(&other).oversize(), None);
            let more = primes(&[(bits, &3_u32.into())]);
            assert_eq!(both.union(&other).union(&more).oversize(), Some(bits));
            assert!(both.add(&format!("{bits}:{:x}", &half - 2_u32)).is_some());
            assert_eq!(both.add(&format!("{bits}:3")), None);
        }
    }

    #[test]
    fn a_product_counts_as_the_primes_that_it_has_room_for() {
        let [a, b] = [607, 1279].map(mersenne);
        for (bits, product, count) in
            [(1214, &a, 1), (1214, &(&a * &a * &a), 3), (2048, &3_u32.into(), 1), (2558, &b, 1)]
        {
            assert_eq!(primes(&[(bits, product)]).count(), count);
        }
        assert_eq!(primes(&[(1214, &a), (2558, &b)]).count(), 2);
        assert_eq!(SharedPrimes::default().count(), 0);
    }

    #[test]
    fn the_id_is_of_the_set_of_products() {
        let numbers = [3_u32, 5, 7].map(BigUint::from);
        let [one, two, three] = numbers.each_ref().map(|it| primes(&[(2048, it)]));
        let both = one.union(&two);
        assert_eq!(both, two.union(&one));
        assert_eq!((both.count_without(&one), one.count_without(&both)), (1, 0));
        let ids = [&one, &two, &three, &both, &both.union(&three), &SharedPrimes::default()];
        let ids: BTreeSet<_> = ids.iter().map(|it| it.id()).collect();
        assert_eq!(ids.len(), 6);
        assert_ne!(primes(&[(1024, &numbers[0])]).id(), one.id());
    }
}

//! Primes that several RSA keys are known to share, as products.
//!
//! Anybody who has the product of many primes finds the one that divides a modulus by the greatest
//! common divisor. The remainder of the product modulo the modulus comes first, which takes most of
//! the time. A product is therefore for moduli of one size, and all of them take one divisor. Source:
//! badkeys 0.0.21, `sharedprimes`.

use std::collections::BTreeSet;
use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};

use num_bigint::BigUint;
use num_integer::Integer;

use super::MAX_BITS;

/// Size of the smallest modulus that is checked, in bits.
const MIN_MODULUS_BITS: u64 = 512;
/// Maximum size of the products for moduli of one size, in bits, 512 KiB. badkeys has 250 KiB for
/// 1024 bits, and 77 KiB for 2048 bits.
const MAX_PRODUCT_BITS: u64 = 1 << 22;
/// Maximum of the size of the products times the size of the moduli, in bits: 256 KiB for 2048
/// bits. It bounds the time of a check to some milliseconds.
const MAX_WORK: u64 = 1 << 32;

/// Products of primes, each for moduli of one size.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SharedPrimes {
    /// The size of the moduli in bits, and the product.
    products: BTreeSet<(u64, BigUint)>,
    /// The sizes of moduli for which products were left out, because they are too large.
    oversize: BTreeSet<u64>,
    /// A hash of all products, once there are no more to come. Peers choose no product.
    id: [u8; 8],
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
        let is_of_size = (MIN_MODULUS_BITS..=MAX_BITS).contains(&bits);
        (is_product && is_of_size && self.push(bits, product)).then_some(())
    }

    /// Adds a product. Returns whether it fits.
    fn push(&mut self, bits: u64, product: BigUint) -> bool {
        let product = (bits, product);
        if self.products.contains(&product) {
            return true;
        }
        // A small product costs a multiplication modulo the key as well.
        let cost = |product: &BigUint| product.bits().max(bits);
        let all = self.of_size(bits).map(cost).sum::<u64>() + cost(&product.1);
        let fits = all <= MAX_PRODUCT_BITS.min(MAX_WORK / bits.max(1));
        if fits {
            self.products.insert(product);
        } else {
            self.oversize.insert(bits);
        }
        fits
    }

    /// The products of all lists. A product of a later list is left out if it does not fit.
    pub(in crate::guard) fn of_all<'a>(lists: impl Iterator<Item = &'a Self>) -> Self {
        let mut all = Self::default();
        for (bits, product) in lists.flat_map(|it| &it.products) {
            all.push(*bits, product.clone());
        }
        all.id =
            BuildHasherDefault::<DefaultHasher>::default().hash_one(&all.products).to_ne_bytes();
        all
    }

    /// Whether there is no product.
    pub(in crate::guard) fn is_empty(&self) -> bool {
        self.products.is_empty()
    }

    /// Tells these products from others.
    pub(super) fn id(&self) -> [u8; 8] {
        self.id
    }

    /// The products for moduli of this size.
    fn of_size(&self, bits: u64) -> impl Iterator<Item = &BigUint> {
        let sizes = (bits, BigUint::ZERO)..(bits.saturating_add(1), BigUint::ZERO);
        self.products.range(sizes).map(|(_, product)| product)
    }

    /// The sizes of moduli for which products were left out.
    pub(in crate::guard) fn oversize(&self) -> &BTreeSet<u64> {
        &self.oversize
    }

    /// Number of primes of half the size of a modulus that the products have room for, of those
    /// that `other` does not have. It has the primes of a product that divides one of its own.
    #[must_use]
    pub fn count_without(&self, other: &Self) -> usize {
        let products = self.products.difference(&other.products);
        let missing = products
            .filter(|(bits, product)| !other.of_size(*bits).any(|it| it.is_multiple_of(product)));
        let primes = missing.map(|(bits, product)| product.bits().div_ceil(bits / 2));
        usize::try_from(primes.sum::<u64>()).unwrap_or(usize::MAX)
    }

    /// [`SharedPrimes::count_without`] any other products.
    #[must_use]
    pub fn count(&self) -> usize {
        self.count_without(&Self::default())
    }

    /// Whether a modulus has a prime of a product for its size.
    pub(super) fn has_prime_of(&self, modulus: &BigUint) -> bool {
        let one = BigUint::from(1_u32);
        let products = self.of_size(modulus.bits());
        let all = products.fold(one, |all, product| all * (product % modulus) % modulus);
        modulus.gcd(&all).bits() > 1
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

    fn of_all(lists: &[&SharedPrimes]) -> SharedPrimes {
        SharedPrimes::of_all(lists.iter().copied())
    }

    #[test]
    fn a_modulus_with_a_prime_of_a_product_for_its_size_is_found() {
        let [a, b, c] = [521, 607, 1279].map(mersenne);
        let modulus = &a * &b;
        for product in [&a, &b, &modulus, &(&a * &c)] {
            let product = primes(&[(1128, product)]);
            let other = primes(&[(1128, &c)]);
            assert!(product.has_prime_of(&modulus) && !other.has_prime_of(&modulus));
            assert!(of_all(&[&product, &other]).has_prime_of(&modulus));
            assert!(of_all(&[&other, &product]).has_prime_of(&modulus));
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
            assert!(of_all(&[&both, &both]).oversize().is_empty(), "the same product");
            assert!(of_all(&[&both, &other]).oversize().is_empty());
            let more = primes(&[(bits, &3_u32.into())]);
            let all = of_all(&[&both, &other, &more]);
            assert_eq!(Vec::from_iter(all.oversize()), [&bits]);
            assert_eq!(
                all.products,
                of_all(&[&both, &other]).products,
                "the later one is left out"
            );
            assert!(both.add(&format!("{bits}:{:x}", &half - 2_u32)).is_some());
            assert_eq!(both.add(&format!("{bits}:3")), None);
        }
    }

    /// Each product takes a multiplication, however small it is.
    #[test]
    fn the_number_of_products_for_one_size_is_bounded() {
        let mut products = SharedPrimes::default();
        let added = |number: &u64| products.add(&format!("2048:{:x}", 2 * number + 3)).is_some();
        assert_eq!((0..4096).take_while(added).count(), 1024);
        assert!(products.add("1024:3").is_some(), "another size");
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
        let lists = numbers.each_ref().map(|it| primes(&[(2048, it)]));
        let [one, two, three] = &lists;
        let both = of_all(&[one, two]);
        assert_eq!(both, of_all(&[two, one]));
        assert_eq!((both.count_without(one), one.count_without(&both)), (1, 0));
        let sets = [&[one][..], &[two], &[three], &[one, two], &[one, two, three], &[]];
        let ids: BTreeSet<_> = sets.iter().map(|it| of_all(it).id()).collect();
        assert_eq!(ids.len(), 6);
        assert_ne!(of_all(&[&primes(&[(1024, &numbers[0])])]).id(), of_all(&[one]).id());
    }
}

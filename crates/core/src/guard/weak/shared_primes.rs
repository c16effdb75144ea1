//! Primes that several RSA keys are known to share, as products.
//!
//! Anybody who has the product of many primes finds the one that divides a modulus by the greatest
//! common divisor. The remainder of the product modulo the modulus comes first, which takes most of
//! the time. A product is therefore for moduli of one size. Source: badkeys 0.0.21, `sharedprimes`.

use num_bigint::BigUint;
use num_integer::Integer;

use super::MAX_MODULUS_BITS;
use crate::spki::{Fingerprint, KeyDigest};

/// Size of the smallest modulus that is checked, in bits.
const MIN_MODULUS_BITS: u64 = 512;
/// Maximum size of the products for moduli of one size, in bits, 256 KiB. badkeys has 250 KiB for
/// 1024 bits, and 77 KiB for 2048 bits. The bound is also one of the time of a check.
const MAX_PRODUCT_BITS: u64 = 1 << 21;

/// Products of primes, each for moduli of one size.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(in crate::guard) struct SharedPrimes {
    /// The size of the moduli in bits, and the product.
    products: Vec<(u64, BigUint)>,
    /// Digest of the products, under which results are kept.
    id: [u8; 32],
}

impl SharedPrimes {
    /// Adds the product of `text`, the size of the moduli in bits, a colon, and the product in hex.
    /// Returns `None` if it is no odd number above 1, or if the products become too large.
    pub(in crate::guard) fn add(&mut self, text: &str) -> Option<()> {
        let (bits, product) = text.split_once(':')?;
        let bits = bits
            .parse()
            .ok()
            .filter(|bits| (MIN_MODULUS_BITS..=MAX_MODULUS_BITS).contains(bits))?;
        let product = BigUint::parse_bytes(product.as_bytes(), 16)?;
        let is_product = product.bit(0) && product.bits() > 1;
        let known = self.products.iter().filter(|(of, _)| *of == bits).map(|(_, it)| it.bits());
        let is_small = known.sum::<u64>() + product.bits() <= MAX_PRODUCT_BITS;
        (is_product && is_small).then(|| self.push(bits, product))
    }

    /// The products of both.
    pub(in crate::guard) fn union(mut self, other: &Self) -> Self {
        other.products.iter().cloned().for_each(|(bits, product)| self.push(bits, product));
        self
    }

    fn push(&mut self, bits: u64, product: BigUint) {
        let content = [&bits.to_be_bytes()[..], &product.to_bytes_be()].concat();
        self.id = KeyDigest::from(self.result_of(&Fingerprint::of(&content))).sha256();
        self.products.push((bits, product));
    }

    /// Number of products.
    pub(in crate::guard) fn len(&self) -> usize {
        self.products.len()
    }

    /// The name of the result for a key: no other key and no other products have it.
    pub(super) fn result_of(&self, key: &Fingerprint) -> Fingerprint {
        let mut both = [0; 64];
        let (id, of_key) = both.split_at_mut(32);
        id.copy_from_slice(&self.id);
        of_key.copy_from_slice(&KeyDigest::from(*key).sha256());
        Fingerprint::of(&both)
    }

    /// Whether `modulus`, big-endian, has a prime of a product for its size.
    pub(super) fn has_prime_of(&self, modulus: &[u8]) -> bool {
        let modulus = BigUint::from_bytes_be(modulus);
        let mut products = self.products.iter().filter(|(bits, _)| *bits == modulus.bits());
        products.any(|(_, product)| modulus.gcd(&(product % &modulus)).bits() > 1)
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
        let has_prime =
            |primes: &SharedPrimes, of: &BigUint| primes.has_prime_of(&of.to_bytes_be());
        for product in [&a, &b, &modulus, &(&a * &c)] {
            assert!(has_prime(&primes(&[(1128, product)]), &modulus));
            assert!(has_prime(&primes(&[(1128, &c), (1128, product)]), &modulus));
            assert!(has_prime(&primes(&[(1128, &c)]).union(&primes(&[(1128, product)])), &modulus));
            assert!(!has_prime(&primes(&[(1127, product), (1129, product)]), &modulus), "the size");
        }
        assert!(!has_prime(&primes(&[(1128, &c)]), &modulus));
        assert!(!SharedPrimes::default().has_prime_of(&[]));
    }

    #[test]
    fn a_line_that_is_no_product_is_rejected() {
        let mut primes = SharedPrimes::default();
        let large = format!("2048:{}", mersenne(1 << 20).to_str_radix(16));
        let too_large = format!("1024:{}", mersenne((1 << 21) + 1).to_str_radix(16));
        for wrong in [
            "", "3", "2048:", "2048:0", "2048:1", "2048:4", "511:7", "8193:7", "x:7", "2048:g",
            &too_large,
        ] {
            assert_eq!(primes.add(wrong), None, "{wrong:.20}");
        }
        assert_eq!(primes, SharedPrimes::default());
        let ids = [&large, &large, "512:7", "8192:7"].map(|line| {
            primes.add(line).unwrap();
            primes.result_of(&Fingerprint::of(b"key"))
        });
        assert_eq!(primes.add("2048:7"), None, "full");
        let mut distinct = ids.to_vec();
        distinct.sort();
        distinct.dedup();
        assert_eq!(distinct.len(), ids.len(), "each product changes the name of the results");
    }
}

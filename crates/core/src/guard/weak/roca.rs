//! ROCA: primes of the form k·M + (65537^a mod M), where M is a product of the first primes.
//!
//! A modulus of such primes is a power of 65537 modulo M. For keys of 512 to 960 bits M is the
//! product of the first 39 primes, which divides the M of longer keys. A random modulus has this
//! fingerprint with a probability of 2^-154 or less. Source: Nemec, Sys, Svenda, Klinec, Matyas,
//! "The Return of Coppersmith's Attack", CCS 2017, section 2.3.

use std::sync::LazyLock;

use num_bigint::BigUint;
use num_integer::Integer;

const GENERATOR: u32 = 65_537;
/// The odd primes of M: those after 2 among the first 39.
const PRIMES: [u32; 38] = [
    3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37, 41, 43, 47, 53, 59, 61, 67, 71, 73, 79, 83, 89, 97,
    101, 103, 107, 109, 113, 127, 131, 137, 139, 149, 151, 157, 163, 167,
];

/// The powers of the generator modulo one prime.
struct Subgroup {
    prime: u32,
    /// The powers, from the exponent 0 on. Their number is the order of the generator.
    powers: Vec<u32>,
}

impl Subgroup {
    fn new(prime: u32) -> Self {
        let mut powers = vec![1];
        let mut power = GENERATOR % prime;
        while power != 1 {
            powers.push(power);
            power = power * GENERATOR % prime;
        }
        Self { prime, powers }
    }

    fn order(&self) -> usize {
        self.powers.len()
    }

    /// The discrete logarithm of `modulus`, less than the order; `None` if it is no power.
    fn logarithm(&self, modulus: &BigUint) -> Option<usize> {
        let remainder = (modulus % self.prime).iter_u32_digits().next().unwrap_or_default();
        self.powers.iter().position(|power| *power == remainder)
    }
}

static SUBGROUPS: LazyLock<Vec<Subgroup>> =
    LazyLock::new(|| PRIMES.into_iter().map(Subgroup::new).collect());

/// Whether `modulus` is a power of 65537 modulo M.
///
/// It is one if it is a power modulo each prime, and if one exponent has all of the logarithms as
/// its remainders. By the Chinese remainder theorem it exists if they agree in pairs.
pub(super) fn has_fingerprint(modulus: &BigUint) -> bool {
    if !modulus.bit(0) {
        return false;
    }
    let mut known: Vec<(usize, usize)> = Vec::new();
    SUBGROUPS.iter().all(|subgroup| {
        let Some(logarithm) = subgroup.logarithm(modulus) else { return false };
        let order = subgroup.order();
        let agrees = known.iter().all(|(other, of_other)| {
            let common = order.gcd(of_other);
            logarithm % common == other % common
        });
        known.push((logarithm, order));
        agrees
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn product() -> BigUint {
        PRIMES.iter().fold(BigUint::from(2_u32), |product, prime| product * prime)
    }

    #[test]
    fn the_order_of_the_generator_is_that_of_the_source() {
        let order = SUBGROUPS
            .iter()
            .map(Subgroup::order)
            .fold(1, |multiple, order| multiple / multiple.gcd(&order) * order);
        assert_eq!(order, 2_454_106_387_091_158_800);
        assert_eq!(product().bits(), 220);
    }

    #[test]
    fn every_power_has_the_fingerprint_and_its_neighbours_have_not() {
        let product = product();
        let mut exponent = 1_u64;
        for _ in 0..200 {
            exponent = exponent.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let power = BigUint::from(GENERATOR).modpow(&exponent.into(), &product);
            assert!(has_fingerprint(&power), "{exponent}");
            assert!(has_fingerprint(&(&power + (&product << 1829_u32))), "{exponent}");
            assert!(!has_fingerprint(&(&power + 2_u32)), "{exponent}");
        }
    }

    #[test]
    fn a_modulus_that_is_a_power_modulo_each_prime_needs_one_exponent() {
        // 65537 generates the residues of 5 and of 7. The exponents 1 and 2 differ in parity.
        let subgroups = [5, 7].map(Subgroup::new);
        let number = (0..35_u32).map(BigUint::from).find(|number| {
            subgroups[0].logarithm(number) == Some(1) && subgroups[1].logarithm(number) == Some(2)
        });
        assert!(number.is_some());
        // The product of all primes but 5 and 7, times its inverse, is 1 modulo 5 and 7 alone.
        let product = product();
        let rest = &product / 35_u32;
        let target = number.unwrap();
        let step = (0..35_u32).map(|factor| BigUint::from(1_u32) + &rest * factor);
        let mixed = { step }.find(|it| it % 35_u32 == target).unwrap();
        assert!(SUBGROUPS.iter().all(|subgroup| subgroup.logarithm(&mixed).is_some()));
        assert!(!has_fingerprint(&mixed));
    }
}

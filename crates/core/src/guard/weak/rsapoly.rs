//! Sparse primes: polynomials in a power of two with small coefficients.
//!
//! A generator that fills a part of each limb makes such primes. The coefficients of their product
//! are small as well, so no carry crosses a limb. Factoring the polynomial factors the modulus,
//! which is easy. Limbs of 32 and of 128 bits were found in certificates.
//!
//! The mark is the share of set bits, in the whole modulus and in its lower half. A vanity modulus,
//! whose upper half is chosen, is not sparse in its lower half. Source: badkeys 0.0.21,
//! `rsapoly`, by Böck, 2026.

use num_bigint::BigUint;

use super::small_factors;

/// Share of set bits from which a number is not sparse, in percent. A random modulus of 1024 bits
/// has a smaller share with a probability of 2^-34, one of 2048 bits of 2^-64.
const DENSE_PERCENT: u64 = 40;
/// Size of the smallest modulus that is checked, in bits. Random ones below are sparse too often.
const MIN_BITS: u64 = 500;

/// Whether the modulus is sparse. A small factor, and not its primes, may make a modulus sparse.
pub(super) fn has_sparse_primes(modulus: &BigUint) -> bool {
    let bits = modulus.bits();
    let lower_half = || modulus % (BigUint::from(1_u32) << (bits / 2));
    bits >= MIN_BITS
        && is_sparse(modulus)
        && is_sparse(&lower_half())
        && !small_factors::has_one(modulus)
}

fn is_sparse(number: &BigUint) -> bool {
    number.count_ones() * 100 < number.bits() * DENSE_PERCENT
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A number of this size without small factors, with `set` set bits, half of them in each half.
    fn number(bits: u64, set: u64) -> BigUint {
        let mut state = 1_u64;
        let mut with_bits = || {
            let mut number = (BigUint::from(1_u32) << (bits - 1)) + 1_u32;
            while number.count_ones() < set {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                let half = number.count_ones() % 2 * (bits / 2);
                number.set_bit(half + (state >> 33) % (bits / 2), true);
            }
            number
        };
        let mut numbers = (0..1000).map(|_| with_bits());
        numbers.find(|it| !small_factors::has_one(it)).unwrap()
    }

    #[test]
    fn the_share_of_set_bits_decides() {
        for bits in [500, 1024, 2048, 8192] {
            assert!(has_sparse_primes(&number(bits, bits * 19 / 50)), "38 percent of {bits}");
            assert!(!has_sparse_primes(&number(bits, bits * 21 / 50)), "42 percent of {bits}");
        }
        assert!(!has_sparse_primes(&number(498, 100)), "too small");
        assert!(!has_sparse_primes(&(number(2048, 100) * 3_u32)), "a small factor");
        // Half of the bits of the lower half are set, as in a vanity modulus.
        let lower = BigUint::from_bytes_be(&[0x55; 64]);
        let vanity = (0_u32..).map(|added| ((number(512, 20) + added) << 512) + &lower);
        let vanity = { vanity }.find(|it| !small_factors::has_one(it)).unwrap();
        assert!(is_sparse(&vanity) && !has_sparse_primes(&vanity));
    }
}

//! Small private exponents, by Wiener's attack: d below n^(1/4) / 3, up to the common factor of
//! p − 1 and q − 1.
//!
//! Source: Wiener, "Cryptanalysis of Short RSA Secret Exponents", IEEE Transactions on Information
//! Theory 36, 1990, section IV. With e·d·g = k·(p − 1)·(q − 1) + g, the fraction k / (d·g) is among
//! the convergents of e / n, or between two of them. Each candidate gives (p − 1)·(q − 1) as
//! ⌊e·d·g / k⌋, and with it p + q = n + 1 − (p − 1)·(q − 1). The candidate is right if
//! (p + q)² / 4 − n is a square.
//!
//! A candidate h / c above e / n has the remainder r = h·n − c·e, which Euclid's algorithm computes
//! anyway. So ⌊e·c / h⌋ = n − ⌈r / h⌉, and the candidate for p + q is 1 + ⌈r / h⌉.

use num_bigint::BigUint;

use super::square::is_square;

/// Maximum size of a public exponent for which d cannot be small, in bits: e·d exceeds
/// (p − 1)·(q − 1).
const SMALL_EXPONENT_BITS: u64 = 32;

/// A fraction h / c of the search: its remainder |c·e − h·n|, and h.
type Fraction = (BigUint, BigUint);

/// Whether the attack finds the private exponent.
pub(super) fn has_small_private_exponent(modulus: &BigUint, exponent: &BigUint) -> bool {
    let mut before: Fraction = (exponent.clone(), BigUint::ZERO);
    let mut convergent: Fraction = (modulus.clone(), 1_u32.into());
    let mut is_above = false; // the first convergent is below e / n
    // Each further candidate for p + q is less than 2·√n once the remainder is small. Remainders only
    // fall, and numerators only rise.
    let may_have_factors = |(remainder, numerator): &Fraction| {
        remainder.bits() > 0 && remainder.bits() + 2 >= numerator.bits() + modulus.bits() / 2
    };
    while exponent.bits() > SMALL_EXPONENT_BITS && may_have_factors(&convergent) {
        let quotient = &before.0 / &convergent.0;
        let remainder = &before.0 - &quotient * &convergent.0;
        let numerator = quotient * &convergent.1 + before.1;
        before = std::mem::replace(&mut convergent, (remainder, numerator));
        let (remainder, numerator) = &convergent;
        let is_found = if is_above {
            has_factors(modulus, remainder, numerator)
        } else {
            // The next fraction above: its last quotient is one more.
            has_factors(modulus, &(&before.0 - remainder), &(numerator + &before.1))
        };
        if is_found {
            return true;
        }
        is_above = !is_above;
    }
    false
}

/// Whether the candidate with this remainder and numerator gives the factors of the modulus.
fn has_factors(modulus: &BigUint, remainder: &BigUint, numerator: &BigUint) -> bool {
    let sum = (remainder + numerator - 1_u32) / numerator + 1_u32;
    if sum.bit(0) {
        return false;
    }
    let half: BigUint = sum >> 1_u32;
    let square = &half * &half;
    square > *modulus && is_square(&(square - modulus))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mersenne(exponent: u32) -> BigUint {
        (BigUint::from(1_u32) << exponent) - 1_u32
    }

    /// Modulus and public exponent of a key with the first private exponent from `smallest` on.
    fn key(primes: [u32; 2], smallest: &BigUint) -> (BigUint, BigUint) {
        let [p, q] = primes.map(mersenne);
        let totient = (&p - 1_u32) * (&q - 1_u32);
        let mut private = smallest.clone();
        loop {
            if let Some(exponent) = private.modinv(&totient) {
                return (p * q, exponent);
            }
            private += 1_u32;
        }
    }

    #[test]
    fn a_small_private_exponent_is_found_and_a_large_one_is_not() {
        for primes in [[521, 607], [607, 1279], [2203, 2281]] {
            // The attack succeeds while k·d·g < n / (3/2 · (p + q)), about the smaller prime.
            let limit = primes[0] / 2 - 8;
            for bits in [16, 64, limit / 2, limit - 1, limit] {
                let (modulus, exponent) = key(primes, &(BigUint::from(1_u32) << bits));
                assert!(has_small_private_exponent(&modulus, &exponent), "{primes:?} {bits}");
            }
            for bits in [limit + 64, primes[1]] {
                let (modulus, exponent) = key(primes, &(BigUint::from(1_u32) << bits));
                assert!(!has_small_private_exponent(&modulus, &exponent), "{primes:?} {bits}");
            }
        }
    }

    #[test]
    fn every_exponent_ends_the_search() {
        let modulus = mersenne(521) * mersenne(607);
        let multiples = [1_u32, 2, 3, 65_537].map(|factor| &modulus * factor);
        let others = [0_u32, 1, 3, 65_537, u32::MAX].map(BigUint::from);
        for exponent in multiples.iter().chain(&others) {
            for exponent in [exponent.clone(), exponent + 1_u32, exponent * 2_u32] {
                assert!(!has_small_private_exponent(&modulus, &exponent), "{exponent}");
                assert!(!has_small_private_exponent(&exponent, &modulus) || exponent < modulus);
            }
        }
        for (modulus, exponent) in [(0_u32, 0_u32), (0, 7), (1, 7), (7, 1)] {
            let exponent = BigUint::from(exponent) << 100;
            assert!(!has_small_private_exponent(&modulus.into(), &exponent));
        }
    }
}

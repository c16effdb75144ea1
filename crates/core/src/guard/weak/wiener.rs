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

/// Whether the attack finds the private exponent.
pub(super) fn has_small_private_exponent(modulus: &BigUint, exponent: &BigUint) -> bool {
    exponent.bits() > SMALL_EXPONENT_BITS && Convergents::new(modulus, exponent).any_factors()
}

/// The convergents of e / n, by their numerators and remainders.
struct Convergents<'a> {
    modulus: &'a BigUint,
    /// The remainders |c·e − h·n| of this convergent and of the one before.
    remainder: BigUint,
    remainder_before: BigUint,
    numerator: BigUint,
    numerator_before: BigUint,
}

impl<'a> Convergents<'a> {
    fn new(modulus: &'a BigUint, exponent: &BigUint) -> Self {
        Self {
            modulus,
            remainder: modulus.clone(),
            remainder_before: exponent.clone(),
            numerator: 1_u32.into(),
            numerator_before: 0_u32.into(),
        }
    }

    fn any_factors(mut self) -> bool {
        let mut is_above = false; // the first convergent is below e / n
        while self.remainder.bits() > 0 && !self.is_exhausted() {
            self.advance();
            let factors = if is_above {
                self.factors(&self.remainder, &self.numerator)
            } else {
                // The next fraction above: its last quotient is one more.
                let remainder = &self.remainder_before - &self.remainder;
                self.factors(&remainder, &(&self.numerator + &self.numerator_before))
            };
            if factors {
                return true;
            }
            is_above = !is_above;
        }
        false
    }

    fn advance(&mut self) {
        let quotient = &self.remainder_before / &self.remainder;
        let remainder = &self.remainder_before - &quotient * &self.remainder;
        self.remainder_before = std::mem::replace(&mut self.remainder, remainder);
        let numerator = &quotient * &self.numerator + &self.numerator_before;
        self.numerator_before = std::mem::replace(&mut self.numerator, numerator);
    }

    /// Whether each further candidate for p + q is less than 2·√n. Remainders only fall, and
    /// numerators only rise.
    fn is_exhausted(&self) -> bool {
        self.remainder.bits() + 2 < self.numerator.bits() + self.modulus.bits() / 2
    }

    /// Whether the candidate with this remainder and numerator gives the factors of the modulus.
    fn factors(&self, remainder: &BigUint, numerator: &BigUint) -> bool {
        let sum = (remainder + numerator - 1_u32) / numerator + 1_u32;
        if sum.bit(0) {
            return false;
        }
        let half: BigUint = sum >> 1_u32;
        let square = &half * &half;
        square > *self.modulus && is_square(&(square - self.modulus))
    }
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

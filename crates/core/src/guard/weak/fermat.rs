//! Close primes, by Fermat's factorisation.
//!
//! A modulus n = p·q with odd p and q is a² − b² for a = (p + q) / 2 and b = (p − q) / 2. If p and
//! q are close, a is a little above √n. Source: Böck, "Fermat Factorization in the Wild", 2023
//! (CVE-2022-26320).

use num_bigint::BigUint;

use super::square::is_square;

/// Number of values of a that are tried, above the integer square root: as many as Boulder, the CA
/// of Let's Encrypt, tries.
const ROUNDS: u32 = 110;

/// Whether a² − n is a square for one of the first values of a.
pub(super) fn has_close_primes(modulus: &BigUint) -> bool {
    let mut a = (modulus - 1_u32).sqrt() + 1_u32; // ⌈√n⌉
    let mut difference = &a * &a - modulus;
    (0..ROUNDS).any(|_| {
        let is_found = is_square(&difference);
        difference += (&a << 1_u32) + 1_u32; // (a + 1)² − a²
        a += 1_u32;
        is_found
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A modulus that the method of Fermat factors in this round, counted from 1.
    fn modulus(round: u32) -> BigUint {
        // n = a² − b² with a = ⌊√n⌋ + round: b² is between (round − 1)·2a and round·2a.
        let a = (BigUint::from(1_u32) << 1023) + 1_u32;
        let square: BigUint = (&a << 1_u32) * round - &a;
        let b = square.sqrt();
        &a * &a - &b * &b
    }

    #[test]
    fn close_primes_are_found_within_110_rounds_and_no_later() {
        for round in [1, 2, 50, 100, 109, 110] {
            assert!(has_close_primes(&modulus(round)), "{round}");
        }
        for round in [111, 112, 1000] {
            assert!(!has_close_primes(&modulus(round)), "{round}");
        }
    }

    #[test]
    fn a_square_is_found() {
        let prime = (BigUint::from(1_u32) << 521) - 1_u32;
        assert!(has_close_primes(&(&prime * &prime)));
    }
}

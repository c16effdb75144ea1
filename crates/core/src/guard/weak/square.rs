//! Perfect squares, cubes and fifth powers.

use num_bigint::BigUint;

/// 63 · 65 · 11, the modulus of the second sieve. With 64, one in 119 numbers passes both.
/// Source: Cohen, "A Course in Computational Algebraic Number Theory", algorithm 1.7.3.
const SIEVE: u32 = 45_045;

/// Whether `number` is a perfect square. Most others are excluded without a square root.
pub(super) fn is_square(number: &BigUint) -> bool {
    let low = |number: &BigUint| number.iter_u32_digits().next().unwrap_or_default();
    let passes_sieve =
        |remainder| [63, 65, 11].into_iter().all(|it| is_residue(remainder % it, it));
    is_residue(low(number) % 64, 64)
        && passes_sieve(low(&(number % SIEVE)))
        && number.sqrt().pow(2) == *number
}

/// Whether `number` is a square, a cube or a fifth power. Powers with the exponents 4 and 6 are
/// squares.
pub(super) fn is_power(number: &BigUint) -> bool {
    is_square(number)
        || is_power_of(3, [7, 13, 19, 31], number)
        || is_power_of(5, [11, 31, 41, 61], number)
}

/// Whether `number` is a power with this prime exponent, which divides p − 1 for each of `primes`.
/// Most others are excluded without a root: modulo p, one number in `exponent` is such a power.
fn is_power_of(exponent: u32, primes: [u32; 4], number: &BigUint) -> bool {
    let may_be_power = |prime: u32| {
        (number % prime).modpow(&((prime - 1) / exponent).into(), &prime.into()) <= 1_u32.into()
    };
    primes.into_iter().all(may_be_power) && number.nth_root(exponent).pow(exponent) == *number
}

/// Whether a square has the remainder `remainder` modulo `modulus`, which is small.
fn is_residue(remainder: u32, modulus: u32) -> bool {
    (0..=modulus / 2).any(|root| root * root % modulus == remainder)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cubes_and_fifth_powers_are_found_and_their_neighbours_are_not() {
        for root in (0..2000_u32).map(BigUint::from).chain([(BigUint::from(1_u32) << 521) - 1_u32])
        {
            for exponent in [2, 3, 4, 5, 6, 10] {
                let power = root.pow(exponent);
                assert!(is_power(&power), "{root}^{exponent}");
                if power > 10_u32.into() {
                    assert!(!is_power(&(&power + 1_u32)), "{root}^{exponent} + 1");
                }
            }
        }
        let powers = (0..=300_u32).flat_map(|root| [2, 3, 5].map(|k| u64::from(root).pow(k)));
        let powers: std::collections::HashSet<_> = powers.collect();
        for number in 0..90_000_u64 {
            assert_eq!(is_power(&number.into()), powers.contains(&number), "{number}");
        }
    }

    #[test]
    fn squares_are_found_and_no_other_numbers() {
        let squares: Vec<_> = (0..300_u32).map(|root| root * root).collect();
        for number in 0..90_000_u32 {
            let expected = squares.binary_search(&number).is_ok();
            assert_eq!(is_square(&number.into()), expected, "{number}");
        }
        let root = (BigUint::from(1_u32) << 1024) + 12_345_u32;
        let square = &root * &root;
        assert!(is_square(&square));
        assert!(!is_square(&(&square - 1_u32)) && !is_square(&(&square + 1_u32)));
    }
}

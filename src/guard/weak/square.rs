//! Perfect squares.

use num_bigint::BigUint;

/// 63 · 65 · 11, the modulus of the second sieve. With 64, one in 119 numbers passes both.
/// Source: Cohen, "A Course in Computational Algebraic Number Theory", algorithm 1.7.3.
const SIEVE: u32 = 45_045;

/// Whether `number` is a perfect square. Most others are excluded without a square root.
pub(super) fn is_square(number: &BigUint) -> bool {
    may_be_square_modulo_64(number) && may_be_square_by_sieve(number) && {
        let root = number.sqrt();
        &root * &root == *number
    }
}

fn may_be_square_modulo_64(number: &BigUint) -> bool {
    let low = number.iter_u32_digits().next().unwrap_or_default();
    is_residue(low % 64, 64)
}

fn may_be_square_by_sieve(number: &BigUint) -> bool {
    let remainder = (number % SIEVE).iter_u32_digits().next().unwrap_or_default();
    [63, 65, 11].into_iter().all(|modulus| is_residue(remainder % modulus, modulus))
}

/// Whether a square has the remainder `remainder` modulo `modulus`, which is small.
fn is_residue(remainder: u32, modulus: u32) -> bool {
    (0..=modulus / 2).any(|root| root * root % modulus == remainder)
}

#[cfg(test)]
mod tests {
    use super::*;

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

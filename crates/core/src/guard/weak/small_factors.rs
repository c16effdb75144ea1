//! Small prime factors, up to 65537. A modulus that has one is corrupt, or was generated so.
//!
//! The limit is the same as in badkeys. Source: <https://badkeys.info/docs/smallfactors.html>

use std::sync::LazyLock;

use num_bigint::BigUint;

/// The largest prime that is tried.
const MAX_PRIME: u32 = 65_537;
/// Number of words whose product is divided by at once. Sixteen is the fastest for 2048 bits.
const WORDS: usize = 16;
/// Number of primes whose product fits into a word. The last word, with 65537, has three.
const PRIMES_PER_WORD: usize = 4;

/// Some primes, and their product.
struct PrimeWord {
    product: u64,
    primes: Vec<u32>,
}

/// Words with their product: a division of large numbers, then divisions of its small remainder.
struct Batch {
    product: BigUint,
    words: Vec<PrimeWord>,
}

static BATCHES: LazyLock<Vec<Batch>> = LazyLock::new(batches);

/// Whether a prime of at most 65537 divides `modulus`.
pub(super) fn has_one(modulus: &BigUint) -> bool {
    BATCHES.iter().any(|batch| {
        let remainder = modulus % &batch.product;
        batch.words.iter().any(|PrimeWord { product, primes }| {
            let remainder = (&remainder % product).iter_u64_digits().next().unwrap_or_default();
            primes.iter().any(|prime| remainder.is_multiple_of(u64::from(*prime)))
        })
    })
}

fn batches() -> Vec<Batch> {
    let primes: Vec<_> = primes().collect();
    let word = |primes: &[u32]| PrimeWord {
        product: primes.iter().copied().map(u64::from).product(),
        primes: primes.to_vec(),
    };
    let batches = primes.chunks(WORDS * PRIMES_PER_WORD).map(|primes| {
        let words: Vec<_> = primes.chunks(PRIMES_PER_WORD).map(word).collect();
        let product = words.iter().map(|word| BigUint::from(word.product)).product();
        Batch { product, words }
    });
    batches.collect()
}

/// The primes up to [`MAX_PRIME`], in order.
fn primes() -> impl Iterator<Item = u32> {
    let divisors = |number: u32| (2..).take_while(move |it| it * it <= number);
    (2..=MAX_PRIME).filter(move |number| divisors(*number).all(|it| number % it != 0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_prime_up_to_the_limit_is_found() {
        let large = (BigUint::from(1_u32) << 2203) - 1_u32; // a Mersenne prime
        assert!(!has_one(&large));
        let primes: Vec<_> = primes().collect();
        assert_eq!((primes.len(), primes.last()), (6543, Some(&65_537)), "π(65537)");
        let words: usize = BATCHES.iter().flat_map(|it| &it.words).map(|it| it.primes.len()).sum();
        assert_eq!(words, primes.len());
        for prime in primes.iter().take(100).chain(primes.iter().rev().take(100)) {
            assert!(has_one(&(&large * prime)), "{prime}");
            assert!(has_one(&(*prime).into()), "{prime} itself");
        }
        assert!(!has_one(&(&large * 65_539_u32)), "the next prime");
    }
}

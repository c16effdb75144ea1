//! Small prime factors, up to 65537. A modulus that has one is corrupt, or was generated so.
//!
//! The limit is the same as in badkeys. Source: <https://badkeys.info/docs/smallfactors.html>

use std::sync::LazyLock;

use num_bigint::BigUint;

/// The largest prime that is tried.
const MAX_PRIME: u32 = 65_537;
/// Number of words whose product is divided by at once. Sixteen is the fastest for 2048 bits.
const WORDS: usize = 16;

/// Primes whose product fits into a word.
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
    let mut words: Vec<PrimeWord> = Vec::new();
    for prime in primes() {
        let last = words.last_mut();
        match last.and_then(|word| Some((word.product.checked_mul(prime.into())?, word))) {
            Some((product, word)) => {
                word.product = product;
                word.primes.push(prime);
            }
            None => words.push(PrimeWord { product: prime.into(), primes: vec![prime] }),
        }
    }
    let mut batches = Vec::new();
    let mut words = words.into_iter().peekable();
    while words.peek().is_some() {
        let words: Vec<_> = words.by_ref().take(WORDS).collect();
        let product = words.iter().map(|word| BigUint::from(word.product)).product();
        batches.push(Batch { product, words });
    }
    batches
}

/// The primes up to [`MAX_PRIME`], in order.
fn primes() -> impl Iterator<Item = u32> {
    let mut known: Vec<u32> = Vec::new();
    (2..=MAX_PRIME).filter(move |number| {
        let mut smaller = known.iter().take_while(|prime| *prime * *prime <= *number);
        let is_prime = smaller.all(|prime| number % prime != 0);
        if is_prime && *number < 1 << 9 {
            known.push(*number); // up to the square root of the largest
        }
        is_prime
    })
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

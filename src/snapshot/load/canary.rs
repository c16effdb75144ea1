//! Keys that must be in a filter before it is believed, and random ones that must not.

use std::io;
use std::path::{Path, PathBuf};

use aws_lc_rs::rand;

use super::{FilterRejection, read_bounded};
use crate::guard::KeyEncodings;
use crate::pkbf::{Filter, KeyHash};
use crate::spki::{self, Fingerprint};

/// The largest file of canaries that is read, in bytes.
const MAX_SIZE: u64 = 1 << 20;
/// Random keys that are looked up.
const RANDOM_KEYS: usize = 512;
const RANDOM_KEY_SIZE: usize = 16;
/// A good filter is refused by chance less than once in so many loads.
const CHANCE: f64 = 1e-12;

/// Every key in the files at `paths` must be in `filter`, in one of its encodings.
pub(super) fn must_hit(filter: &Filter, paths: &[PathBuf]) -> Result<(), FilterRejection> {
    for path in paths {
        for spki in keys_in(path)? {
            if !KeyEncodings::from_spki(&spki).any_in(filter) {
                let fingerprint = Fingerprint::of(&spki).to_string();
                return Err(FilterRejection::CanaryMissing { path: path.clone(), fingerprint });
            }
        }
    }
    Ok(())
}

/// Random keys must miss about as often as the header's numbers say.
pub(super) fn random_must_miss(filter: &Filter) -> Result<(), FilterRejection> {
    let mut keys = [[0; RANDOM_KEY_SIZE]; RANDOM_KEYS];
    let random = rand::fill(keys.as_flattened_mut());
    random
        .map_err(|_| io::Error::other("no random numbers"))
        .map_err(crate::pkbf::FilterError::from)?;
    let hits = keys.iter().filter(|key| filter.contains_hash(KeyHash::of(*key))).count();
    let rate = filter.false_positive_bound();
    if chance_of(hits, RANDOM_KEYS, rate) < CHANCE {
        return Err(FilterRejection::RandomHits { hits, tried: RANDOM_KEYS, rate });
    }
    Ok(())
}

/// The probability of at least `hits` successes in `trials` of probability `rate`.
fn chance_of(hits: usize, trials: usize, rate: f64) -> f64 {
    if hits == 0 || rate >= 1.0 {
        return 1.0;
    }
    let (hit, miss) = (rate.ln(), (-rate).ln_1p()); // ln 0 is −∞, and e^−∞ is 0: as it should be
    let mut ways = 0.0; // the logarithm of the number of ways to have so many
    let mut sum = 0.0;
    for count in 0..=trials {
        if count > 0 {
            ways += ((trials + 1 - count) as f64 / count as f64).ln();
        }
        if count >= hits {
            sum += (ways + count as f64 * hit + (trials - count) as f64 * miss).exp();
        }
    }
    sum
}

fn keys_in(path: &Path) -> Result<Vec<Vec<u8>>, FilterRejection> {
    let unusable = |problem| FilterRejection::CanaryFile { path: path.to_owned(), problem };
    let content = read_bounded(path, MAX_SIZE).map_err(|error| unusable(error.to_string()))?;
    let findings = spki::keys_in(&content).into_iter().map(|finding| {
        finding.key.map_err(|error| match finding.line {
            Some(line) => unusable(format!("line {line}: {error}")),
            None => unusable(error.to_string()),
        })
    });
    findings.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pkbf::Parameters;

    #[test]
    fn the_chance_of_so_many_hits_is_that_of_the_binomial_distribution() {
        let near = |found: f64, expected: f64| assert!((found - expected).abs() < 1e-12, "{found}");
        near(chance_of(0, 512, 0.3), 1.0);
        near(chance_of(1, 512, 0.0), 0.0);
        near(chance_of(2, 2, 0.5), 0.25);
        near(chance_of(1, 2, 0.5), 0.75);
        near(chance_of(1, 3, 0.1), 1.0 - 0.9_f64.powi(3));
        near(chance_of(512, 512, 1.0), 1.0);
        assert!(chance_of(300, 512, 0.5) > 1e-6 && chance_of(500, 512, 0.5) < 1e-12);
    }

    #[test]
    fn a_good_filter_passes_at_every_rate() {
        for (hash_count, hash_length, entries) in
            [(20, 16, 2000), (1, 3, 7), (2, 4, 3), (2, 4, 8), (3, 14, 4000), (255, 10, 9)]
        {
            let mut filter =
                Filter::new(Parameters::new(hash_count, hash_length).unwrap()).unwrap();
            for key in 0_u64..entries {
                filter.insert(&key.to_be_bytes());
            }
            random_must_miss(&filter).unwrap();
        }
    }

    #[test]
    fn a_filter_that_hits_more_than_its_header_says_is_refused() {
        let mut filter = Filter::new(Parameters::new(4, 12).unwrap()).unwrap();
        for key in 0_u64..2000 {
            filter.insert(&key.to_be_bytes());
        }
        let (mut header, bits) = filter.to_parts();
        header[18..22].copy_from_slice(&100_u32.to_be_bytes());
        let forged = Filter::parse(&[&header[..], bits].concat()).unwrap();
        let refusal = random_must_miss(&forged).unwrap_err();
        assert!(
            matches!(refusal, FilterRejection::RandomHits { hits, .. } if hits > 100),
            "{refusal}"
        );
    }
}

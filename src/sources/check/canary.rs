//! Canaries: keys that must be in a filter, and random keys that must not be.

use std::io;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use aws_lc_rs::rand;
use keygate_core::guard::{ExactList, Guard, Verdict};
use keygate_core::pkbf::{Filter, FilterError, KeyHash};
use keygate_core::spki::{self, Fingerprint};

use crate::files::read_bounded;
use crate::sources::file_rejection::{CanaryError, CanaryFileError, FileRejection};
use crate::sources::operator_decision::GuardFile;

/// Maximum size of a file of canaries, 1 MiB; a larger one cannot be used.
const MAX_SIZE: u64 = 1 << 20;
/// Number of random keys that are looked up in each filter.
const RANDOM_KEYS: usize = 512;
/// Size of a random key, in bytes.
const RANDOM_KEY_SIZE: usize = 16;
/// Probability with which a good filter is rejected by chance.
const FALSE_REJECTION: f64 = 1e-12;

/// Checks that every key in the files at `paths` is in `filter`, in one of its encodings.
///
/// # Errors
/// Returns an error if a file cannot be used, or a key is not in the filter.
pub(crate) fn ensure_canaries_hit(filter: &Filter, paths: &[PathBuf]) -> Result<(), CanaryError> {
    ensure_hits(GuardFile::Filter, paths, |spki| {
        spki::related(spki).iter().any(|(_, encoding)| filter.contains(encoding))
    })
}

/// Checks that every key in the files at `paths` is on `list`, or has a prime of it.
///
/// # Errors
/// Returns an error if a file cannot be used, or a key is not on the list.
pub(crate) fn ensure_canaries_listed(
    list: &ExactList,
    paths: &[PathBuf],
) -> Result<(), CanaryError> {
    let guard = Guard::of_list(list.clone());
    ensure_hits(GuardFile::List, paths, |spki| {
        matches!(guard.judge_key(spki, SystemTime::now()), Verdict::Listed(_) | Verdict::Weak(_))
    })
}

fn ensure_hits(
    file: GuardFile,
    paths: &[PathBuf],
    is_hit: impl Fn(&[u8]) -> bool,
) -> Result<(), CanaryError> {
    for path in paths {
        if let Some(missing) = canaries_in(path)?.iter().find(|spki| !is_hit(spki)) {
            let fingerprint = Fingerprint::of(missing).to_string();
            return Err(CanaryError::Missing { file, path: path.clone(), fingerprint });
        }
    }
    Ok(())
}

/// Checks that the file at `path` has canaries only.
pub(crate) fn ensure_usable(path: &Path) -> Result<(), CanaryError> {
    canaries_in(path).map(drop)
}

/// Checks that random keys are hits about as often as the header of `filter` explains.
///
/// # Errors
/// Returns an error if the probability of at least this number of hits is below
/// [`FALSE_REJECTION`].
pub(crate) fn ensure_random_keys_miss(filter: &Filter) -> Result<(), FileRejection> {
    let mut keys = [[0; RANDOM_KEY_SIZE]; RANDOM_KEYS];
    rand::fill(keys.as_flattened_mut())
        .map_err(|_| FilterError::from(io::Error::other("no random numbers")))?;
    let hits = keys.iter().filter(|key| filter.contains_hash(KeyHash::from_spki(*key))).count();
    let rate = filter.false_positive_bound();
    if probability(hits, RANDOM_KEYS, rate) < FALSE_REJECTION {
        return Err(FileRejection::RandomHits { hits, keys: RANDOM_KEYS, rate });
    }
    Ok(())
}

/// The probability of at least `hits` successes in `trials` of probability `rate` (the binomial
/// distribution).
fn probability(hits: usize, trials: usize, rate: f64) -> f64 {
    if hits == 0 || rate >= 1.0 {
        return 1.0;
    }
    let (ln_hit, ln_miss) = (rate.ln(), (-rate).ln_1p()); // ln 0 is −∞, and e^−∞ is 0
    let mut ln_combinations = 0.0; // ln of `trials` over `count`
    let mut sum = 0.0;
    for count in 0..=trials {
        if count > 0 {
            ln_combinations += ((trials + 1 - count) as f64 / count as f64).ln();
        }
        if count >= hits {
            let misses = trials - count;
            sum += (ln_combinations + count as f64 * ln_hit + misses as f64 * ln_miss).exp();
        }
    }
    sum
}

fn canaries_in(path: &Path) -> Result<Vec<Vec<u8>>, CanaryError> {
    let unusable = |source| CanaryError::File { path: path.to_owned(), source };
    keys_in(path).map_err(unusable)
}

fn keys_in(path: &Path) -> Result<Vec<Vec<u8>>, CanaryFileError> {
    let content = read_bounded(path, MAX_SIZE)?;
    let findings = spki::keys_in(&content).into_iter();
    let keys = findings.map(|finding| {
        finding.key.map_err(|source| match finding.line {
            Some(line) => CanaryFileError::Line { line, source },
            None => CanaryFileError::Key(source),
        })
    });
    keys.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use keygate_core::pkbf::Parameters;

    #[test]
    fn the_probability_follows_the_binomial_distribution() {
        let near = |found: f64, expected: f64| assert!((found - expected).abs() < 1e-12, "{found}");
        near(probability(0, 512, 0.3), 1.0);
        near(probability(1, 512, 0.0), 0.0);
        near(probability(2, 2, 0.5), 0.25);
        near(probability(1, 2, 0.5), 0.75);
        near(probability(1, 3, 0.1), 1.0 - 0.9_f64.powi(3));
        near(probability(512, 512, 1.0), 1.0);
        assert!(probability(300, 512, 0.5) > 1e-6 && probability(500, 512, 0.5) < 1e-12);
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
            ensure_random_keys_miss(&filter).unwrap();
        }
    }

    #[test]
    fn a_filter_with_more_hits_than_its_header_explains_is_rejected() {
        let mut filter = Filter::new(Parameters::new(4, 12).unwrap()).unwrap();
        for key in 0_u64..2000 {
            filter.insert(&key.to_be_bytes());
        }
        let (mut header, bits) = filter.to_parts();
        header[18..22].copy_from_slice(&100_u32.to_be_bytes());
        let forged = Filter::parse(&[&header[..], bits].concat()).unwrap();
        let rejection = ensure_random_keys_miss(&forged).unwrap_err();
        assert!(
            matches!(rejection, FileRejection::RandomHits { hits, .. } if hits > 100),
            "{rejection}"
        );
    }
}

//! The size of a filter and its false-positive rate.
//!
//! Sizing follows the reference implementation, so that both choose the same parameters. Formulas:
//! <https://pwnedkeys.com/filter.html>

use super::{FilterError, Header, MAX_HASH_LENGTH, MIN_HASH_LENGTH};

/// `k` and `L` of a filter, both in range.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Parameters {
    hash_count: u8,
    hash_length: u8,
}

impl Parameters {
    /// Parameters with `hash_count` as `k`, at least 1, and `hash_length` as `L`,
    /// [`MIN_HASH_LENGTH`] to [`MAX_HASH_LENGTH`].
    ///
    /// # Errors
    /// Returns an error if a parameter is out of range.
    pub fn new(hash_count: u8, hash_length: u8) -> Result<Self, FilterError> {
        let parameters = Self { hash_count, hash_length };
        Header::empty(parameters).map(|_| parameters)
    }

    /// The smallest filter that holds `entries` with a false-positive rate below `rate`, and the
    /// smallest `k` that achieves the rate.
    ///
    /// # Errors
    /// Returns an error if `entries` is 0, if `rate` is not between 0 and 1, or if the format has
    /// no such filter.
    pub fn for_entries(entries: u64, rate: f64) -> Result<Self, FilterError> {
        let impossible = || FilterError::NoParameters { entries, rate };
        if entries == 0 || !(rate > 0.0 && rate < 1.0) {
            return Err(impossible());
        }
        let n = entries as f64;
        let bits_needed = -n * rate.ln() / (std::f64::consts::LN_2 * std::f64::consts::LN_2);
        let hash_length = (MIN_HASH_LENGTH..=MAX_HASH_LENGTH)
            .find(|length| f64::exp2(f64::from(*length)) >= bits_needed)
            .ok_or_else(impossible)?;
        let max_hash_count =
            (std::f64::consts::LN_2 * f64::exp2(f64::from(hash_length)) / n).ceil();
        (1..=u8::MAX)
            .take_while(|hash_count| f64::from(*hash_count) <= max_hash_count)
            .map(|hash_count| Self { hash_count, hash_length })
            .find(|parameters| parameters.false_positive_ratio(entries) < rate)
            .ok_or_else(impossible)
    }

    pub(super) fn from_header(header: &Header) -> Self {
        Self { hash_count: header.hash_count, hash_length: header.hash_length }
    }

    /// `k`, the number of bits that each entry sets.
    #[must_use]
    pub fn hash_count(self) -> u8 {
        self.hash_count
    }

    /// `L`, log2 of the filter size in bits.
    #[must_use]
    pub fn hash_length(self) -> u8 {
        self.hash_length
    }

    /// `(1 − (1 − 1/m)^(k·n))^k`, 0 to 1: the false-positive rate of a filter with `entries`.
    #[must_use]
    pub fn false_positive_ratio(self, entries: u64) -> f64 {
        self.expected_fill(entries).powi(i32::from(self.hash_count))
    }

    /// `1 − (1 − 1/m)^(k·n)`, calculated with logarithms because `1 − 1/m` rounds to 1 for a large
    /// `m`.
    fn expected_fill(self, entries: u64) -> f64 {
        let insertions = f64::from(self.hash_count) * entries as f64;
        -f64::exp_m1(insertions * f64::ln_1p(-1.0 / f64::exp2(f64::from(self.hash_length))))
    }
}

/// `part / whole`, 0 to 1.
pub(super) fn ratio(part: u64, whole: u64) -> f64 {
    part as f64 / whole as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_equal_those_of_the_reference_implementation() {
        for (entries, rate, hash_count, hash_length) in [
            (42, 0.1, 2, 8),
            (1000, 0.01, 3, 14),
            (1_200_000, 0.01, 3, 24),
            (5_000_000, 0.001, 4, 27),
            (100, 0.5, 1, 8),
            (1, 0.01, 3, 4),
            (50_000_000, 0.0001, 8, 30),
        ] {
            let parameters = Parameters::for_entries(entries, rate).unwrap();
            assert_eq!(
                (parameters.hash_count(), parameters.hash_length()),
                (hash_count, hash_length),
                "for {entries} entries at {rate}"
            );
        }
    }

    #[test]
    fn impossible_parameters_are_errors() {
        for (entries, rate) in [(0, 0.1), (1, 0.0), (1, 1.0), (1, f64::NAN), (u64::MAX, 1e-9)] {
            assert!(Parameters::for_entries(entries, rate).is_err(), "{entries} at {rate}");
        }
        assert!(Parameters::new(0, 8).is_err());
        assert!(Parameters::new(1, 2).is_err());
        assert!(Parameters::new(1, 64).is_err());
    }

    #[test]
    fn the_rate_of_a_large_filter_does_not_round_to_zero() {
        let rate = Parameters::new(20, 33).unwrap().false_positive_ratio(200_000_000);
        assert!(rate > 1e-10 && rate < 1e-8, "{rate}");
    }
}

//! How large a filter must be, how often it is wrong, and whether its bits can be true.
//!
//! Sizing follows the reference implementation, so that a file made by either has the same
//! parameters. Formulas: <https://pwnedkeys.com/filter.html>; the spread of the number of set bits
//! is the occupancy problem (Johnson and Kotz, "Urn Models and Their Application", 1977, chapter 3).

use super::{FilterError, Header, MAX_HASH_LENGTH, MIN_HASH_LENGTH};

/// `k` and `L` of a filter, both in range.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Parameters {
    hash_count: u8,
    hash_length: u8,
}

impl Parameters {
    /// `hash_count` is `k`, at least 1; `hash_length` is `L`, [`MIN_HASH_LENGTH`] to
    /// [`MAX_HASH_LENGTH`].
    ///
    /// # Errors
    /// Either is out of range.
    pub fn new(hash_count: u8, hash_length: u8) -> Result<Self, FilterError> {
        let parameters = Self { hash_count, hash_length };
        Header::empty(parameters).map(|_| parameters)
    }

    /// The smallest filter that holds `entries` with a false-positive rate below `rate`, with the
    /// smallest `k` that achieves it.
    ///
    /// # Errors
    /// No entries, a rate that is not between 0 and 1, or no such filter within the format's ranges.
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
        let most_hashes = (std::f64::consts::LN_2 * f64::exp2(f64::from(hash_length)) / n).ceil();
        (1..=u8::MAX)
            .take_while(|hash_count| f64::from(*hash_count) <= most_hashes)
            .map(|hash_count| Self { hash_count, hash_length })
            .find(|parameters| parameters.false_positive_ratio(entries) < rate)
            .ok_or_else(impossible)
    }

    pub(super) fn of(header: &Header) -> Self {
        Self { hash_count: header.hash_count, hash_length: header.hash_length }
    }

    /// `k`, the number of bits set for each entry.
    #[must_use]
    pub fn hash_count(self) -> u8 {
        self.hash_count
    }

    /// `L`, log2 of the size in bits.
    #[must_use]
    pub fn hash_length(self) -> u8 {
        self.hash_length
    }

    /// `(1 − (1 − 1/m)^(k·n))^k`, 0 to 1: the false-positive rate of a filter with `entries`.
    #[must_use]
    pub fn false_positive_ratio(self, entries: u64) -> f64 {
        self.expected_fill(entries).powi(i32::from(self.hash_count))
    }

    /// `1 − (1 − 1/m)^(k·n)`, by logarithms: for a large `m`, `1 − 1/m` rounds to 1.
    fn expected_fill(self, entries: u64) -> f64 {
        let insertions = f64::from(self.hash_count) * entries as f64;
        -f64::exp_m1(insertions * f64::ln_1p(-1.0 / f64::exp2(f64::from(self.hash_length))))
    }
}

/// Whether a header's numbers can explain the bits that are set.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Plausibility {
    /// They can.
    Plausible,
    /// Fewer bits are set than the entries must have set: data was lost.
    TooFewBits {
        /// How far below the expected number, in standard deviations.
        deviations: f64,
    },
    /// More bits are set than `k` for each entry.
    TooManyBits,
}

/// Fewer bits than this many standard deviations below the expected number are lost data, not
/// chance: at 8, chance does it less than once in 10^14 loads.
const LOST_DATA_DEVIATIONS: f64 = 8.0;

impl Plausibility {
    pub(super) fn of(header: &Header, set_bits: u64) -> Self {
        let entries = u64::from(header.entry_count);
        if set_bits > entries.saturating_mul(header.hash_count.into()) {
            return Self::TooManyBits;
        }
        let bits = header.bit_count() as f64;
        let fill = header.parameters().expected_fill(entries);
        let load = f64::from(header.hash_count) * entries as f64 / bits;
        let free = (-load).exp();
        let variance = bits * (free - (1.0 + load) * free * free);
        // The positions of one key follow a cubic and coincide more often than chance would have
        // it when k is large and the filter small: up to half of them were seen to.
        let missing = fill * bits - set_bits as f64 - f64::from(header.hash_count) / 2.0;
        // In a filter of a few bits the spread is less than one bit.
        let deviations = missing / variance.sqrt().max(1.0);
        if deviations > LOST_DATA_DEVIATIONS {
            return Self::TooFewBits { deviations };
        }
        Self::Plausible
    }

    /// Whether it is [`Plausibility::Plausible`].
    #[must_use]
    pub fn is_plausible(self) -> bool {
        self == Self::Plausible
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
    fn sizes_are_those_of_the_reference_implementation() {
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
    fn impossible_wishes_are_errors() {
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

    #[test]
    fn a_key_whose_positions_coincide_is_no_lost_data() {
        let mut filter = crate::pkbf::Filter::new(Parameters::new(64, 9).unwrap()).unwrap();
        filter.insert(&1_488_016_u64.to_be_bytes());
        assert!(filter.plausibility().is_plausible());
    }

    #[test]
    fn bits_that_the_header_cannot_explain_are_seen() {
        let header =
            Header { entry_count: 1000, ..Header::empty(Parameters::new(3, 14).unwrap()).unwrap() };
        assert_eq!(Plausibility::of(&header, 3001), Plausibility::TooManyBits);
        assert_eq!(Plausibility::of(&header, 2739), Plausibility::Plausible);
        assert!(!Plausibility::of(&header, 2000).is_plausible());
        assert!(!Plausibility::of(&header, 0).is_plausible());
        assert!(Plausibility::of(&Header { entry_count: 0, ..header }, 0).is_plausible());
    }
}

//! Whether the number of set bits matches the header: detects damage by counting.
//!
//! The format has no checksum. A filter that lost bits admits compromised keys. A filter with extra
//! bits rejects good ones.

use super::Header;
use super::sizing::ratio;

/// Whether the header explains the number of bits that are set.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Plausibility {
    /// More bits are set than `k` for each entry.
    Impossible {
        /// The maximum: `k` for each entry.
        max_bits: u64,
    },
    /// Nearly every key is a hit.
    NearlyFull {
        /// The fraction of the bits that are set, 0 to 1.
        fill_ratio: f64,
    },
    /// The header explains the number of bits.
    Plausible,
    /// Fewer bits are set than the entries explain, because data was lost.
    TooFewBits {
        /// Distance below the expected number, in standard deviations.
        deviations: f64,
    },
    /// More bits are set than the entries explain, because damage has set bits.
    TooManyBits {
        /// Distance above the expected number, in standard deviations.
        deviations: f64,
    },
}

/// Fraction of set bits from which a filter counts as nearly full.
const NEARLY_FULL: f64 = 0.98;
/// Maximum distance from the expected number, in standard deviations. Chance exceeds 8 less than
/// once in 10^14 loads.
const MAX_DEVIATIONS: f64 = 8.0;

impl Plausibility {
    pub(super) fn new(header: &Header, set_bits: u64) -> Self {
        let max_bits = u64::from(header.entry_count).saturating_mul(header.hash_count.into());
        if set_bits > max_bits {
            return Self::Impossible { max_bits };
        }
        let fill_ratio = ratio(set_bits, header.bit_count());
        if fill_ratio >= NEARLY_FULL {
            return Self::NearlyFull { fill_ratio };
        }
        let expected = Expected::new(header);
        let deviations = expected.deviations(set_bits);
        if deviations < -MAX_DEVIATIONS {
            return Self::TooFewBits { deviations: -deviations };
        }
        if deviations > MAX_DEVIATIONS {
            return Self::TooManyBits { deviations };
        }
        Self::Plausible
    }

    /// Whether this is [`Plausibility::Plausible`].
    #[must_use]
    pub fn is_plausible(self) -> bool {
        self == Self::Plausible
    }
}

impl std::fmt::Display for Plausibility {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Impossible { max_bits } => {
                write!(
                    formatter,
                    "more bits are set than the {max_bits} that the entries can have set"
                )
            }
            Self::NearlyFull { fill_ratio } => {
                let percent = fill_ratio * 100.0;
                write!(formatter, "{percent:.1} % of the bits are set: nearly every key is a hit")
            }
            Self::Plausible => formatter.write_str("the entries explain the bits that are set"),
            Self::TooFewBits { deviations } => write!(
                formatter,
                "{deviations:.0} standard deviations fewer bits are set than the entries need: data was lost"
            ),
            Self::TooManyBits { deviations } => write!(
                formatter,
                "{deviations:.0} standard deviations more bits are set than the entries can explain"
            ),
        }
    }
}

pub(super) fn false_positive_bound(header: &Header) -> f64 {
    let expected = Expected::new(header);
    let max_bits = expected.bits + expected.slack + MAX_DEVIATIONS * expected.spread;
    (max_bits / header.bit_count() as f64).min(1.0).powi(header.hash_count.into())
}

/// The number of bits that the entries of a header set, and its variation by chance.
struct Expected {
    bits: f64,
    /// Standard deviation, in bits.
    spread: f64,
    /// Deviation in bits that the dependence of one key's positions can cause.
    slack: f64,
}

/// Steps of the integration. The error is far below the spread.
const STEPS: u32 = 512;

impl Expected {
    /// An entry is counted only if it sets a bit that was clear. In a filter with the fraction `f`
    /// set, a counted entry therefore sets `k(1 − f) / (1 − f^k)` bits on average: `k` trials, not
    /// all of which failed. This is integrated over the entries by the classical Runge-Kutta
    /// method. For `k` = 1 the result is exactly one bit for each entry. In a sparse filter the
    /// fraction is the `1 − (1 − 1/m)^(k·n)` of the format's page.
    ///
    /// The spread is the one in the occupancy problem at the same fraction (Johnson and Kotz, "Urn
    /// Models and Their Application", 1977, chapter 3).
    fn new(header: &Header) -> Self {
        let hash_count = f64::from(header.hash_count);
        let bit_count = header.bit_count() as f64;
        let entries = f64::from(header.entry_count);
        let slope = |fraction: f64| {
            let clear = 1.0 - fraction;
            if clear < 1e-9 {
                return 1.0 / bit_count; // in the limit, each counted entry sets one bit
            }
            hash_count * clear / (1.0 - fraction.powf(hash_count)) / bit_count
        };
        let step = entries / f64::from(STEPS);
        let fraction = (0..STEPS).fold(0.0_f64, |fraction, _| {
            let limited = |fraction: f64| slope(fraction.min(1.0));
            let first = limited(fraction);
            let second = limited(fraction + step / 2.0 * first);
            let third = limited(fraction + step / 2.0 * second);
            let fourth = limited(fraction + step * third);
            (fraction + step / 6.0 * (first + 2.0 * second + 2.0 * third + fourth)).min(1.0)
        });
        let clear = 1.0 - fraction;
        let load = if clear > 0.0 { -clear.ln() } else { f64::INFINITY };
        let variance =
            if clear > 0.0 { bit_count * (clear - (1.0 + load) * clear * clear) } else { 0.0 };
        // The positions of one key follow a cubic. For a large k in a small filter, they coincide
        // more or less often than independent positions.
        let slack = (load.min(8.0) + 1.0) * hash_count / 2.0;
        // In a filter of a few bits, the standard deviation is less than one bit.
        Self { bits: fraction * bit_count, spread: variance.sqrt().max(1.0), slack }
    }

    /// Distance of `set_bits` from the expected number beyond the slack, in standard deviations;
    /// negative if below.
    fn deviations(&self, set_bits: u64) -> f64 {
        let difference = set_bits as f64 - self.bits;
        let beyond = (difference.abs() - self.slack).max(0.0);
        beyond.copysign(difference) / self.spread
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pkbf::{Filter, Parameters};

    fn header(hash_count: u8, hash_length: u8, entry_count: u32) -> Header {
        let parameters = Parameters::new(hash_count, hash_length).unwrap();
        Header { entry_count, ..Header::empty(parameters).unwrap() }
    }

    #[test]
    fn a_key_with_coinciding_positions_is_plausible() {
        let mut filter = Filter::new(Parameters::new(64, 9).unwrap()).unwrap();
        filter.insert(&1_488_016_u64.to_be_bytes());
        assert!(filter.plausibility().is_plausible());
    }

    #[test]
    fn too_many_and_too_few_bits_are_implausible() {
        let header = header(3, 14, 1000);
        let of = |set_bits| Plausibility::new(&header, set_bits);
        assert_eq!(of(3001), Plausibility::Impossible { max_bits: 3000 });
        assert_eq!(of(2739), Plausibility::Plausible);
        assert!(matches!(of(3000), Plausibility::TooManyBits { .. }));
        assert!(matches!(of(2000), Plausibility::TooFewBits { deviations } if deviations > 40.0));
        assert!(matches!(of(0), Plausibility::TooFewBits { .. }));
        assert!(Plausibility::new(&Header { entry_count: 0, ..header }, 0).is_plausible());
    }

    #[test]
    fn a_nearly_full_filter_is_implausible_at_any_size() {
        let full = |entries| Plausibility::new(&header(20, 10, entries), 1004);
        assert!(
            matches!(full(100_000), Plausibility::NearlyFull { fill_ratio } if fill_ratio > 0.98)
        );
        assert!(matches!(full(50), Plausibility::Impossible { .. }));
        let tiny = Plausibility::new(&header(1, 3, 8), 8);
        assert!(matches!(tiny, Plausibility::NearlyFull { .. }));
        assert!(Plausibility::new(&header(1, 3, 7), 7).is_plausible());
    }

    #[test]
    fn filters_of_all_shapes_are_plausible_from_the_first_key_until_nearly_full() {
        for hash_count in [1, 2, 3, 5, 12, 20, 64, 255] {
            for hash_length in [3, 4, 6, 9, 12, 14, 16] {
                let parameters = Parameters::new(hash_count, hash_length).unwrap();
                let mut filter = Filter::new(parameters).unwrap();
                for key in 0_u64..200_000 {
                    filter.insert(&key.to_be_bytes());
                    if filter.fill_ratio() >= NEARLY_FULL {
                        break;
                    }
                    if key < 64 || key % 256 == 0 {
                        let (plausibility, header) = (filter.plausibility(), filter.header());
                        assert!(plausibility.is_plausible(), "{plausibility:?} {header:?}");
                    }
                }
            }
        }
    }

    #[test]
    fn losing_a_tenth_of_the_data_is_implausible_in_filters_of_usual_size() {
        for (hash_count, hash_length, entries) in
            [(20, 20, 36_000), (4, 16, 10_000), (1, 16, 40_000)]
        {
            let mut filter =
                Filter::new(Parameters::new(hash_count, hash_length).unwrap()).unwrap();
            for key in 0_u64..entries {
                filter.insert(&key.to_be_bytes());
            }
            assert!(filter.plausibility().is_plausible());
            let (header, bits) = filter.to_parts();
            let kept = bits.len() * 9 / 10;
            let damaged = [&header[..], &bits[..kept], &vec![0; bits.len() - kept]].concat();
            let plausibility = Filter::parse(&damaged).unwrap().plausibility();
            assert!(matches!(plausibility, Plausibility::TooFewBits { .. }), "{plausibility:?}");
        }
    }
}

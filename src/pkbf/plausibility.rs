//! Whether a filter's bits can be true: what the header's own numbers allow.
//!
//! The format has no checksum. A list that lost data lets clients in, one with bits that nobody
//! added keeps them out, and both can be told by counting.

use super::Header;
use super::sizing::ratio;

/// Whether a header's numbers can explain the bits that are set.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Plausibility {
    /// More bits are set than `k` for each entry.
    Impossible {
        /// `k` for each entry.
        most: u64,
    },
    /// So many bits are set that nearly every key is a hit.
    NearlyFull {
        /// The share that is set, 0 to 1.
        fill_ratio: f64,
    },
    /// They can.
    Plausible,
    /// Fewer bits are set than the entries must have set: data was lost.
    TooFewBits {
        /// How far below the expected number, in standard deviations.
        deviations: f64,
    },
    /// More bits are set than the entries can have set: some were never added.
    TooManyBits {
        /// How far above the expected number, in standard deviations.
        deviations: f64,
    },
}

/// A filter that is as full as this refuses nearly everybody.
const NEARLY_FULL: f64 = 0.98;
/// Further from the expected number is damage, not chance: at 8 standard deviations, chance does it
/// less than once in 10^14 loads.
const MOST_DEVIATIONS: f64 = 8.0;

impl Plausibility {
    pub(super) fn of(header: &Header, set_bits: u64) -> Self {
        let most = u64::from(header.entry_count).saturating_mul(header.hash_count.into());
        if set_bits > most {
            return Self::Impossible { most };
        }
        let fill_ratio = ratio(set_bits, header.bit_count());
        if fill_ratio >= NEARLY_FULL {
            return Self::NearlyFull { fill_ratio };
        }
        let expected = Expected::of(header);
        let deviations = expected.deviations(set_bits);
        if deviations < -MOST_DEVIATIONS {
            return Self::TooFewBits { deviations: -deviations };
        }
        if deviations > MOST_DEVIATIONS {
            return Self::TooManyBits { deviations };
        }
        Self::Plausible
    }

    /// Whether it is [`Plausibility::Plausible`].
    #[must_use]
    pub fn is_plausible(self) -> bool {
        self == Self::Plausible
    }
}

impl std::fmt::Display for Plausibility {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Impossible { most } => {
                write!(formatter, "more bits are set than the {most} that the entries can have set")
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
    let expected = Expected::of(header);
    let most = expected.bits + expected.slack + MOST_DEVIATIONS * expected.spread;
    (most / header.bit_count() as f64).min(1.0).powi(header.hash_count.into())
}

/// How many bits the entries of a header have set, and how far chance may move that.
struct Expected {
    bits: f64,
    spread: f64,
    /// Bits by which the positions of a key can differ from independent ones.
    slack: f64,
}

/// Steps of the integration; the error is far below the spread.
const STEPS: u32 = 512;

impl Expected {
    /// An entry counts only if it sets a bit that was not set. So in a filter whose share `f` is
    /// set, a counted entry sets `k(1 − f) / (1 − f^k)` bits: the mean of `k` trials, of which not
    /// all failed. Integrated over the entries by the classical Runge-Kutta method. For `k` = 1
    /// it is one bit for each entry, exactly; for a filter that is not crowded it is the
    /// `1 − (1 − 1/m)^(k·n)` of the format's page.
    ///
    /// The spread is that of the occupancy problem at the same share (Johnson and Kotz, "Urn Models
    /// and Their Application", 1977, chapter 3).
    fn of(header: &Header) -> Self {
        let hash_count = f64::from(header.hash_count);
        let bit_count = header.bit_count() as f64;
        let entries = f64::from(header.entry_count);
        let slope = |share: f64| {
            let clear = 1.0 - share;
            if clear < 1e-9 {
                return 1.0 / bit_count; // the limit: each counted entry sets one bit
            }
            hash_count * clear / (1.0 - share.powf(hash_count)) / bit_count
        };
        let step = entries / f64::from(STEPS);
        let share = (0..STEPS).fold(0.0_f64, |share, _| {
            let limited = |share: f64| slope(share.min(1.0));
            let first = limited(share);
            let second = limited(share + step / 2.0 * first);
            let third = limited(share + step / 2.0 * second);
            let fourth = limited(share + step * third);
            (share + step / 6.0 * (first + 2.0 * second + 2.0 * third + fourth)).min(1.0)
        });
        let clear = 1.0 - share;
        let load = if clear > 0.0 { -clear.ln() } else { f64::INFINITY };
        let variance =
            if clear > 0.0 { bit_count * (clear - (1.0 + load) * clear * clear) } else { 0.0 };
        // The positions of one key follow a cubic: they coincide more or less often than
        // independent ones when k is large and the filter small.
        let own = (load.min(8.0) + 1.0) * hash_count / 2.0;
        // In a filter of a few bits the spread is less than one bit.
        Self { bits: share * bit_count, spread: variance.sqrt().max(1.0), slack: own }
    }

    /// How far `set_bits` is from what is expected, beyond the slack; below it is negative.
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
    fn a_key_whose_positions_coincide_is_no_lost_data() {
        let mut filter = Filter::new(Parameters::new(64, 9).unwrap()).unwrap();
        filter.insert(&1_488_016_u64.to_be_bytes());
        assert!(filter.plausibility().is_plausible());
    }

    #[test]
    fn bits_that_the_header_cannot_explain_are_seen() {
        let header = header(3, 14, 1000);
        let of = |set_bits| Plausibility::of(&header, set_bits);
        assert_eq!(of(3001), Plausibility::Impossible { most: 3000 });
        assert_eq!(of(2739), Plausibility::Plausible);
        assert!(matches!(of(3000), Plausibility::TooManyBits { .. }));
        assert!(matches!(of(2000), Plausibility::TooFewBits { deviations } if deviations > 40.0));
        assert!(matches!(of(0), Plausibility::TooFewBits { .. }));
        assert!(Plausibility::of(&Header { entry_count: 0, ..header }, 0).is_plausible());
    }

    #[test]
    fn a_filter_that_refuses_nearly_everybody_is_seen_however_it_came_about() {
        let full = |entries| Plausibility::of(&header(20, 10, entries), 1004);
        assert!(
            matches!(full(100_000), Plausibility::NearlyFull { fill_ratio } if fill_ratio > 0.98)
        );
        assert!(matches!(full(50), Plausibility::Impossible { .. }));
        let tiny = Plausibility::of(&header(1, 3, 8), 8);
        assert!(matches!(tiny, Plausibility::NearlyFull { .. }));
        assert!(Plausibility::of(&header(1, 3, 7), 7).is_plausible());
    }

    /// Every filter that is made by adding keys is plausible, from the first key until it is nearly
    /// full, and losing a tenth of its data makes it implausible once it has enough to lose.
    #[test]
    fn filters_of_every_shape_are_plausible_all_the_way() {
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
    fn losing_a_tenth_of_the_data_is_seen_in_filters_of_a_sensible_size() {
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

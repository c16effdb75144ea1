//! Whole numbers with bounds.

use std::fmt;
use std::marker::PhantomData;

use serde::de::{Deserialize, Deserializer, Error, Visitor};

/// A maximum from which a number counts as unbounded.
const UNBOUNDED: u64 = u32::MAX as u64;

/// A positive number without a maximum of its own.
pub(super) type OneOrMore = Bounded<u32, 1, UNBOUNDED>;

/// A whole number from `MIN` to `MAX`.
#[derive(Debug, Clone, Copy)]
pub(super) struct Bounded<N, const MIN: u64, const MAX: u64>(pub(super) N);

impl<'de, N: TryFrom<u64>, const MIN: u64, const MAX: u64> Deserialize<'de>
    for Bounded<N, MIN, MAX>
{
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_u64(BoundedVisitor(PhantomData))
    }
}

struct BoundedVisitor<N, const MIN: u64, const MAX: u64>(PhantomData<N>);

impl<N: TryFrom<u64>, const MIN: u64, const MAX: u64> Visitor<'_> for BoundedVisitor<N, MIN, MAX> {
    type Value = Bounded<N, MIN, MAX>;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match MAX {
            UNBOUNDED => write!(formatter, "a whole number without quotes, {MIN} or more"),
            _ => write!(formatter, "a whole number without quotes, from {MIN} to {MAX}"),
        }
    }

    fn visit_u64<E: Error>(self, number: u64) -> Result<Self::Value, E> {
        let checked = Some(number).filter(|number| (MIN..=MAX).contains(number));
        let checked = checked.and_then(|number| N::try_from(number).ok());
        checked.map(Bounded).ok_or_else(|| match MAX {
            UNBOUNDED if number < MIN => E::custom(format!("{number}; give {MIN} or more")),
            _ => E::custom(format!("{number} is not between {MIN} and {MAX}")),
        })
    }
}

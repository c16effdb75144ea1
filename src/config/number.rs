//! Whole numbers with bounds.

use std::fmt;
use std::marker::PhantomData;

use serde::de::{Deserialize, Deserializer, Error, Visitor};

/// Maximum of `u32`; messages omit it.
const TYPE_MAX: u64 = u32::MAX as u64;

/// A positive number without a maximum of its own.
pub(super) type OneOrMore = Bounded<u32, 1, TYPE_MAX>;

/// A whole number from `MIN` to `MAX`. A maximum catches typos.
#[derive(Debug, Clone, Copy)]
pub(super) struct Bounded<N, const MIN: u64, const MAX: u64>(pub(super) N);

impl<'de, N: TryFrom<u64>, const MIN: u64, const MAX: u64> Deserialize<'de>
    for Bounded<N, MIN, MAX>
{
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_i128(BoundedVisitor(PhantomData))
    }
}

struct BoundedVisitor<N, const MIN: u64, const MAX: u64>(PhantomData<N>);

impl<N: TryFrom<u64>, const MIN: u64, const MAX: u64> Visitor<'_> for BoundedVisitor<N, MIN, MAX> {
    type Value = Bounded<N, MIN, MAX>;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match MAX {
            TYPE_MAX => write!(formatter, "a whole number without quotes, {MIN} or more"),
            _ => write!(formatter, "a whole number without quotes, from {MIN} to {MAX}"),
        }
    }

    fn visit_i128<E: Error>(self, number: i128) -> Result<Self::Value, E> {
        let checked = u64::try_from(number).ok().filter(|number| (MIN..=MAX).contains(number));
        let checked = checked.and_then(|number| N::try_from(number).ok());
        checked.map(Bounded).ok_or_else(|| match MAX {
            TYPE_MAX if number < MIN.into() => E::custom(format!("{number}; give {MIN} or more")),
            _ => E::custom(format!("{number} is not between {MIN} and {MAX}")),
        })
    }
}

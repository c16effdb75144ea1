//! Durations and sizes as text: `"5s"`, `"64KiB"`.

use std::time::Duration;

use serde::de::{Deserialize, Deserializer, Error};

/// A duration such as `"250ms"`, `"5s"`, `"1h 30m"`.
#[derive(Debug, Clone, Copy)]
pub(super) struct DurationText(pub(super) Duration);

impl<'de> Deserialize<'de> for DurationText {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        let duration = humantime::parse_duration(&text).map_err(|error| {
            D::Error::custom(format!(
                "{text:?} is not a duration ({error}); write a number and a unit, such as \"5s\""
            ))
        })?;
        // Timers add durations to the present; a year is further than any of them means.
        if duration > Duration::from_secs(365 * 86_400) {
            return Err(D::Error::custom(format!("{text:?} is longer than a year")));
        }
        Ok(Self(duration))
    }
}

/// A size in bytes such as `"32KiB"` or `"1GiB"`.
#[derive(Debug, Clone, Copy)]
pub(super) struct SizeText(pub(super) u64);

impl<'de> Deserialize<'de> for SizeText {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        let size: bytesize::ByteSize = text.parse().map_err(|_| {
            D::Error::custom(format!(
                "{text:?} is not a size; write a number and a unit, such as \"64KiB\""
            ))
        })?;
        Ok(Self(size.as_u64()))
    }
}

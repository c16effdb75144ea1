//! Forms of values: durations (`"5s"`), sizes (`"64KiB"`), dates, and numbers with bounds.

use std::marker::PhantomData;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use toml::value::{Datetime, Offset};
use x509_cert::der::DateTime;

use super::form::Form;
use super::input::{Input, Taken, Takes};
use super::keys::takes;
use super::message::{SIZE_UNITS, quoted, size_text};

/// The moment that `until` names. A date names the end of the day in UTC. `None` for a time without
/// an offset and for an invalid date.
pub(super) fn moment(until: Datetime) -> Option<SystemTime> {
    const DAY: Duration = Duration::from_secs(86_400);
    let date = until.date?;
    let midnight = DateTime::new(date.year, date.month, date.day, 0, 0, 0).ok()?;
    let midnight = UNIX_EPOCH + midnight.unix_duration();
    let Some(time) = until.time else { return within_years(midnight.checked_add(DAY)?) };
    let seconds = u64::from(time.hour) * 3600 + u64::from(time.minute) * 60;
    let seconds = Duration::from_secs(seconds + u64::from(time.second.unwrap_or_default()));
    let local =
        midnight + seconds + Duration::from_nanos(time.nanosecond.unwrap_or_default().into());
    let minutes = match until.offset? {
        Offset::Z => 0,
        Offset::Custom { minutes } => minutes,
    };
    let offset = Duration::from_secs(u64::from(minutes.unsigned_abs()) * 60);
    // A positive offset means that the time is earlier in UTC.
    within_years(if minutes > 0 { local.checked_sub(offset) } else { local.checked_add(offset) }?)
}

/// `time`, unless its year has more than the four digits that RFC 3339 can write.
fn within_years(time: SystemTime) -> Option<SystemTime> {
    const YEAR_10000: Duration = Duration::from_secs(253_402_300_800);
    (time < UNIX_EPOCH + YEAR_10000).then_some(time)
}

/// A duration such as `"250ms"`, `"5s"`, `"1h 30m"`; not 0 if it is `POSITIVE`.
#[derive(Debug)]
pub(super) struct DurationText<const POSITIVE: bool = false>;

/// A duration that is not 0.
pub(super) type Positive = DurationText<true>;

impl<const POSITIVE: bool> Takes for DurationText<POSITIVE> {
    type Value = Duration;

    fn form() -> Form {
        Form::Duration { is_positive: POSITIVE }
    }

    fn take(input: &Input<'_>) -> Taken<Duration> {
        match duration(input.text::<Self>()?) {
            Ok(time) if time.is_zero() && POSITIVE => {
                Err(input.report("0 would expire at once; give a longer time"))
            }
            Ok(time) => Ok(time),
            Err(problem) => Err(input.report(problem)),
        }
    }
}

/// Parses a duration of at most a year. A sum with the current time must not overflow.
fn duration(text: &str) -> Result<Duration, String> {
    match humantime::parse_duration(text) {
        Ok(duration) if duration > Duration::from_secs(365 * 86_400) => {
            Err(format!("{} is longer than a year, the maximum", quoted(text)))
        }
        Ok(duration) => Ok(duration),
        Err(_) => Err(format!(
            "{} is not a duration; write a number and a unit, such as \"250ms\", \"5s\" or \"1h\"",
            quoted(text)
        )),
    }
}

/// A whole number from `MIN` to `MAX`. A maximum catches typos.
#[derive(Debug)]
pub(super) struct Bounded<N, const MIN: u64, const MAX: u64>(PhantomData<N>);

/// A positive number without a maximum of its own.
pub(super) type OneOrMore = Bounded<u32, 1, { u32::MAX as u64 }>;

impl<N: TryFrom<u64>, const MIN: u64, const MAX: u64> Takes for Bounded<N, MIN, MAX> {
    type Value = N;

    fn form() -> Form {
        Form::Number { min: MIN, max: MAX }
    }

    fn take(input: &Input<'_>) -> Taken<N> {
        let number = input.number::<Self>(MIN, MAX)?;
        number.try_into().map_err(|_| input.unlike::<Self>())
    }
}

/// A number without bounds of its own.
type Count = Bounded<usize, 0, { u64::MAX }>;
/// A number of 32 bits.
type Number = Bounded<u32, 0, { u32::MAX as u64 }>;

takes! {
    u32 => Self, Number::form(), Number::take;
    usize => Self, Count::form(), Count::take;
}

/// A size such as `"32KiB"` or `"1GiB"`, from `MIN` to `MAX` bytes.
#[derive(Debug)]
pub(super) struct SizeText<N = u64, const MIN: u64 = 0, const MAX: u64 = { u64::MAX }>(
    PhantomData<N>,
);

impl<N: TryFrom<u64>, const MIN: u64, const MAX: u64> Takes for SizeText<N, MIN, MAX> {
    type Value = N;

    fn form() -> Form {
        Form::Size { min: MIN, max: MAX }
    }

    fn take(input: &Input<'_>) -> Taken<N> {
        let size = size_within(input.text::<Self>()?, MIN, MAX);
        let size = size.map_err(|problem| input.report(problem))?;
        size.try_into().map_err(|_| input.unlike::<Self>())
    }
}

/// Parses a size from `min` to `max` bytes.
fn size_within(text: &str, min: u64, max: u64) -> Result<u64, String> {
    let bytes = bytes(text)?;
    if (min..=max).contains(&bytes) {
        return Ok(bytes);
    }
    let unit = if bytes == 1 { "byte" } else { "bytes" };
    let (min, max) = (size_text(min), size_text(max));
    Err(format!("{} ({bytes} {unit}) is not between {min} and {max}", quoted(text)))
}

/// The bytes of a size: digits, a fraction and one of [`SIZE_UNITS`]. Other spellings of a unit are
/// errors, because programs differ in the meaning of `m` and `M`.
fn bytes(text: &str) -> Result<u64, String> {
    let trimmed = text.trim_matches(' ');
    let end = trimmed.find(|it: char| !it.is_ascii_digit() && it != '.').unwrap_or(trimmed.len());
    let (number, unit) = trimmed.split_at(end);
    let unit = unit.trim_matches(' ');
    let has_digits = |part: &str| !part.is_empty() && part.bytes().all(|it| it.is_ascii_digit());
    let (whole, fraction) = number.split_once('.').unwrap_or((number, "0"));
    let is_number = has_digits(whole) && has_digits(fraction);
    let size: Option<bytesize::ByteSize> = trimmed.parse().ok();
    match size.filter(|_| is_number && SIZE_UNITS.contains(&unit)) {
        Some(size) => Ok(size.as_u64()),
        None => Err(format!(
            "{} is not a size; write a number and a unit, such as \"64KiB\" or \"64kB\"",
            quoted(text)
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_date_is_the_end_of_its_day_and_a_time_with_an_offset_is_exact() {
        let seconds = |text: &str| {
            let end = moment(text.parse().unwrap())?;
            Some(end.duration_since(UNIX_EPOCH).unwrap().as_secs())
        };
        assert_eq!(seconds("2026-12-31"), Some(1_798_761_600)); // 2027-01-01T00:00:00Z
        assert_eq!(seconds("2026-12-31T12:00:00Z"), Some(1_798_718_400));
        assert_eq!(seconds("2026-12-31T12:00:00+02:00"), Some(1_798_711_200));
        assert_eq!(seconds("2026-12-31T12:00:00-00:30"), Some(1_798_720_200));
        assert_eq!(seconds("2026-12-31T12:00:00"), None);
        assert_eq!(seconds("12:00:00"), None);
        assert_eq!(seconds("9999-12-30"), Some(253_402_214_400));
        assert_eq!(seconds("9999-12-31"), None);
    }
}

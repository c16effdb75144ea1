//! Times in whole seconds since the Unix epoch: RFC 3339 for programs, other text for people.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use x509_cert::der::DateTime;

/// The last second of the year 9999, the last year that RFC 3339 can write.
const LAST: u64 = 253_402_300_799;

/// The current time, in seconds since the Unix epoch; 0 if the clock is set before the epoch.
pub fn now() -> u64 {
    seconds(SystemTime::now())
}

/// `time` in seconds since the Unix epoch; 0 for times before the epoch.
pub fn seconds(time: SystemTime) -> u64 {
    time.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}

/// `seconds` since the Unix epoch as RFC 3339 text. A time after the year 9999 becomes the last
/// second of that year.
pub fn rfc3339(seconds: u64) -> String {
    let time = DateTime::from_unix_duration(Duration::from_secs(seconds.min(LAST)));
    time.map(|time| time.to_string()).unwrap_or_default() // no year is after 9999
}

/// `seconds` since the Unix epoch for people, such as `2026-11-21 10:53:50 UTC`. A time after the
/// year 9999 becomes the last second of that year.
pub fn utc(seconds: u64) -> String {
    rfc3339(seconds).replace('T', " ").replace('Z', " UTC")
}

/// [`utc`] and the distance from now, such as `2026-11-21 10:53:50 UTC (2 days ago)`. A message
/// that is compared with the one before has [`utc`] alone.
pub fn dated(seconds: u64) -> String {
    format!("{} ({})", utc(seconds), ago(seconds, now()))
}

/// Formats a time in the past.
pub fn ago(seconds: u64, now: u64) -> String {
    match now.checked_sub(seconds) {
        None => within(seconds, now),
        Some(0) => "now".to_owned(),
        Some(past) => format!("{} ago", duration(past)),
    }
}

/// Formats a time in the future.
pub fn within(seconds: u64, now: u64) -> String {
    match seconds.checked_sub(now) {
        None => ago(seconds, now),
        Some(left) => format!("in {}", duration(left)),
    }
}

/// Formats a duration, in seconds, in its largest unit, rounded down.
pub fn duration(seconds: u64) -> String {
    let (count, unit) = match seconds {
        0..60 => (seconds, "second"),
        60..3600 => (seconds / 60, "minute"),
        3600..172_800 => (seconds / 3600, "hour"),
        _ => (seconds / 86_400, "day"),
    };
    let plural = if count == 1 { "" } else { "s" };
    format!("{count} {unit}{plural}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_after_the_year_9999_become_its_end() {
        assert_eq!(rfc3339(0), "1970-01-01T00:00:00Z");
        assert_eq!(rfc3339(u64::MAX), "9999-12-31T23:59:59Z");
    }

    #[test]
    fn a_time_for_people_has_its_zone_and_its_distance() {
        assert_eq!(utc(1_795_258_430), "2026-11-21 10:53:50 UTC");
        assert_eq!(utc(u64::MAX), "9999-12-31 23:59:59 UTC");
        let (past, next) = (now() - 5 * 86_400, now() + 9 * 86_400 + 60);
        assert_eq!(dated(past), format!("{} (5 days ago)", utc(past)));
        assert_eq!(dated(next), format!("{} (in 9 days)", utc(next)));
    }

    #[test]
    fn times_are_formatted_in_their_largest_unit() {
        for (seconds, text) in [
            (100, "now"),
            (99, "1 second ago"),
            (0, "1 minute ago"),
            (160, "in 1 minute"),
            (100 + 3 * 86_400, "in 3 days"),
        ] {
            assert_eq!(ago(seconds, 100), text, "{seconds}");
        }
        assert_eq!(ago(0, 100_000), "27 hours ago");
    }
}

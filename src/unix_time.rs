//! Times in whole seconds since the Unix epoch, and their RFC 3339 text.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// The last second of the year 9999, the last year that RFC 3339 can write.
const LAST: u64 = 253_402_300_799;

/// The current time, in seconds since the Unix epoch; 0 if the clock is set before the epoch.
pub(crate) fn now() -> u64 {
    seconds(SystemTime::now())
}

/// `time` in seconds since the Unix epoch; 0 for times before the epoch.
pub(crate) fn seconds(time: SystemTime) -> u64 {
    time.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}

/// `seconds` since the Unix epoch as RFC 3339 text. A time after the year 9999 becomes the last
/// second of that year.
pub(crate) fn rfc3339(seconds: u64) -> String {
    let time = UNIX_EPOCH + Duration::from_secs(seconds.min(LAST));
    humantime::format_rfc3339_seconds(time).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_after_the_year_9999_become_its_end() {
        assert_eq!(rfc3339(0), "1970-01-01T00:00:00Z");
        assert_eq!(rfc3339(u64::MAX), "9999-12-31T23:59:59Z");
    }
}

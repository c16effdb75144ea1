//! Durations on the command line: `500ms`, `2s`, `1h`.

use std::time::Duration;

/// Maximum of a duration, one year.
const MAX: Duration = Duration::from_secs(365 * 86_400);

/// Parses a duration that is neither zero nor longer than [`MAX`].
pub(super) fn parse_duration(text: &str) -> Result<Duration, String> {
    match humantime::parse_duration(text) {
        Ok(Duration::ZERO) => Err("the duration must not be zero".to_owned()),
        Ok(duration) if duration > MAX => Err("longer than a year, the maximum".to_owned()),
        Ok(duration) => Ok(duration),
        Err(error) => Err(format!("{error}; write a number and a unit, such as 500ms or 1h")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_duration_is_positive_and_at_most_a_year() {
        assert_eq!(parse_duration("1h"), Ok(Duration::from_secs(3600)));
        for text in ["", "0s", "366d", "-1h"] {
            assert!(parse_duration(text).is_err(), "{text}");
        }
        let problem = parse_duration("7").unwrap_err();
        assert!(problem.ends_with("; write a number and a unit, such as 500ms or 1h"), "{problem}");
    }
}

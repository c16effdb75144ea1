//! Times on the status page, relative to now, and the search in its address.

use percent_encoding::percent_decode_str;

/// Formats a time in the past.
pub(super) fn ago(seconds: u64, now: u64) -> String {
    match now.checked_sub(seconds) {
        None => within(seconds, now),
        Some(0) => "now".to_owned(),
        Some(past) => format!("{} ago", duration(past)),
    }
}

/// Formats a time in the future.
pub(super) fn within(seconds: u64, now: u64) -> String {
    match seconds.checked_sub(now) {
        None => ago(seconds, now),
        Some(left) => format!("in {}", duration(left)),
    }
}

/// Formats a duration, in seconds, in its largest unit, rounded down.
pub(super) fn duration(seconds: u64) -> String {
    let (count, unit) = match seconds {
        0..60 => (seconds, "second"),
        60..3600 => (seconds / 60, "minute"),
        3600..172_800 => (seconds / 3600, "hour"),
        _ => (seconds / 86_400, "day"),
    };
    let plural = if count == 1 { "" } else { "s" };
    format!("{count} {unit}{plural}")
}

/// The value of `q` in a query (HTML, "application/x-www-form-urlencoded"); empty without one.
pub(super) fn search_of(query: Option<&str>) -> String {
    let pairs = query.unwrap_or_default().split('&');
    let value = pairs.filter_map(|pair| pair.strip_prefix("q=")).next().unwrap_or_default();
    percent_decode_str(&value.replace('+', " ")).decode_utf8_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

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

    #[test]
    fn a_search_is_decoded() {
        for (query, text) in [
            (None, ""),
            (Some(""), ""),
            (Some("a=b"), ""),
            (Some("a=b&q=CN%3Dlost+client%2B%ff&q=x"), "CN=lost client+\u{fffd}"),
        ] {
            assert_eq!(search_of(query), text);
        }
    }
}

//! The search in the address of the status page.

use percent_encoding::percent_decode_str;

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

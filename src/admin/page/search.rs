//! The parameters in the address of the status page.

use percent_encoding::percent_decode_str;

/// The value of a parameter in a query (HTML, "application/x-www-form-urlencoded"); empty without
/// one.
pub(in crate::admin) fn parameter(query: Option<&str>, name: &str) -> String {
    let mut pairs = query.unwrap_or_default().split('&').filter_map(|pair| pair.split_once('='));
    let value = pairs.find(|(key, _)| *key == name).map_or("", |(_, value)| value);
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
            assert_eq!(parameter(query, "q"), text);
        }
    }
}

//! Lines of `keygate report --json` as an input: the keys that were found in a filter.

use std::io::{self, BufRead, Read};

use data_encoding::BASE64;
use keygate_core::json::{self, JsonError};
use serde::Deserialize;

/// Maximum size of a line of a report, in bytes; a longer line is an error. A client with a long
/// subject has less than 8 KiB, and its certificates have 22 KiB at most.
const MAX_LINE: u64 = 64 << 10;

/// The key of a client that was found in a filter.
pub(super) struct ReportedKey {
    pub(super) spki: Vec<u8>,
    /// The encoding of the key that was found.
    pub(super) encoding: Option<String>,
    /// Whether there is a question about the key: it is not confirmed.
    pub(super) is_open: bool,
}

/// Why a line is not one of a report.
#[derive(Debug, thiserror::Error)]
pub(super) enum ReportLineError {
    #[error("not a line of `keygate report --json`: {0}")]
    Json(#[from] JsonError),
    #[error("not a line of `keygate report --json`: longer than 64 KiB")]
    Length,
    #[error("not a line of `keygate report --json`: spki is not base64")]
    Spki,
}

#[derive(Deserialize)]
struct ReportedFields {
    verdict: String,
    spki: Option<String>,
    encoding: Option<String>,
}

/// Whether the input that begins with `start` is a report, and not a JSON Web Key or a set.
pub(super) fn is_report(start: &[u8]) -> bool {
    let is_web_key = || [&b"\"kty\""[..], b"\"keys\""].iter().any(|it| has_member(start, it));
    start.trim_ascii_start().first() == Some(&b'{') && !is_web_key()
}

/// Whether `json` has a member with this name, quotes included. Quotes in a value are escaped, and
/// no colon follows a value.
fn has_member(json: &[u8], name: &[u8]) -> bool {
    json.windows(name.len()).enumerate().any(|(start, window)| {
        let after = json.get(start + name.len()..).unwrap_or_default();
        window == name && after.trim_ascii_start().starts_with(b":")
    })
}

/// The next line; `None` at the end of the input. Only the beginning of a long line is kept, which
/// [`parse`] rejects.
pub(super) fn next_line(source: &mut impl BufRead) -> io::Result<Option<Vec<u8>>> {
    let mut line = Vec::new();
    source.take(MAX_LINE + 1).read_until(b'\n', &mut line)?;
    if line.len() as u64 > MAX_LINE && !line.ends_with(b"\n") {
        source.skip_until(b'\n')?;
    }
    Ok((!line.is_empty()).then_some(line))
}

/// The client in a line; `None` if the line is blank, or has no key.
pub(super) fn parse(line: &[u8]) -> Result<Option<ReportedKey>, ReportLineError> {
    if line.trim_ascii().is_empty() {
        return Ok(None);
    }
    if line.len() as u64 > MAX_LINE {
        return Err(ReportLineError::Length);
    }
    let ReportedFields { verdict, spki, encoding } = json::parse(line)?;
    let is_open = ["probable", "cleared"].contains(&verdict.as_str());
    let Some(spki) = spki else { return Ok(None) };
    let spki = BASE64.decode(spki.as_bytes()).map_err(|_| ReportLineError::Spki)?;
    Ok(Some(ReportedKey { spki, encoding, is_open }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_object_with_the_members_of_a_web_key_is_no_report() {
        let accepts = |text: &str| is_report(text.as_bytes());
        assert!(accepts(r#"{"verdict":"probable","service":"keys","subject":"CN=\"kty\":x"}"#));
        assert!(accepts("{"));
        assert!(!accepts(r#" {"crv":"P-256","kty" : "EC"}"#));
        assert!(!accepts("{\n  \"keys\": ["));
        assert!(!accepts("MFkw"));
    }

    #[test]
    fn an_error_of_a_line_names_the_member_and_its_value() {
        for (line, expected) in [
            (
                r#"{"verdict": "probable", "spki": 7}"#,
                "spki: invalid type: integer `7`, expected a string at line 1 column 33",
            ),
            (r#"{"verdict": "probable", "spki": "!"}"#, "spki is not base64"),
            (r#"{"spki": null}"#, "missing field `verdict` at line 1 column 14"),
        ] {
            let problem = parse(line.as_bytes()).err().unwrap().to_string();
            assert_eq!(problem, format!("not a line of `keygate report --json`: {expected}"));
        }
    }
}

//! Lines of `keygate report --json` as an input: the keys that were found in a filter.

use data_encoding::BASE64;
use keygate_core::json::{self, JsonError};
use keygate_core::regular_file::FileSize;
use serde::Deserialize;

/// Maximum size of a line, in bytes. A client with a long subject has less than 8 KiB.
const MAX_LINE: usize = 64 << 10;

/// Collects the lines of an input that begins with a JSON object.
#[derive(Default)]
pub(super) struct ReportLines {
    pending: Vec<u8>,
    number: u64,
    has_begun: bool,
}

/// A line, and the client in it.
pub(super) struct ReportLine {
    /// Line number, from 1.
    pub(super) number: u64,
    /// `None` if there is no question about the client's key: it is on a list, or confirmed.
    pub(super) client: Result<Option<ReportedKey>, ReportLineError>,
}

/// The key of a client that was found in a filter.
pub(super) struct ReportedKey {
    pub(super) spki: Vec<u8>,
    /// The encoding of the key that was found.
    pub(super) encoding: Option<String>,
}

/// Why a line is not one of a report.
#[derive(Debug, thiserror::Error)]
pub(super) enum ReportLineError {
    #[error("not a line of `keygate report --json`: {0}; give its output as it is")]
    Json(#[from] JsonError),
    #[error("not a line of `keygate report --json`: spki is not base64; give its output as it is")]
    Spki,
    #[error(
        "a line of more than {}; give the output of `keygate report --json` as it is",
        FileSize(MAX_LINE as u64)
    )]
    TooLong,
}

#[derive(Deserialize)]
struct ReportedFields {
    verdict: String,
    spki: Option<String>,
    encoding: Option<String>,
}

impl ReportLines {
    /// Whether the input is a report, and not a JSON Web Key or a set. Its first piece decides.
    pub(super) fn accepts(&self, piece: &[u8]) -> bool {
        let is_web_key = || [&b"\"kty\""[..], b"\"keys\""].iter().any(|it| has_member(piece, it));
        self.has_begun || piece.trim_ascii_start().first() == Some(&b'{') && !is_web_key()
    }

    pub(super) fn is_empty(&self) -> bool {
        !self.has_begun
    }

    pub(super) fn push(&mut self, piece: &[u8], found: &mut impl FnMut(ReportLine)) {
        self.has_begun = true;
        for part in piece.split_inclusive(|byte| *byte == b'\n') {
            // One byte above the maximum marks a line as too long.
            let room = (MAX_LINE + 1).saturating_sub(self.pending.len());
            self.pending.extend(part.iter().take(room));
            if part.ends_with(b"\n") {
                self.end_line(found);
            }
        }
    }

    pub(super) fn finish(mut self, found: &mut impl FnMut(ReportLine)) {
        self.end_line(found);
    }

    fn end_line(&mut self, found: &mut impl FnMut(ReportLine)) {
        let line = std::mem::take(&mut self.pending);
        self.number += 1;
        if line.len() > MAX_LINE {
            found(ReportLine { number: self.number, client: Err(ReportLineError::TooLong) });
        } else if !line.trim_ascii().is_empty() {
            found(ReportLine { number: self.number, client: client(&line) });
        }
    }
}

/// Whether `json` has a member with this name, quotes included. Quotes in a value are escaped, and
/// no colon follows a value.
fn has_member(json: &[u8], name: &[u8]) -> bool {
    json.windows(name.len()).enumerate().any(|(start, window)| {
        let after = json.get(start + name.len()..).unwrap_or_default();
        window == name && after.trim_ascii_start().starts_with(b":")
    })
}

fn client(line: &[u8]) -> Result<Option<ReportedKey>, ReportLineError> {
    let ReportedFields { verdict, spki, encoding } = json::parse(line)?;
    let is_open = ["probable", "cleared"].contains(&verdict.as_str());
    let Some(spki) = spki.filter(|_| is_open) else { return Ok(None) };
    let spki = BASE64.decode(spki.as_bytes()).map_err(|_| ReportLineError::Spki)?;
    Ok(Some(ReportedKey { spki, encoding }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_object_with_the_members_of_a_web_key_is_no_report() {
        let accepts = |text: &str| ReportLines::default().accepts(text.as_bytes());
        assert!(accepts(r#"{"verdict":"probable","service":"keys","subject":"CN=\"kty\":x"}"#));
        assert!(accepts("{"));
        assert!(!accepts(r#" {"crv":"P-256","kty" : "EC"}"#));
        assert!(!accepts("{\n  \"keys\": ["));
        assert!(!accepts("MFkw"));
    }

    #[test]
    fn an_error_of_a_line_names_the_member_its_value_and_the_remedy() {
        let input = [
            r#"{"verdict": "probable", "spki": 7}"#,
            r#"{"verdict": "probable", "spki": "!"}"#,
            r#"{"spki": null}"#,
        ];
        let mut problems = Vec::new();
        ReportLines::default().push(format!("{}\n", input.join("\n")).as_bytes(), &mut |line| {
            problems.extend(line.client.err().map(|error| (line.number, error.to_string())));
        });
        let problem = |text: &str| {
            format!("not a line of `keygate report --json`: {text}; give its output as it is")
        };
        assert_eq!(
            problems,
            [
                (
                    1,
                    problem(
                        "spki: invalid type: integer `7`, expected a string at line 1 column 33"
                    )
                ),
                (2, problem("spki is not base64")),
                (3, problem("missing field `verdict` at line 1 column 14")),
            ]
        );
    }
}

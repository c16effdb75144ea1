//! Parsing of JSON, with errors that name the member.

use std::io;

use serde::de::DeserializeOwned;
use serde_json::Value;
use serde_json::error::Category;
use serde_path_to_error::Error;

use crate::printable::is_unprintable;

/// Maximum length of a problem, in characters; the rest is cut. It may have a value of a peer.
const MAX_PROBLEM: usize = 300;

/// Why JSON cannot be used: the path of the member and the problem of its value.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct JsonError(String);

impl From<Error<serde_json::Error>> for JsonError {
    fn from(error: Error<serde_json::Error>) -> Self {
        let problem = match error.inner().classify() {
            Category::Data => error.to_string(),
            Category::Eof | Category::Io | Category::Syntax => {
                return error.into_inner().into();
            }
        };
        let problem = problem.chars().take(MAX_PROBLEM);
        Self(problem.map(|it| if is_unprintable(it) { ' ' } else { it }).collect())
    }
}

/// An error of the syntax, which has no value of the text.
impl From<serde_json::Error> for JsonError {
    fn from(error: serde_json::Error) -> Self {
        Self(format!("not JSON: {error}"))
    }
}

impl From<JsonError> for io::Error {
    fn from(error: JsonError) -> Self {
        Self::new(io::ErrorKind::InvalidData, error)
    }
}

/// Parses `json`, which is one value.
///
/// # Errors
/// Returns an error if `json` is not JSON, or if it is not a `T`.
pub fn parse<T: DeserializeOwned>(json: &[u8]) -> Result<T, JsonError> {
    let mut deserializer = serde_json::Deserializer::from_slice(json);
    let value = serde_path_to_error::deserialize(&mut deserializer)?;
    deserializer.end()?;
    Ok(value)
}

/// Converts a value of a larger document.
///
/// # Errors
/// Returns an error if `value` is not a `T`.
pub fn from_value<T: DeserializeOwned>(value: &Value) -> Result<T, JsonError> {
    Ok(serde_path_to_error::deserialize(value)?)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    type Entries = BTreeMap<String, Vec<u8>>;

    fn problem(json: &str) -> String {
        parse::<Entries>(json.as_bytes()).unwrap_err().to_string()
    }

    #[test]
    fn a_problem_has_the_member_and_its_place() {
        for (json, expected) in [
            (
                r#"{"a": [1, "x"]}"#,
                "a[1]: invalid type: string \"x\", expected u8 at line 1 column 13",
            ),
            (r#"{"a": 7}"#, "a: invalid type: integer `7`, expected a sequence"),
            ("7", "invalid type: integer `7`, expected a map at line 1 column 1"),
            (r#"{"a": [1"#, "not JSON: EOF while parsing a list at line 1 column 8"),
            (r#"{"a": []} x"#, "not JSON: trailing characters at line 1 column 11"),
        ] {
            assert!(problem(json).starts_with(expected), "{json}: {}", problem(json));
        }
        let error = from_value::<Entries>(&serde_json::json!({ "a": [300] })).unwrap_err();
        assert_eq!(error.to_string(), "a[0]: invalid value: integer `300`, expected u8");
    }

    #[test]
    fn a_problem_is_bounded_and_has_no_control_characters() {
        let long = "\u{1b}x\u{202e}".repeat(1000);
        for json in [serde_json::json!({ "a": [&long] }), serde_json::json!({ &long: 7 })] {
            let problem = problem(&json.to_string());
            assert!(problem.chars().count() <= MAX_PROBLEM, "{problem}");
            assert!(!problem.contains(is_unprintable), "{problem}");
        }
    }
}

//! Problems of JSON in plain words: the member, its value and its place.
//!
//! serde_json alone decides whether JSON is accepted. JSON that it rejects is read once more, as a
//! tree, to find the member.

mod fault;
#[cfg(test)]
mod tests;
mod tree;

use std::fmt;
use std::io;

use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use serde_json::error::Category;

use self::tree::{Node, fault};

/// Maximum size of JSON in which the member is searched, in bytes, 1 MiB. The problem of larger
/// JSON has no member.
const MAX_SEARCHED: usize = 1 << 20;

/// Why JSON cannot be used.
#[derive(Debug)]
pub struct JsonError {
    problem: String,
    /// Counted from 1; 0 if it is unknown.
    line: usize,
    column: usize,
}

impl JsonError {
    fn new<T: DeserializeOwned>(
        error: &serde_json::Error,
        tree: impl FnOnce() -> Option<Node>,
    ) -> Self {
        let problem = match error.classify() {
            Category::Data => tree().and_then(|tree| fault::<T>(&tree)).map_or_else(
                || "a member is missing, unknown or of another type".to_owned(),
                |fault| fault.to_string(),
            ),
            Category::Eof => "the JSON ends too early".to_owned(),
            Category::Io | Category::Syntax => "not JSON".to_owned(),
        };
        Self { problem, line: error.line(), column: error.column() }
    }
}

impl fmt::Display for JsonError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { problem, line, column } = self;
        match line {
            0 => formatter.write_str(problem),
            line => write!(formatter, "{problem} (line {line}, column {column})"),
        }
    }
}

impl std::error::Error for JsonError {}

impl From<JsonError> for io::Error {
    fn from(error: JsonError) -> Self {
        Self::new(io::ErrorKind::InvalidData, error)
    }
}

/// Parses `json`, which is one value.
///
/// # Errors
/// Returns an error if `json` is not JSON, or if it is not a `T`.
pub(crate) fn parse<T: DeserializeOwned>(json: &[u8]) -> Result<T, JsonError> {
    serde_json::from_slice(json).map_err(|error| JsonError::new::<T>(&error, || tree(json)))
}

/// Converts a value of a larger document.
///
/// # Errors
/// Returns an error if `value` is not a `T`.
pub(crate) fn from_value<T: DeserializeOwned>(value: &Value) -> Result<T, JsonError> {
    T::deserialize(value)
        .map_err(|error| JsonError::new::<T>(&error, || Node::deserialize(value).ok()))
}

/// The path of the member because of which the first value in `json` is not a `T`.
pub(crate) fn faulty_member<T: DeserializeOwned>(json: &[u8]) -> Option<String> {
    fault::<T>(&tree(json)?).map(|fault| fault.path).filter(|path| !path.is_empty())
}

/// The first value in `json`.
fn tree(json: &[u8]) -> Option<Node> {
    if json.len() > MAX_SEARCHED {
        return None;
    }
    Node::deserialize(&mut serde_json::Deserializer::from_slice(json)).ok()
}

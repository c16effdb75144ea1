//! The lines of errors that are found after the checks: each names the key that causes it.

use std::fmt;
use std::path::PathBuf;

use toml::de::DeValue;

use super::document::Document;

/// A key of the configuration that causes an error.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyPlace {
    /// The array of tables, such as `services`, and the name of the table in it; or a table alone.
    /// `None` for a key with its whole name.
    table: Option<(&'static str, String)>,
    /// The key with the names of its tables, such as `tls.certificate`.
    key: &'static str,
}

impl KeyPlace {
    /// A key outside of arrays, such as `state.dir`.
    #[must_use]
    pub fn new(key: &'static str) -> Self {
        Self { table: None, key }
    }

    /// A key in the table with this name in `array`, such as `services`.
    #[must_use]
    pub fn in_table(array: &'static str, name: &str, key: &'static str) -> Self {
        Self { table: Some((array, name.to_owned())), key }
    }

    /// The line of the key in `document`, or of the nearest table around it if the key has its
    /// default. `None` if no table is around it.
    pub(super) fn line_in(&self, document: &Document<'_>) -> Option<usize> {
        let mut path = match &self.table {
            None => self.key.to_owned(),
            Some((array, name)) => {
                let has_name = |table: &DeValue<'_>| {
                    table.get("name").and_then(|it| it.get_ref().as_str()) == Some(name)
                };
                match document.value(array)?.0.as_array() {
                    None => format!("{array}.{}", self.key),
                    Some(tables) => {
                        let index = tables.iter().position(|table| has_name(table.get_ref()))?;
                        format!("{array}[{index}].{}", self.key)
                    }
                }
            }
        };
        loop {
            if let Some((_, line)) = document.value(&path) {
                return Some(line);
            }
            let around = path.rfind('.')?;
            path.truncate(around);
        }
    }
}

/// An error of what the configuration names, such as a file or an address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PlacedProblem {
    /// The key that causes the error; `None` if no key does.
    pub place: Option<KeyPlace>,
    /// The problem and its remedy.
    pub problem: String,
}

/// A [`PlacedProblem`] with the file and the line of its key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LocatedProblem {
    /// The configuration file; `None` if no key causes the error.
    pub file: Option<PathBuf>,
    /// Number of the line, counted from 1. `None` if the file does not set the key.
    pub line: Option<usize>,
    /// The problem and its remedy.
    pub problem: String,
}

/// `FILE:LINE: PROBLEM`; unknown parts are left out.
impl fmt::Display for LocatedProblem {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(file) = &self.file {
            write!(formatter, "{}:", file.display())?;
            if let Some(line) = self.line {
                write!(formatter, "{line}:")?;
            }
            formatter.write_str(" ")?;
        }
        formatter.write_str(&self.problem)
    }
}

//! A key of a configuration file, for the line of errors that are found after the checks.

use std::path::Path;

use super::document::Document;
use super::text_of;

/// A key that names a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KeyPlace<'a> {
    /// The array of tables, such as `services`, and the name of the table in it. `None` for a key
    /// outside of arrays.
    pub table: Option<(&'a str, &'a str)>,
    /// The key with the names of its tables, such as `tls.certificate`.
    pub key: &'a str,
}

impl KeyPlace<'_> {
    /// Number of the line that sets the key in `file`, counted from 1. `None` if the file cannot be
    /// read any more, or if the key has its default.
    #[must_use]
    pub fn line_in(&self, file: &Path) -> Option<usize> {
        let text = text_of(file).ok()?;
        let document = Document::parse(&text).ok()?;
        let path = match self.table {
            None => self.key.to_owned(),
            Some((array, name)) => {
                let tables = document.value(array)?.0.as_array()?;
                let has_name = |table: &toml::de::DeValue<'_>| {
                    table.get("name").and_then(|it| it.get_ref().as_str()) == Some(name)
                };
                let index = tables.iter().position(|table| has_name(table.get_ref()))?;
                format!("{array}[{index}].{}", self.key)
            }
        };
        Some(document.value(&path)?.1)
    }
}

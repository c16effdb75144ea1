//! The lines of errors that are found after the checks: each names the key that causes it.

use std::fmt;
use std::path::{Path, PathBuf};

use toml::de::DeValue;

use super::document::Document;
use super::keys::Takes;
use super::{Config, text_of};

/// A key of the configuration that causes an error.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyPlace {
    /// The array of tables, such as `services`, and the name of the table in it. `None` for a key
    /// outside of arrays.
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
    fn line_in(&self, document: &Document<'_>) -> Option<usize> {
        let mut path = match &self.table {
            None => self.key.to_owned(),
            Some((array, name)) => {
                let tables = document.value(array)?.0.as_array()?;
                let has_name = |table: &DeValue<'_>| {
                    table.get("name").and_then(|it| it.get_ref().as_str()) == Some(name)
                };
                let index = tables.iter().position(|table| has_name(table.get_ref()))?;
                format!("{array}[{index}].{}", self.key)
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

/// The text of a configuration file, for the lines of its keys.
#[derive(Debug, Clone)]
pub struct KeyLines {
    file: PathBuf,
    /// Empty if the file cannot be read any more.
    text: String,
}

impl KeyLines {
    /// Reads `file`. If that fails, no key has a line.
    #[must_use]
    pub fn read(file: &Path) -> Self {
        Self { file: file.to_owned(), text: text_of(file).unwrap_or_default() }
    }

    /// The keys of `file` without their lines.
    #[must_use]
    pub fn unknown(file: &Path) -> Self {
        Self { file: file.to_owned(), text: String::new() }
    }

    /// Adds file and line to each of `problems`.
    #[must_use]
    pub fn locate(&self, problems: Vec<PlacedProblem>) -> Vec<LocatedProblem> {
        let document = Document::parse(&self.text, Config::form()).ok();
        let located = problems.into_iter().map(|PlacedProblem { place, problem }| {
            let line = place.as_ref().zip(document.as_ref());
            let line = line.and_then(|(place, document)| place.line_in(document));
            LocatedProblem { file: place.map(|_| self.file.clone()), line, problem }
        });
        located.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_problem_has_the_line_of_its_key_or_of_the_table_around_it() {
        let text = "[state]\n\n[[services]]\nname = \"a\"\n[[services]]\nname = \"b\"\ntls = { certificate = \"c\" }\n";
        let lines = KeyLines { file: PathBuf::from("k.toml"), text: text.to_owned() };
        let located = |place| {
            let problem = "it is wrong".to_owned();
            lines.locate(vec![PlacedProblem { place, problem }])[0].to_string()
        };
        let key = |key| located(Some(KeyPlace::new(key)));
        let of = |name, key| located(Some(KeyPlace::in_table("services", name, key)));
        assert_eq!(of("b", "tls.certificate"), "k.toml:7: it is wrong");
        assert_eq!(of("b", "tls.private_key"), "k.toml:7: it is wrong");
        assert_eq!(of("b", "listen"), "k.toml:5: it is wrong");
        assert_eq!(of("a", "tls.certificate"), "k.toml:3: it is wrong");
        assert_eq!(key("state.dir"), "k.toml:1: it is wrong");
        assert_eq!(key("admin.listen"), "k.toml: it is wrong", "the default address");
        assert_eq!(of("c", "listen"), "k.toml: it is wrong");
        assert_eq!(located(None), "it is wrong");
        assert_eq!(KeyLines::read(Path::new("/nowhere")).text, "");
    }
}

//! The lines of keys in a configuration file.

use std::path::{Path, PathBuf};

use super::document::Document;
use super::input::Takes;
use super::{Config, LocatedProblem, PlacedProblem, text_of};

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
        let document = Document::parse(&self.text, &Config::form()).ok();
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
    use crate::config::KeyPlace;

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

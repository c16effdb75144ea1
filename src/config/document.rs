//! A TOML document with the position of each value.

use std::ops::Range;
use std::string::FromUtf8Error;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::ConfigProblem;
use super::form::Form;

/// A TOML document and its text.
#[derive(Debug)]
pub(super) struct Document<'a> {
    text: &'a str,
    root: DeValue<'a>,
}

impl<'a> Document<'a> {
    /// Parses `text`, a table of this form.
    ///
    /// # Errors
    /// Returns the first place that is not TOML, or that the text has no key of the configuration.
    /// The problem has no part of the text, because the file may hold a secret.
    pub(super) fn parse(text: &'a str, form: &Form) -> Result<Self, ConfigProblem> {
        let (table, errors) = DeTable::parse_recoverable(text);
        let document = Self { text, root: DeValue::Table(table.into_inner()) };
        if let Some(error) = errors.first() {
            let problem = format!("not valid TOML: {}", error.message());
            return Err(document.problem_at(&error.span().unwrap_or_default(), "", problem));
        }
        let mut known = form.table().into_iter().flat_map(|table| &table.keys);
        match document.first_key() {
            Some(key) if !known.any(|key| document.root.get(key.name).is_some()) => {
                let problem = "no key of keygate; give the path of the configuration";
                Err(document.problem_at(&key, "", problem))
            }
            Some(_) | None => Ok(document),
        }
    }

    /// The bytes of the first key.
    fn first_key(&self) -> Option<Range<usize>> {
        self.root.as_table()?.iter().map(|(key, _)| key.span()).min_by_key(|span| span.start)
    }

    /// The text of these bytes.
    pub(super) fn text(&self, span: &Range<usize>) -> &'a str {
        self.text.get(span.clone()).unwrap_or_default()
    }

    /// A problem of the value at `path`, which has these bytes.
    pub(super) fn problem_at(
        &self,
        span: &Range<usize>,
        path: &str,
        problem: impl Into<String>,
    ) -> ConfigProblem {
        let (line, column) = self.position(span.start);
        ConfigProblem { line, column, field: self.field(path), problem: problem.into() }
    }

    /// The line and the column of a byte of the text, counted from 1.
    fn position(&self, start: usize) -> (usize, usize) {
        end_of(self.text.get(..start).unwrap_or(self.text))
    }

    /// The bytes of the value at `path`, or of the nearest table around it.
    pub(super) fn span(&self, path: &str) -> Range<usize> {
        let (mut value, mut span) = (&self.root, 0..0);
        for step in steps(path) {
            let Some(next) = child(value, step) else { break };
            (value, span) = (next.get_ref(), next.span());
        }
        span
    }

    /// The value at `path` and its bytes. The document itself has the empty path.
    pub(super) fn value_and_span(&self, path: &str) -> Option<(&DeValue<'a>, Range<usize>)> {
        let (mut value, mut span) = (&self.root, 0..0);
        for step in steps(path) {
            let next = child(value, step)?;
            (value, span) = (next.get_ref(), next.span());
        }
        Some((value, span))
    }

    /// The value at `path` and its line, counted from 1.
    pub(super) fn value(&self, path: &str) -> Option<(&DeValue<'a>, usize)> {
        let (value, span) = self.value_and_span(path)?;
        Some((value, self.position(span.start).0))
    }

    /// `path` as people read it: tables of an array have their `name` for the index.
    fn field(&self, path: &str) -> String {
        let mut value = Some(&self.root);
        let mut words: Vec<&str> = Vec::new();
        for step in steps(path) {
            value = value.and_then(|it| child(it, step)).map(Spanned::get_ref);
            match step {
                Step::Key(key) => words.extend(Some(key).filter(|key| is_plain(key))),
                Step::Index(_) => {
                    let name = value.and_then(|it| it.get("name")).map(Spanned::get_ref);
                    words.extend(name.and_then(DeValue::as_str).filter(|name| is_plain(name)));
                }
            }
        }
        words.join(".")
    }
}

/// The problem of a file that is not UTF-8.
pub(super) fn encoding_problem(error: &FromUtf8Error) -> ConfigProblem {
    let valid = error.as_bytes().get(..error.utf8_error().valid_up_to()).unwrap_or_default();
    let (line, column) = end_of(std::str::from_utf8(valid).unwrap_or_default());
    let problem = "not valid TOML: a character is not UTF-8; save the file as UTF-8".to_owned();
    ConfigProblem { line, column, field: String::new(), problem }
}

/// The line and the column after the last character of `text`, counted from 1.
fn end_of(text: &str) -> (usize, usize) {
    let line = text.rsplit('\n').next().unwrap_or_default();
    let lines = text.bytes().filter(|byte| *byte == b'\n').count();
    (lines + 1, line.chars().count() + 1)
}

/// A step from a value to one inside it.
#[derive(Clone, Copy)]
enum Step<'a> {
    Index(usize),
    Key(&'a str),
}

fn steps(path: &str) -> impl Iterator<Item = Step<'_>> {
    let steps = path.split(['.', '[']).filter(|step| !step.is_empty());
    steps.map(|step| match step.strip_suffix(']').map(str::parse) {
        Some(Ok(index)) => Step::Index(index),
        Some(Err(_)) | None => Step::Key(step),
    })
}

fn child<'v, 'a>(value: &'v DeValue<'a>, step: Step<'_>) -> Option<&'v Spanned<DeValue<'a>>> {
    match step {
        Step::Index(index) => value.as_array()?.get(index),
        Step::Key(key) => value.as_table()?.get(key),
    }
}

/// Whether a name needs no quotes in a message.
fn is_plain(name: &str) -> bool {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b".-_".contains(&byte);
    !name.is_empty() && name.len() <= 64 && name.bytes().all(is_plain)
}

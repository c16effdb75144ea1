//! Values of a file on their way into the model, and the report of their problems.
//!
//! A conversion returns a value or [`Reported`], which exists only after a report. A value that has
//! a problem has no substitute, so no check reads one. Up to 100 problems are collected.

use std::cell::RefCell;
use std::ops::Range;
use std::path::Path;

use toml::de::{DeTable, DeValue};

use super::ConfigProblem;
use super::document::Document;
use super::form::Form;
use super::message::{brief, quoted, size_text, suggestion};

/// Maximum number of problems in a report. Each costs a search for its line.
pub(super) const MAX_PROBLEMS: usize = 100;

/// Keys whose value may be a secret: a key or token in place of a path, a password in a URL. No
/// message about its form has it.
const SECRETS: [&str; 7] =
    ["api_key", "endpoint", "headers", "private_key", "proxy", "source", "url"];

/// Text in place of a value that may be a secret.
const HIDDEN: &str = "the value";

/// A problem has been reported.
#[derive(Debug, Clone, Copy)]
pub(super) struct Reported(());

/// A value for the model.
pub(super) type Taken<T> = Result<T, Reported>;

/// A kind of values: their form, and the conversion of one.
pub(super) trait Takes {
    /// Whether the value may be absent.
    const IS_OPTIONAL: bool = false;

    /// The type in the model.
    type Value;

    fn form() -> Form;

    /// Converts a value, or reports each of its problems.
    fn take(input: &Input<'_>) -> Taken<Self::Value>;

    /// The value of a key that is absent and has no default.
    fn absent(table: &Input<'_>, key: &str) -> Taken<Self::Value> {
        Err(table.report_missing(key))
    }
}

/// Reads one document and collects its problems.
struct Reader<'v> {
    /// The configuration file, the base of relative paths.
    file: &'v Path,
    document: &'v Document<'v>,
    problems: RefCell<Vec<ConfigProblem>>,
}

/// A value with its place.
pub(super) struct Input<'v> {
    reader: &'v Reader<'v>,
    value: &'v DeValue<'v>,
    /// The bytes of the value; the bytes of its table if it is a default.
    span: Range<usize>,
    /// Such as `services[0].limits.idle_timeout`; the document itself has the empty path.
    path: String,
}

/// Converts the value at `path` of the document.
///
/// # Errors
/// Returns every problem, in the order of the lines.
pub(super) fn take<T: Takes>(
    file: &Path,
    document: &Document<'_>,
    path: &str,
) -> Result<T::Value, Vec<ConfigProblem>> {
    let empty = DeValue::Table(DeTable::new());
    let (value, span) = document.value_and_span(path).unwrap_or((&empty, 0..0));
    let reader = Reader { file, document, problems: RefCell::default() };
    let input = Input { reader: &reader, value, span, path: path.to_owned() };
    let taken = T::take(&input);
    let mut problems = reader.problems.take();
    match taken {
        Ok(taken) if problems.is_empty() => Ok(taken),
        Ok(_) | Err(Reported(())) => {
            problems.sort_by_key(|problem| (problem.line, problem.column));
            Err(problems)
        }
    }
}

impl<'v> Input<'v> {
    /// Reports a problem of the value.
    pub(super) fn report(&self, problem: impl Into<String>) -> Reported {
        self.report_in(&self.span, &self.path, problem)
    }

    /// Reports a problem of the key at `inner`, such as `tls.alpn`, in this table.
    pub(super) fn report_at(&self, inner: &str, problem: impl Into<String>) -> Reported {
        let path = self.at(inner);
        self.report_in(&self.reader.document.span(&path), &path, problem)
    }

    pub(super) fn report_missing(&self, key: &str) -> Reported {
        self.report_at(key, "the key is missing; add it, because it has no default")
    }

    fn report_in(&self, span: &Range<usize>, path: &str, text: impl Into<String>) -> Reported {
        let mut problems = self.reader.problems.borrow_mut();
        if problems.len() < MAX_PROBLEMS {
            let problem = self.reader.document.problem_at(span, path, text);
            // Each service reads the global policy.
            if !problems.contains(&problem) {
                problems.push(problem);
            }
        }
        Reported(())
    }

    /// Whether no problem has been reported.
    pub(super) fn is_fine(&self) -> bool {
        self.reader.problems.borrow().is_empty()
    }

    /// Whether the file sets the key at `inner` in this table.
    pub(super) fn sets(&self, inner: &str) -> bool {
        self.reader.document.value_and_span(&self.at(inner)).is_some()
    }

    /// The path of a key in this table.
    fn at(&self, inner: &str) -> String {
        if self.path.is_empty() { inner.to_owned() } else { format!("{}.{inner}", self.path) }
    }

    /// The directory of the configuration.
    pub(super) fn directory(&self) -> Option<&'v Path> {
        self.reader.file.parent()
    }

    pub(super) fn is_table(&self) -> bool {
        self.value.is_table()
    }

    /// The key at `inner` of the table, which has this default.
    pub(super) fn key<T: Takes>(
        &self,
        inner: &str,
        default: Option<&'static str>,
    ) -> Taken<T::Value> {
        let Self { reader, .. } = *self;
        let written = self.value.get(inner).map(|it| (it.get_ref(), it.span(), self.at(inner)));
        // A service or authorizer has the keys of the global policy.
        let inherited = || {
            let path = format!("policy.{inner}");
            let (value, span) = reader.document.value_and_span(&path)?;
            self.path.ends_with(".policy").then_some((value, span, path))
        };
        if let Some((value, span, path)) = written.or_else(inherited) {
            return T::take(&Input { reader, value, span, path });
        }
        match default.map(DeValue::parse) {
            Some(Ok(value)) => {
                let (value, span) = (value.get_ref(), self.span.clone());
                T::take(&Input { reader, value, span, path: self.at(inner) })
            }
            Some(Err(_)) | None => T::absent(self, inner),
        }
    }

    /// The items of a list.
    pub(super) fn items<T: Takes>(&self) -> Taken<Vec<Self>> {
        let DeValue::Array(values) = self.value else { return Err(self.unlike::<T>()) };
        let items = values.iter().enumerate().map(|(index, item)| {
            let path = format!("{}[{index}]", self.path);
            Self { reader: self.reader, value: item.get_ref(), span: item.span(), path }
        });
        Ok(items.collect())
    }

    /// The value itself, if it has the type of `T`.
    pub(super) fn matching<T: Takes, R>(
        &self,
        of: impl FnOnce(&'v DeValue<'v>) -> Option<R>,
    ) -> Taken<R> {
        of(self.value).ok_or_else(|| self.unlike::<T>())
    }

    pub(super) fn text<T: Takes>(&self) -> Taken<&'v str> {
        self.matching::<T, _>(DeValue::as_str)
    }

    /// The value with this word.
    pub(super) fn word<T: Takes>(&self, words: &[(&str, T::Value)]) -> Taken<T::Value>
    where
        T::Value: Copy,
    {
        let text = self.text::<T>()?;
        if let Some((_, value)) = words.iter().find(|(word, _)| *word == text) {
            return Ok(*value);
        }
        let known: Vec<_> = words.iter().map(|(word, _)| *word).collect();
        let (shown, hint) = (self.shown(), suggestion(text, &known));
        Err(self.report(format!("{shown} is not {}{hint}", expected(&T::form()))))
    }

    /// A whole number from `min` to `max`.
    pub(super) fn number<T: Takes>(&self, min: u64, max: u64) -> Taken<u64> {
        let integer = self.matching::<T, _>(DeValue::as_integer)?;
        let number = i128::from_str_radix(integer.as_str(), integer.radix());
        match number {
            Ok(number) if (i128::from(min)..=i128::from(max)).contains(&number) => {
                Ok(number.try_into().unwrap_or(max))
            }
            Ok(number) if max >= u32::MAX.into() && number < i128::from(min) => {
                Err(self.report(format!("{number}; give {min} or more")))
            }
            Ok(_) | Err(_) => {
                let number = brief(&integer.to_string());
                Err(self.report(format!("{number} is not between {min} and {max}")))
            }
        }
    }

    pub(super) fn ensure_table<T: Takes>(&self) -> Taken<()> {
        if self.is_table() { Ok(()) } else { Err(self.unlike::<T>()) }
    }

    /// Reports each key of the table that is none of `known`.
    pub(super) fn ensure_known(&self, known: &[&str]) {
        for (name, _) in self.value.as_table().into_iter().flatten() {
            if !known.contains(&name.get_ref().as_ref()) && self.has_room() {
                let problem = self.unknown(name.get_ref(), known);
                self.report_in(&name.span(), &self.at(name.get_ref()), problem);
            }
        }
    }

    /// The problem of a key that is none of `known`.
    fn unknown(&self, name: &str, known: &[&str]) -> String {
        let hint = match suggestion(name, known) {
            hint if !hint.is_empty() => hint,
            _ => format!("; the keys here are {}", known.join(", ")),
        };
        format!("there is no key {}{hint}", quoted(name))
    }

    fn has_room(&self) -> bool {
        self.reader.problems.borrow().len() < MAX_PROBLEMS
    }

    /// Reports a value of another type.
    pub(super) fn unlike<T: Takes>(&self) -> Reported {
        let form = T::form();
        let shown = self.shown();
        let found = match self.value {
            DeValue::Table(_) => "a table".to_owned(),
            DeValue::Array(_) => "a list".to_owned(),
            // Text in place of a table may be the content of a key file.
            DeValue::String(_) if form.table().is_some() => "text".to_owned(),
            DeValue::Boolean(_)
            | DeValue::Datetime(_)
            | DeValue::Float(_)
            | DeValue::Integer(_)
            | DeValue::String(_) => shown.clone(),
        };
        let remedy = match (&form, self.value) {
            (Form::Text, DeValue::Array(_) | DeValue::Table(_)) => String::new(),
            (Form::Text, _) if shown == HIDDEN => String::new(),
            (Form::Text, _) => format!("; write {shown:?}"),
            (Form::Words(words), _) if words.contains(&shown.as_str()) => {
                format!("; write {shown:?}")
            }
            _ => String::new(),
        };
        self.report(format!("{found} is not {}{remedy}", expected(&form)))
    }

    /// The value as it is written.
    fn shown(&self) -> String {
        let key = self.path.rsplit('.').next().unwrap_or_default();
        if SECRETS.contains(&key.split('[').next().unwrap_or_default()) {
            return HIDDEN.to_owned();
        }
        let text = self.reader.document.text(&self.span).lines().next().unwrap_or_default();
        brief(text)
    }
}

/// The form in a message, after `is not`.
fn expected(form: &Form) -> String {
    match form {
        Form::Boolean => "true or false, without quotes".to_owned(),
        Form::Date => "a date without quotes, such as 2026-12-31".to_owned(),
        Form::Duration { .. } => {
            "a duration in quotes, such as \"250ms\", \"5s\" or \"1h\"".to_owned()
        }
        Form::List(_) => "a list in brackets".to_owned(),
        Form::Number { min, max } if *max >= u32::MAX.into() => {
            format!("a whole number without quotes, {min} or more")
        }
        Form::Number { min, max } => {
            format!("a whole number without quotes, from {min} to {max}")
        }
        Form::Size { max: u64::MAX, .. } => "a size in quotes, such as \"64KiB\"".to_owned(),
        Form::Size { min, max } => {
            let (min, max) = (size_text(*min), size_text(*max));
            format!("a size in quotes, such as \"64KiB\", from {min} to {max}")
        }
        Form::Table(_) => "a table; write its keys in braces, or below its header".to_owned(),
        Form::Text => "text in quotes".to_owned(),
        Form::TextOrTable(table) => {
            let keys = table.keys.iter().filter(|key| key.is_required()).map(|key| key.name);
            format!("text in quotes, or a table with {}", keys.collect::<Vec<_>>().join(" and "))
        }
        Form::Words(words) => {
            let words: Vec<_> = words.iter().map(|word| format!("{word:?}")).collect();
            format!("one of {}", words.join(", "))
        }
    }
}

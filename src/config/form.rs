//! Compares a document with the table of keys, and converts it into typed tables.
//!
//! Up to 100 problems of the form are collected: unknown and missing keys, values of the wrong type, numbers
//! out of range, unknown words. Keys that are absent get their defaults.

use std::ops::Range;

use serde::de::DeserializeOwned;
use toml::Spanned;
use toml::de::{DeInteger, DeTable, DeValue, ValueDeserializer};

use super::document::Document;
use super::keys::{Form, Key, Table, Takes};
use super::suggestion::suggestion;
use super::{ConfigProblem, raw, units};

/// Maximum number of problems in a report. Each costs a search for its line.
pub(super) const MAX_PROBLEMS: usize = 100;

/// Keys whose value may be a secret: a key or token in place of a path, a password in a URL. No
/// message of the form has it.
const SECRETS: [&str; 6] = ["api_key", "endpoint", "headers", "private_key", "proxy", "url"];

/// Text in place of a value that may be a secret.
const HIDDEN: &str = "the value";

/// Converts the table at `path`; the document itself has the empty path.
///
/// # Errors
/// Returns every problem of the form, in the order of the lines.
pub(super) fn decode<T: Takes + DeserializeOwned>(
    document: &Document<'_>,
    path: &str,
) -> Result<T, Vec<ConfigProblem>> {
    let empty = DeValue::Table(DeTable::new());
    let (value, span) = document.value_and_span(path).unwrap_or((&empty, 0..0));
    let mut checker = FormChecker { document, problems: Vec::new() };
    let value = checker.complete(&T::form(), value, &span, path);
    if checker.problems.is_empty() {
        let value = ValueDeserializer::from(Spanned::new(span, value));
        match T::deserialize(value) {
            Ok(tables) => return Ok(tables),
            // The table of keys and the types differ.
            Err(error) => {
                let place = error.span().unwrap_or_default();
                checker.problems.push(document.problem_at(&place, path, "this value is not valid"));
            }
        }
    }
    checker.problems.sort_by_key(|problem| (problem.line, problem.column));
    Err(checker.problems)
}

struct FormChecker<'d, 'a> {
    document: &'d Document<'a>,
    problems: Vec<ConfigProblem>,
}

impl<'a> FormChecker<'_, 'a> {
    fn report(&mut self, span: &Range<usize>, path: &str, problem: impl Into<String>) {
        if self.problems.len() < MAX_PROBLEMS {
            self.problems.push(self.document.problem_at(span, path, problem));
        }
    }

    /// Checks `value`, and returns it with the defaults of the keys that it lacks.
    fn complete(
        &mut self,
        form: &Form,
        value: &DeValue<'a>,
        span: &Range<usize>,
        path: &str,
    ) -> DeValue<'a> {
        match (form, value) {
            (Form::Table(table) | Form::TextOrTable(table), DeValue::Table(values)) => {
                return self.complete_table(table, values, span, path);
            }
            (Form::List(items), DeValue::Array(values)) => {
                let values = values.iter().enumerate().map(|(index, value)| {
                    let path = format!("{path}[{index}]");
                    let span = value.span();
                    let value = self.complete(items, value.get_ref(), &span, &path);
                    Spanned::new(span, value)
                });
                return DeValue::Array(values.collect());
            }
            (Form::Boolean, DeValue::Boolean(_)) | (Form::Date, DeValue::Datetime(_)) => {}
            (Form::Text | Form::TextOrTable(_), DeValue::String(_)) => {}
            (Form::Duration { is_positive }, DeValue::String(text)) => {
                match units::duration(text) {
                    Ok(time) if time.is_zero() && *is_positive => {
                        self.report(span, path, "0 would expire at once; give a longer time");
                    }
                    Ok(_) => {}
                    Err(problem) => self.report(span, path, problem),
                }
            }
            (Form::Size { min, max }, DeValue::String(text)) => {
                if let Err(problem) = units::size_within(text, *min, *max) {
                    self.report(span, path, problem);
                }
            }
            (Form::Number { min, max }, DeValue::Integer(integer)) => {
                if let Some(problem) = out_of_bounds(integer, *min, *max) {
                    self.report(span, path, problem);
                }
            }
            (Form::Words(words), DeValue::String(word)) if words.contains(&word.as_ref()) => {}
            (Form::Words(words), DeValue::String(word)) => {
                let hint = suggestion(word, words);
                self.report(
                    span,
                    path,
                    format!("{} is not {}{hint}", self.shown(span, path), expected(form)),
                );
            }
            (form, value) => {
                let problem = self.unlike(form, value, span, path);
                self.report(span, path, problem);
            }
        }
        value.clone()
    }

    fn complete_table(
        &mut self,
        table: &Table,
        values: &DeTable<'a>,
        span: &Range<usize>,
        path: &str,
    ) -> DeValue<'a> {
        let inside =
            |key: &str| if path.is_empty() { key.to_owned() } else { format!("{path}.{key}") };
        let mut complete = DeTable::new();
        for (name, value) in values {
            let path = inside(name.get_ref());
            match table.keys.iter().find(|key| key.name == name.get_ref()) {
                Some(key) => {
                    let span = value.span();
                    let value = self.complete(&key.form, value.get_ref(), &span, &path);
                    complete.insert(name.clone(), Spanned::new(span, value));
                }
                None if self.problems.len() < MAX_PROBLEMS => {
                    self.report(&name.span(), &path, unknown(name.get_ref(), &table.keys));
                }
                None => {}
            }
        }
        for key in table.keys.iter().filter(|key| !values.contains_key(key.name)) {
            let path = inside(key.name);
            match key.default.filter(|_| !key.is_optional).map(DeValue::parse) {
                Some(Ok(value)) => {
                    let value = self.complete(&key.form, value.get_ref(), span, &path);
                    let name = Spanned::new(span.clone(), key.name.into());
                    complete.insert(name, Spanned::new(span.clone(), value));
                }
                Some(Err(_)) | None if !key.is_optional => {
                    let problem = "the key is missing; add it, because it has no default";
                    self.report(span, &path, problem);
                }
                Some(Err(_)) | None => {}
            }
        }
        DeValue::Table(complete)
    }

    /// The problem of a value of another type.
    fn unlike(&self, form: &Form, value: &DeValue<'_>, span: &Range<usize>, path: &str) -> String {
        let header = || {
            let keys = path.split('.').map(|key| key.split('[').next().unwrap_or_default());
            keys.collect::<Vec<_>>().join(".")
        };
        let shown = self.shown(span, path);
        let found = match value {
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
        let remedy = match (form, value) {
            (Form::Table(_), _) => {
                format!("; write [{}] above its keys, or braces around them", header())
            }
            (Form::List(_), DeValue::Table(_)) if form.table().is_some() => {
                format!("; write [[{}]] above the keys of each", header())
            }
            (Form::Text, DeValue::Array(_) | DeValue::Table(_)) => String::new(),
            (Form::Text, _) if shown == HIDDEN => String::new(),
            (Form::Text, _) => format!("; write {shown:?}"),
            (Form::Words(words), _) if words.contains(&shown.as_str()) => {
                format!("; write {shown:?}")
            }
            _ => String::new(),
        };
        format!("{found} is not {}{remedy}", expected(form))
    }

    /// The value as it is written.
    fn shown(&self, span: &Range<usize>, path: &str) -> String {
        let key = path.rsplit('.').next().unwrap_or_default();
        if SECRETS.contains(&key.split('[').next().unwrap_or_default()) {
            return HIDDEN.to_owned();
        }
        let text = self.document.text(span).lines().next().unwrap_or_default();
        match text.char_indices().nth(units::MAX_QUOTED) {
            None => text.to_owned(),
            Some((end, _)) => format!("{}...", text.get(..end).unwrap_or_default()),
        }
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
            let (min, max) = (units::size_text(*min), units::size_text(*max));
            format!("a size in quotes, such as \"64KiB\", from {min} to {max}")
        }
        Form::Table(_) => "a table".to_owned(),
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

/// The problem of a key that is none of `keys`.
fn unknown(name: &str, keys: &[Key]) -> String {
    let known: Vec<_> = keys.iter().map(|key| key.name).collect();
    let is_top_level = || {
        let root = raw::RawConfig::form();
        let mut keys = root.table().into_iter().flat_map(|table| &table.keys);
        keys.any(|key| key.name == name && key.form.table().is_none())
    };
    let hint = match suggestion(name, &known) {
        hint if !hint.is_empty() => hint,
        // Below the header of a table, TOML makes it a key of that table.
        _ if is_top_level() => "; it is a top-level key; write it above the first table".to_owned(),
        _ => format!("; the keys here are {}", known.join(", ")),
    };
    format!("there is no key {}{hint}", units::quoted(name))
}

/// The problem of a number below `min` or above `max`.
fn out_of_bounds(integer: &DeInteger<'_>, min: u64, max: u64) -> Option<String> {
    let number = i128::from_str_radix(integer.as_str(), integer.radix());
    match number {
        Ok(number) if (i128::from(min)..=i128::from(max)).contains(&number) => None,
        Ok(number) if max >= u32::MAX.into() && number < i128::from(min) => {
            Some(format!("{number}; give {min} or more"))
        }
        _ => {
            let number = units::quoted(&integer.to_string());
            Some(format!("{} is not between {min} and {max}", number.replace('"', "")))
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::config::ConfigError;
    use crate::config::example::{MINIMAL, parse};

    #[test]
    fn the_number_of_problems_is_bounded() {
        let unknown: String = (0..20_000).map(|number| format!("key{number} = 1\n")).collect();
        let error = parse(&format!("{unknown}{MINIMAL}")).unwrap_err();
        let ConfigError::Invalid { problems, .. } = error else { panic!("{error}") };
        assert_eq!(problems.len(), super::MAX_PROBLEMS);
    }

    #[test]
    fn the_number_of_problems_of_meaning_is_bounded() {
        let list: String = (0..20_000)
            .map(|number| format!("[[lists]]\nname = \"{number} \"\npath = \"l\"\n"))
            .collect();
        let error = parse(&format!("{MINIMAL}{list}")).unwrap_err();
        let ConfigError::Invalid { problems, .. } = error else { panic!("{error}") };
        assert_eq!(problems.len(), super::MAX_PROBLEMS);
    }

    #[test]
    fn a_message_has_the_beginning_of_a_long_text() {
        let long = "x".repeat(100_000);
        for text in [
            format!("{MINIMAL}{long} = 1"),
            format!("{MINIMAL}server_names = [\"{long}\"]"),
            format!("{MINIMAL}limits = {{ idle_timeout = \"{long}\" }}"),
            format!("{MINIMAL}limits = {{ max_body_size = \"{long}\" }}"),
            format!("{MINIMAL}limits = {{ max_body_size = \"{}\" }}", "1".repeat(100_000)),
            format!("{MINIMAL}limits = {{ max_streams = {} }}", "1".repeat(100_000)),
            format!("{MINIMAL}policy = {{ header = \" {long}\" }}"),
            format!("{MINIMAL}accept_proxy = {{ from = [\"{long}\"] }}"),
            format!("{MINIMAL}[admin]\nlisten = \"{long}\""),
            format!("{MINIMAL}[admin]\nlisten = \"unix:{long}\""),
            format!("{MINIMAL}[log]\nlevel = \"{long}\""),
            format!("{MINIMAL}[confirm]\nurl = \"{long}\""),
            format!("{MINIMAL}[[lists]]\nname = \"{long}\"\npath = \"l\""),
        ] {
            let message = parse(&text).unwrap_err().to_string();
            assert!(message.len() < 1000, "{} bytes: {message:.300}", message.len());
        }
    }
}

//! A slip in a line: its cause and its remedy in plain words.

use super::quote::{MAX_SHOWN, Quote};
use super::{as_toml, header, quoted};

/// The cause and the remedy of a comment of another language.
const COMMENT: &str = "a comment begins with `#`; write `#` in front";

/// The cause and the remedy of a key or table in a line that is not quoted.
const TWICE: &str = "this key or table occurs twice; remove one";

/// A place where the text is not TOML.
pub(super) struct Slip<'a> {
    pub(super) text: &'a str,
    /// Number of the line, counted from 1.
    pub(super) line: usize,
    /// The text that the parser names.
    pub(super) found: &'a str,
    /// The part of the line that the message may have.
    pub(super) quote: Quote<'a>,
}

impl<'a> Slip<'a> {
    fn line_text(&self) -> &'a str {
        self.text.lines().nth(self.line.saturating_sub(1)).unwrap_or_default()
    }

    /// The cause and the remedy. `message` is that of the parser: a description, and what it
    /// expected.
    pub(super) fn explain(&self, message: &str) -> String {
        let description = message.split_once(", expected").map_or(message, |(text, _)| text);
        match description {
            _ if !matches!(self.quote, Quote::Line(_)) => self.explain_unquoted(description),
            "duplicate key" => self.duplicate(),
            _ if description.starts_with("cannot extend value") => self.duplicate(),
            "key with no value" => self.without_value(),
            "string values must be quoted" | "invalid boolean" | "invalid float" => self.unquoted(),
            "invalid literal string" if !self.line_text().contains('\'') => {
                remedy("missing key for inline table element").to_owned()
            }
            _ => remedy(description).to_owned(),
        }
    }

    /// Whether a text without its second quote hides the end of a list or of a table in braces.
    pub(super) fn hides_brackets(&self, message: &str) -> bool {
        let value = self.line_text().split_once('=').map_or("", |(_, value)| value.trim());
        match message.split(',').next().unwrap_or_default() {
            "invalid basic string" | "invalid literal string" => value.starts_with(['[', '{']),
            _ => false,
        }
    }

    /// Whether the line is a comment of another language.
    fn is_comment(&self) -> bool {
        self.line_text().trim().starts_with("//") || self.line_text().trim().starts_with(';')
    }

    /// The cause and the remedy without a word of the line.
    fn explain_unquoted(&self, description: &str) -> String {
        let cause = match description {
            "key with no value" if self.is_comment() => COMMENT,
            "duplicate key" => TWICE,
            "key with no value" => "a key is followed by `=` and its value; write `KEY = VALUE`",
            "string values must be quoted" | "invalid boolean" | "invalid float" => {
                "not a value of TOML; write text in quotes"
            }
            _ if description.starts_with("cannot extend value") => TWICE,
            _ => remedy(description),
        };
        cause.to_owned()
    }

    /// A key or a table that occurs twice.
    fn duplicate(&self) -> String {
        let line = self.line_text().trim();
        let Some(table) = header(line) else {
            let key = self.found.trim();
            let other =
                self.line_before(|other| header(other).is_none() && key_of(other) == Some(key));
            return format!("the key {key:?} occurs twice{other}; remove one of the two");
        };
        match self.line_before(|other| header(other) == Some(table)) {
            other if !other.is_empty() => {
                format!("the table occurs twice{other}; write the keys of both under one header")
            }
            _ => {
                let name = self.found.trim();
                let is_it = |other: &str| key_of(other) == Some(name);
                let is_in_braces = |other: &str| {
                    is_it(other)
                        && other.split_once('=').is_some_and(|it| it.1.trim().starts_with('{'))
                };
                let inner = table.rsplit_once('.').filter(|(outer, _)| outer.ends_with(name));
                let braces = inner.and_then(|(_, key)| Some((key, self.line_of(is_in_braces)?)));
                if let Some((key, line)) = braces {
                    return format!(
                        "{name:?} is in braces in line {line}; write `{key} = {{ ... }}` inside them"
                    );
                }
                let other = self.line_before(is_it);
                format!("{:?} has a value already{other}; remove one of the two", self.found.trim())
            }
        }
    }

    /// `, first in line 7` for the last line before that is the same. A key is looked for in the
    /// table of the slip only.
    fn line_before(&self, is_same: impl Fn(&str) -> bool) -> String {
        let line = self.line_of(is_same);
        line.map_or_else(String::new, |number| format!(", first in line {number}"))
    }

    /// Number of the last line before that is the same, as [`Slip::line_before`] looks for it.
    fn line_of(&self, is_same: impl Fn(&str) -> bool) -> Option<usize> {
        let is_header = header(self.line_text()).is_some();
        let lines: Vec<_> =
            (1..).zip(self.text.lines()).take(self.line.saturating_sub(1)).collect();
        let before = lines.into_iter().rev();
        let mut before = before.take_while(|(_, line)| is_header || header(line).is_none());
        before.find(|(_, line)| is_same(line)).map(|(number, _)| number)
    }

    /// A line that is no pair of key and value.
    fn without_value(&self) -> String {
        let line = self.line_text().trim();
        let pair = line.split_once(':').and_then(|(key, value)| as_toml(key, value));
        match pair {
            Some(toml) if toml.chars().count() <= MAX_SHOWN => {
                format!("a key is followed by `=`; write `{toml}`")
            }
            Some(_) | None => {
                "a key is followed by `=` and its value; write `KEY = VALUE`".to_owned()
            }
        }
    }

    /// A value that is neither text in quotes nor a number, a date, a list, a table, true or false.
    fn unquoted(&self) -> String {
        let found = self.found.trim();
        if found.contains(char::is_control) {
            return "the value has a control character; remove it".to_owned();
        }
        let pair = self.line_text().split_once('=');
        let toml = pair.and_then(|(key, value)| as_toml(key, value));
        match toml {
            _ if found.chars().count() > MAX_SHOWN => {
                "not a value of TOML; write text in quotes".to_owned()
            }
            Some(toml) => format!("not a value of TOML; write `{toml}`"),
            None if found.is_empty() => {
                let key = pair.map_or("", |(key, _)| key.trim());
                format!("the key {key:?} has no value; write one, or remove the line")
            }
            None if found.contains(' ') => {
                "two values have no comma between them, or text has no quotes; write `\"A\", \"B\"`"
                    .to_owned()
            }
            None => format!("not a value of TOML; write `{}`", quoted(found)),
        }
    }

    /// The line before a header that opens a list or a table in braces without closing it, with the
    /// cause and the remedy. Everything after that line is within the brackets.
    pub(super) fn unclosed(&self) -> Option<(usize, &'static str)> {
        header(self.line_text())?;
        let before = (1..).zip(self.text.lines()).take(self.line.saturating_sub(1));
        let (line, value) = before
            .filter_map(|(number, line)| Some((number, line.split_once('=')?.1.trim())))
            .filter(|(_, value)| value.starts_with(['[', '{']))
            .last()?;
        let rest: String = self.text.lines().skip(line).take(self.line - line - 1).collect();
        let count = |bracket| value.matches(bracket).count() + rest.matches(bracket).count();
        if count('[') > count(']') {
            Some((line, "the list has no closing bracket; write `[\"A\", \"B\"]`"))
        } else if count('{') > count('}') {
            Some((line, "the table has no closing brace; write `{ KEY = VALUE, KEY = VALUE }`"))
        } else {
            None
        }
    }
}

/// The key of a line with a value.
fn key_of(line: &str) -> Option<&str> {
    line.split_once('=').map(|(key, _)| key.trim())
}

/// The cause and the remedy of an error that the parser describes in these words.
fn remedy(description: &str) -> &'static str {
    match description {
        "unclosed table" | "unclosed array table" | "missing table open" => {
            "the header of a table has no closing bracket; write `[NAME]`, or `[[NAME]]` for one of several"
        }
        "unclosed array" | "missing array opening" => {
            "the list has no closing bracket; write `[\"A\", \"B\"]`"
        }
        "unclosed inline table" | "missing inline table opening" => {
            "the table in braces has no closing brace; write `{ KEY = VALUE, KEY = VALUE }`"
        }
        "missing comma between array elements" => {
            "two values of the list have no comma between them; write one"
        }
        "missing comma between key-value pairs" | "extra assignment between key-value pairs" => {
            "the table in braces lacks a comma, or has a `=` too many; write `{ KEY = VALUE, KEY = VALUE }`"
        }
        "extra comma in array" | "extra comma in inline table" => {
            "there is a comma too many; remove it"
        }
        "extra `=`" | "unexpected `=` in array" => {
            "there is a `=` too many; write one `KEY = VALUE` a line"
        }
        "unexpected key or value" | "unexpected content" => {
            "more text follows; write each key and each header on a line of its own"
        }
        "missing assignment between key-value pairs"
        | "missing key for inline table element"
        | "invalid inline table element" => {
            "the table in braces has a part without key or value; write `{ KEY = VALUE, KEY = VALUE }`"
        }
        "invalid basic string"
        | "invalid multi-line basic string"
        | "invalid literal string"
        | "invalid multi-line literal string"
        | "missing opening quote" => {
            "the text has no closing quote, or a control character; write `\"TEXT\"`"
        }
        "missing escaped value" | "too few unicode value digits" => {
            "a backslash in double quotes begins an escape; write two of them, or single quotes around the text"
        }
        "invalid unquoted key"
        | "unquoted keys cannot be empty"
        | "keys cannot be multi-line basic strings"
        | "keys cannot be multi-line literal strings" => {
            "not the name of a key; write letters, digits, '-' and '_', then `=` and the value"
        }
        "unexpected leading zero"
        | "redundant numeric sign"
        | "redundant integer number prefix"
        | "unexpected sign"
        | "radix must be lowercase"
        | "integers with a radix cannot be signed"
        | "`_` may only go between digits"
        | "invalid float"
        | "invalid integer number"
        | "invalid hexadecimal number"
        | "invalid octal number"
        | "invalid binary number" => {
            "not a number; write digits without a zero in front, or text in quotes"
        }
        "carriage return must be followed by newline" => {
            "a carriage return is within the line; save the file with LF at the end of lines"
        }
        "invalid comment character" | "unexpected content between comment and newline" => {
            "the comment has a control character; remove it"
        }
        "recursion limit" | "cannot recurse further; max recursion depth met" => {
            "lists or tables are nested too deep; write them flat"
        }
        "invalid key-value pair" => "not a key; write `KEY = VALUE`",
        _ if description.contains("date") || description.contains("time") => {
            "not a date; write one such as 2026-12-31, or text in quotes"
        }
        _ => "not a key with a value; write `KEY = VALUE`, with text in quotes",
    }
}

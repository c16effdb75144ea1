//! Why a text is not TOML, in plain words: another format, or a slip in a line.

mod other_format;
mod quote;

use std::string::FromUtf8Error;

use toml::de::{DeTable, Error};

use self::other_format::other_format;
use self::quote::{KnownKeys, MAX_SHOWN, Quote};
use super::{Document, end_of};
use crate::config::ConfigProblem;

/// Maximum number of errors of the parser that are reported. Each costs a search for its line.
const MAX_ERRORS: usize = 100;

/// Why a text that is not TOML is no configuration: it is of another format, or none of its lines
/// has a key of the configuration. `None` for a configuration with mistakes.
pub(in crate::config) fn foreign(text: &str) -> Option<ConfigProblem> {
    let keys = KnownKeys::new();
    let without_keys = || {
        let problem =
            "not valid TOML, and no line has a key of keygate; give the path of the configuration";
        let is_content = |line: &str| !line.trim().is_empty();
        let line = text.lines().position(is_content)? + 1;
        (!keys.are_in(text)).then(|| (line, problem.to_owned()))
    };
    let (line, problem) = other_format(text, &keys).or_else(without_keys)?;
    Some(ConfigProblem { line, column: 1, field: String::new(), problem })
}

/// The problem of valid TOML that has tables or keys, but none of the configuration.
pub(in crate::config) fn other_keys(text: &str) -> Option<ConfigProblem> {
    let is_content = |line: &str| !line.trim().is_empty() && !line.trim().starts_with('#');
    let line = text.lines().position(is_content)? + 1;
    if KnownKeys::new().are_in(text) {
        return None;
    }
    let problem = "no line has a key of keygate; give the path of the configuration";
    Some(ConfigProblem { line, column: 1, field: String::new(), problem: problem.to_owned() })
}

/// The problems of a document that is not TOML, at most one a line: further errors in a line mostly
/// follow from the first one.
pub(super) fn problems(document: &Document<'_>, errors: &[Error]) -> Vec<ConfigProblem> {
    if let Some(problem) = foreign(document.text) {
        return vec![problem];
    }
    let keys = KnownKeys::new();
    let problem = |line, column, problem| {
        let field = String::new();
        ConfigProblem { line, column, field, problem }
    };
    let problems = errors.iter().take(MAX_ERRORS).map(|error| {
        let span = error.span().unwrap_or_default();
        let start = match error.message().starts_with("invalid multi-line") {
            // The text ends with the file; its beginning is the mistake.
            true => document.text.rfind("\"\"\"").max(document.text.rfind("\'\'\'")),
            false => None,
        };
        let (line, column) = document.position(start.unwrap_or(span.start));
        let found = document.text.get(span).unwrap_or_default();
        let quote = keys.quote(document.text, line);
        let slip = Slip { text: document.text, line, found, quote };
        (slip, column, error.message())
    });
    let mut slips: Vec<_> = problems.collect();
    // The parser reports the cause before its effects in the same line.
    slips.sort_by_key(|(slip, ..)| slip.line);
    slips.dedup_by_key(|(slip, ..)| slip.line);
    // The lines after it seem to be within the list or table.
    let unquoted = slips.iter().find(|(slip, _, message)| slip.hides_brackets(message));
    if let Some(line) = unquoted.map(|(slip, ..)| slip.line) {
        slips.retain(|(slip, ..)| slip.line <= line);
    }
    let unclosed = slips.iter().find_map(|(slip, ..)| slip.unclosed());
    if let Some((line, _)) = unclosed {
        slips.retain(|(slip, ..)| slip.line < line);
    }
    let slips = slips
        .into_iter()
        .map(|(slip, column, message)| (slip.line, column, slip.quote, slip.explain(message)));
    let unclosed = unclosed.map(|(line, cause)| {
        let text = document.text.lines().nth(line.saturating_sub(1)).unwrap_or_default();
        (line, text.chars().count() + 1, keys.quote(document.text, line), cause.to_owned())
    });
    let all = slips.chain(unclosed).map(|(line, column, quote, cause)| {
        problem(line, column, format!("not valid TOML: {}{cause}", quote.shown()))
    });
    all.collect()
}

/// The problem of a file that is not UTF-8.
pub(in crate::config) fn encoding_problem(error: &FromUtf8Error) -> ConfigProblem {
    let bytes = error.as_bytes();
    let valid = bytes.get(..error.utf8_error().valid_up_to()).unwrap_or_default();
    let (line, column) = end_of(std::str::from_utf8(valid).unwrap_or_default());
    let problem = if bytes.starts_with(b"\xff\xfe") || bytes.starts_with(b"\xfe\xff") {
        "the file is UTF-16, and TOML is UTF-8; save it as UTF-8"
    } else if bytes.contains(&0) {
        "the file is binary, and no configuration; give the path of the configuration"
    } else {
        "not valid TOML: a character is not UTF-8; save the file as UTF-8"
    };
    ConfigProblem { line, column, field: String::new(), problem: problem.to_owned() }
}

/// The cause and the remedy of a comment of another language.
const COMMENT: &str = "a comment begins with `#`; write `#` in front";

/// The cause and the remedy of a key or table in a line that is not quoted.
const TWICE: &str = "this key or table occurs twice; remove one";

/// A place where the text is not TOML.
struct Slip<'a> {
    text: &'a str,
    /// Number of the line, counted from 1.
    line: usize,
    /// The text that the parser names.
    found: &'a str,
    /// The part of the line that the message may have.
    quote: Quote<'a>,
}

impl<'a> Slip<'a> {
    fn line_text(&self) -> &'a str {
        self.text.lines().nth(self.line.saturating_sub(1)).unwrap_or_default()
    }

    /// The cause and the remedy. `message` is that of the parser: a description, and what it
    /// expected.
    fn explain(&self, message: &str) -> String {
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
    fn hides_brackets(&self, message: &str) -> bool {
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
    fn unclosed(&self) -> Option<(usize, &'static str)> {
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

/// The name of the table that a header begins.
fn header(line: &str) -> Option<&str> {
    let name = line.trim().strip_prefix('[')?;
    name.split(']').next().map(str::trim)
}

/// `key = value` in TOML, with the value in quotes if it needs them. `None` if it cannot be written
/// in one line.
fn as_toml(key: &str, value: &str) -> Option<String> {
    let key = key.trim().trim_matches('"');
    let is_bare = |it: char| it.is_ascii_alphanumeric() || "-_.".contains(it);
    let value = value.trim();
    if key.is_empty() || !key.chars().all(is_bare) || value.is_empty() {
        return None;
    }
    let form = format!("{key} = {value}");
    if DeTable::parse(&form).is_ok() {
        return Some(form);
    }
    let text = value.split(" #").next().unwrap_or_default().trim();
    // A list, a table, a block of YAML, text with a quote at its beginning.
    let is_nested = text.starts_with(|it: char| "{[\"'|>&*!".contains(it));
    let is_number = text.starts_with(|it: char| "-+0".contains(it)) && !text.contains(['.', ':']);
    if is_nested || is_number {
        return None;
    }
    let value = quoted(text);
    let form = format!("{key} = {value}");
    DeTable::parse(&form).is_ok().then_some(form)
}

/// `text` as a value of TOML, true and false without quotes.
fn quoted(text: &str) -> String {
    let text = text.trim_matches(|it: char| "\u{201c}\u{201d}\u{2018}\u{2019};,".contains(it));
    match text.to_ascii_lowercase().as_str() {
        "true" | "yes" => "true".to_owned(),
        "false" | "no" => "false".to_owned(),
        _ if text.bytes().all(|it| it.is_ascii_digit()) => text.to_owned(),
        _ => format!("{text:?}"),
    }
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

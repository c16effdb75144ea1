//! Why a text is not TOML, in plain words: another format, or a slip in a line.

mod other_format;
mod quote;
mod slip;

use std::string::FromUtf8Error;

use toml::de::{DeTable, Error};

use self::other_format::other_format;
use self::quote::KnownKeys;
use self::slip::Slip;
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
    let value = date(text).or_else(|| size(key, text)).unwrap_or_else(|| quoted(text));
    let form = format!("{key} = {value}");
    DeTable::parse(&form).is_ok().then_some(form)
}

/// A date of the form 31.12.2026 as TOML has it.
fn date(text: &str) -> Option<String> {
    let parts: Vec<u16> = text.split('.').map(|part| part.parse().ok()).collect::<Option<_>>()?;
    let [day, month, year] = *parts else { return None };
    (year >= 1000).then(|| format!("{year}-{month:02}-{day:02}"))
}

/// A size of the form 10m, with its unit.
fn size(key: &str, text: &str) -> Option<String> {
    let number = text.strip_suffix(['k', 'm', 'g', 'K', 'M', 'G'])?;
    let unit = text.get(number.len()..)?.to_ascii_uppercase();
    let is_size = key.ends_with("_size") && number.bytes().all(|it| it.is_ascii_digit());
    is_size.then(|| format!("\"{number}{unit}iB\""))
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

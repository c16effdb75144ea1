//! Checks the admin address alone, for the commands to a running process. They are needed while its
//! file is being edited, so that errors elsewhere in the file do not matter.

use std::collections::BTreeSet;
use std::path::Path;

use super::Checker;
use crate::config::document::{self, Decoded, Document, decode};
use crate::config::{ConfigError, ConfigProblem, ListenAddress, raw};

/// Maximum number of times that a text is parsed. Each pass removes the lines with syntax errors
/// that it finds, which may uncover others.
const MAX_PASSES: usize = 20;

/// Checks the admin address in `content`, and nothing else.
pub(in crate::config) fn admin(
    file: &Path,
    content: Vec<u8>,
) -> Result<ListenAddress, ConfigError> {
    let invalid = |problems| ConfigError::Invalid { file: file.to_owned(), problems };
    match String::from_utf8(content) {
        Ok(text) => address(file, &text).map_err(invalid),
        Err(error) => {
            let text = String::from_utf8_lossy(error.as_bytes());
            let address = address(file, &text)
                .ok()
                .filter(|address| !address.to_string().contains(char::REPLACEMENT_CHARACTER));
            address.ok_or_else(|| invalid(vec![document::encoding_problem(&error)]))
        }
    }
}

fn address(file: &Path, text: &str) -> Result<ListenAddress, Vec<ConfigProblem>> {
    let text = without_syntax_errors(text)?;
    let document = Document::parse(&text)?;
    let mut decoded: Decoded<raw::AdminOnly> = decode(&document);
    let Some(raw) = decoded.tables.take() else { return Err(decoded.problems) };
    let checker = Checker::new(file, &document);
    let address = checker.admin(&raw.admin.listen);
    let problems = checker.problems(decoded);
    if problems.is_empty() { Ok(address) } else { Err(problems) }
}

/// `text` without its lines that are not TOML.
///
/// # Errors
/// Returns the syntax errors if one of them may hide the admin address, or if too many passes find
/// some.
fn without_syntax_errors(text: &str) -> Result<String, Vec<ConfigProblem>> {
    let foreign = match Document::parse(text) {
        Ok(_) => document::other_keys(text),
        Err(_) => document::foreign(text),
    };
    if let Some(problem) = foreign {
        return Err(vec![problem]);
    }
    let (mut found, mut removed) = (Vec::new(), BTreeSet::new());
    for _ in 0..MAX_PASSES {
        let rest = without_lines(text, &removed);
        let (document, problems) = Document::parse_recoverable(&rest);
        if problems.is_empty() {
            // A line of the table may have been the address, or half of it.
            let is_hidden = document.value("admin.listen").is_none()
                && text.lines().any(|line| table_name(line) == Some("admin"))
                && removed.iter().any(|line| is_in_admin(text, *line));
            return if is_hidden { Err(found) } else { Ok(rest) };
        }
        let lines: BTreeSet<usize> = problems.iter().map(|problem| problem.line).collect();
        found.extend(problems);
        let is_new = lines.difference(&removed).next().is_some();
        if !is_new || lines.iter().any(|line| may_hide_address(text, *line)) {
            return Err(found);
        }
        removed.extend(lines);
    }
    Err(found)
}

/// `text` with these lines empty. The header of a table becomes the header of another one, because
/// its keys would be those of the table before it.
fn without_lines(text: &str, removed: &BTreeSet<usize>) -> String {
    let lines = (1..).zip(text.lines()).map(|(number, line)| match removed.contains(&number) {
        false => line.to_owned(),
        true if line.trim_start().starts_with('[') => format!("[\"removed-{number}\"]"),
        true => String::new(),
    });
    lines.collect::<Vec<_>>().join("\n") + "\n"
}

/// Whether the line with this number begins the table `admin`, sets its address, or begins a text
/// of several lines.
fn may_hide_address(text: &str, number: usize) -> bool {
    let line = text.lines().nth(number.saturating_sub(1)).unwrap_or_default();
    if line.contains("\"\"\"") || line.contains("'''") {
        return true;
    }
    let word = line.trim_start_matches(['[', '"', '\'', ' ', '\t']);
    word.starts_with("admin") || (word.starts_with("listen") && is_in_admin(text, number))
}

/// Whether the line with this number is in the table `admin`.
fn is_in_admin(text: &str, number: usize) -> bool {
    let before: Vec<&str> = text.lines().take(number).collect();
    before.iter().rev().find_map(|line| table_name(line)) == Some("admin")
}

/// The name of the table that a line begins, or seems to begin.
fn table_name(line: &str) -> Option<&str> {
    let name = line.trim().strip_prefix('[')?.trim_start_matches('[');
    Some(name.split(']').next().unwrap_or_default().trim().trim_matches(['"', '\'']))
}

//! Recognises configurations in JSON and YAML, and PEM files.

use super::quote::{KnownKeys, MAX_SHOWN, PEM};
use super::{as_toml, header};

/// The line by which a text that is not TOML is recognised as another format, counted from 1, and
/// what to write instead. `None` for TOML with mistakes.
pub(super) fn other_format(text: &str, keys: &KnownKeys) -> Option<(usize, String)> {
    let text = text.trim_start_matches('\u{feff}');
    let lines = || (1..).zip(text.lines()).map(|(number, line)| (number, line.trim()));
    if let Some((number, _)) = lines().find(|(_, line)| line.starts_with(PEM)) {
        // The content may be a private key.
        let problem = "the file is PEM, such as a certificate or a private key; give the path of the configuration, which is TOML";
        return Some((number, problem.to_owned()));
    }
    let (first, line) = lines().find(|(_, line)| !line.is_empty() && !line.starts_with('#'))?;
    let rest = line;
    let is_array = |rest: &str| {
        let rest = rest.strip_prefix('[').map(str::trim_start);
        let next = lines().find(|(number, line)| *number > first && !line.is_empty());
        rest.is_some_and(|rest| match (rest, next) {
            ("", Some((_, next))) => next.starts_with('{'),
            (rest, _) => rest.starts_with('{'),
        })
    };
    if rest.starts_with('{') || is_array(rest) {
        let hint = "an object such as \"log\" as a table, `[log]`";
        return Some(described("JSON", text, keys, first, hint));
    }
    let is_yaml = rest.starts_with("---")
        || rest.starts_with("%YAML")
        || rest.starts_with("- ")
        || is_yaml_pair(rest);
    if is_yaml && !lines().any(|(_, line)| is_toml(line)) {
        let hint = "`log:` as `[log]`, and each `-` below `services:` as `[[services]]`";
        return Some(described("YAML", text, keys, first, hint));
    }
    None
}

/// The message for a format, with the first line of `text` that can be written as TOML and has one
/// of `keys`; `first` is the first line with content.
fn described(
    format: &str,
    text: &str,
    keys: &KnownKeys,
    first: usize,
    hint: &str,
) -> (usize, String) {
    let brackets = |it: char| it.is_whitespace() || "{}[]".contains(it);
    let lines = (1..).zip(text.lines());
    let pieces = lines.flat_map(|(number, line)| {
        line.split(',').map(move |piece| (number, piece.trim_matches(brackets)))
    });
    let pieces = pieces.map(|(number, piece)| (number, piece.trim_start_matches("- ")));
    let pairs =
        pieces.filter(|(_, piece)| !piece.starts_with('#')).filter_map(|(number, piece)| {
            let (key, value) = piece.split_once(':')?;
            // The others may be secrets.
            keys.has(key).then_some((number, piece, key, value))
        });
    let mut pairs = pairs.peekable();
    if pairs.peek().is_none() {
        let problem = format!(
            "the file is {format}, and no key in it is one of keygate; give the path of the configuration, which is TOML"
        );
        return (first, problem);
    }
    let mut pairs = pairs.filter(|(_, found, key, _)| {
        keys.shows_value_of(key) && !found.contains(PEM) && found.chars().count() <= MAX_SHOWN
    });
    let written = pairs.find_map(|(number, found, key, value)| {
        Some((number, format!("`{found}` as `{}`, ", as_toml(key, value)?)))
    });
    let (line, example) = written.unwrap_or_else(|| (first, String::new()));
    (line, format!("the file is {format}, and keygate reads TOML; write {example}{hint}"))
}

/// Whether a line is a pair or the beginning of a mapping in YAML.
fn is_yaml_pair(line: &str) -> bool {
    let is_bare = |it: char| it.is_ascii_alphanumeric() || "-_".contains(it);
    line.split_once(':').is_some_and(|(key, value)| {
        !key.is_empty()
            && key.chars().all(is_bare)
            && (value.is_empty() || value.starts_with(char::is_whitespace))
    })
}

/// Whether a line is a header or a pair of TOML, also with a wrong value.
fn is_toml(line: &str) -> bool {
    let is_bare = |it: char| it.is_ascii_alphanumeric() || "-_.".contains(it);
    let is_pair = line.split_once('=').is_some_and(|(key, _)| {
        let key = key.trim();
        !key.is_empty() && key.chars().all(is_bare)
    });
    is_pair
        || (line.ends_with(']')
            && header(line).is_some_and(|name| name.chars().all(|it| is_bare(it) || it == '[')))
}

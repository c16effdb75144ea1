//! How much of a line a message quotes.
//!
//! A file of secrets may be given as the configuration by mistake: a private key, a passphrase, a
//! token. Messages are printed and logged, so only lines of a configuration are quoted.

use std::collections::BTreeSet;

use super::header;
use crate::config::reference;
use crate::config::suggestion::is_similar;

/// Maximum number of characters of a line in a message.
pub(super) const MAX_SHOWN: usize = 60;
/// Maximum number of lines that are compared with the keys of the configuration for typing errors.
const MAX_COMPARED: usize = 100;
/// The beginning of a section of PEM, whose content may be a private key.
pub(super) const PEM: &str = "-----BEGIN ";

/// Keys that other programs have as well, and whose value there may be a secret: a key or token in
/// place of a path, user information in a URL.
const SECRET_ELSEWHERE: [&str; 4] = ["api_key", "headers", "private_key", "url"];

/// The names of all keys and tables of the configuration.
pub(super) struct KnownKeys(BTreeSet<&'static str>);

/// The part of a line that a message may have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Quote<'a> {
    /// The name of the key, which is similar to one of the configuration, or whose value may be a
    /// secret.
    Key(&'a str),
    /// The whole line.
    Line(&'a str),
    /// Nothing.
    Nothing,
}

impl KnownKeys {
    pub(super) fn new() -> Self {
        let tables = reference::tables().into_iter();
        let names = tables.flat_map(|table| {
            table.name.split('.').chain(table.keys.into_iter().map(|key| key.name))
        });
        Self(names.filter(|name| !name.is_empty()).collect())
    }

    /// Whether `name`, such as `log.level`, has names of the configuration only.
    pub(super) fn has(&self, name: &str) -> bool {
        let mut parts = name.split('.').map(|part| part.trim().trim_matches(['"', '\'']));
        parts.all(|part| self.0.contains(part))
    }

    /// Whether the value of `name` may be in a message.
    pub(super) fn shows_value_of(&self, name: &str) -> bool {
        let secrets = SECRET_ELSEWHERE;
        let is_secret = |part: &str| secrets.contains(&part.trim().trim_matches(['"', '\'']));
        self.has(name) && !name.split('.').any(is_secret)
    }

    fn has_similar(&self, name: &str) -> bool {
        self.0.iter().any(|known| is_similar(name, known))
    }

    /// Whether a line of `text` sets a key of the configuration, or one with a typing error.
    pub(super) fn are_in(&self, text: &str) -> bool {
        let is_known = |line| name_of(line).is_some_and(|name| self.has(name));
        text.lines().any(is_known)
            || text.lines().take(MAX_COMPARED).any(|it| self.quote_alone(it) != Quote::Nothing)
    }

    /// The part of the line with this number that a message may have.
    pub(super) fn quote<'a>(&self, text: &'a str, number: usize) -> Quote<'a> {
        let Some(line) = text.lines().nth(number.saturating_sub(1)) else { return Quote::Nothing };
        let quote = self.quote_alone(line);
        if quote == Quote::Nothing && self.continues_list(text, number) {
            return Quote::Line(line);
        }
        quote
    }

    /// The part of a line by itself, without the lines around it.
    fn quote_alone<'a>(&self, line: &'a str) -> Quote<'a> {
        match name_of(line) {
            Some(name) if self.shows_value_of(name) => Quote::Line(line),
            Some(name) if name.len() < line.trim().len() && self.has(name) => Quote::Key(name),
            Some(name) if header(line).is_some() && self.has_similar(name) => Quote::Line(line),
            // A word alone may be a passphrase.
            Some(name) if name.len() < line.trim().len() && self.has_similar(name) => {
                Quote::Key(name)
            }
            Some(_) | None => {
                // `listen 443 ssl;`, as in nginx and HAProxy.
                let word = line.trim().split([' ', '\t', '{']).next().unwrap_or_default();
                if self.has(word) { Quote::Key(word) } else { Quote::Nothing }
            }
        }
    }

    /// Whether the line continues a list whose key is known.
    fn continues_list(&self, text: &str, number: usize) -> bool {
        let lines: Vec<&str> = text.lines().take(number).map(str::trim).collect();
        let is_element = |line: &str| line.is_empty() || line.starts_with(['"', '\'', '{', '#']);
        let Some((line, before)) = lines.split_last() else { return false };
        let opening = before.iter().rev().find(|line| !is_element(line));
        is_element(line)
            && opening.is_some_and(|line| {
                let value = line.split_once('=').map_or("", |(_, value)| value.trim());
                value.starts_with('[') && matches!(self.quote_alone(line), Quote::Line(_))
            })
    }
}

/// The name in a header, the key of a line, or the whole line if it is neither.
fn name_of(line: &str) -> Option<&str> {
    let text = line.trim().trim_start_matches('\u{feff}');
    let key = || text.split(['=', ':']).next().map(str::trim);
    header(text).map(|name| name.trim_start_matches('[').trim()).or_else(key)
}

impl Quote<'_> {
    /// `` `LINE`: `` in front of a cause, without control characters. Empty for nothing.
    pub(super) fn shown(self) -> String {
        match self {
            Self::Key(key) => format!("`{key} ...`: "),
            Self::Line(line) => {
                let line = line.split(PEM).next().unwrap_or_default();
                let text = line.trim().replace(char::is_control, " ");
                match text.char_indices().nth(MAX_SHOWN) {
                    None => format!("`{text}`: "),
                    Some((end, _)) => format!("`{}...`: ", text.get(..end).unwrap_or_default()),
                }
            }
            Self::Nothing => String::new(),
        }
    }
}

//! Errors of the conversion: the problem, and the place of the value that has it.

use std::fmt;
use std::ops::Range;

use serde::de::{Error, Expected, Unexpected};

/// Similarity from which a known word is suggested for an unknown one that is several letters
/// apart, such as `cert` for `certificate`.
const SIMILAR: f64 = 0.85;

/// The keys of the top that are no tables. Below the header of a table, TOML makes them its keys.
const TOP: [&str; 1] = ["workers"];

/// Treatment of a value with a problem when the conversion is repeated.
#[derive(Debug, Clone, Copy)]
pub(super) enum Repair {
    Complete,
    LeaveOut,
}

/// A problem of the form.
#[derive(Debug)]
pub(super) struct Fault {
    pub(super) problem: String,
    /// The required key that is missing, until its table adds the place.
    pub(super) missing: Option<&'static str>,
    /// Added by the innermost table or list around the value.
    pub(super) place: Option<FaultPosition>,
}

/// The place of a value with a problem.
#[derive(Debug)]
pub(super) struct FaultPosition {
    pub(super) path: String,
    pub(super) span: Range<usize>,
    pub(super) repair: Repair,
    /// Whether the problem follows from one that was reported.
    pub(super) is_known: bool,
}

impl Fault {
    pub(super) fn new(problem: String) -> Self {
        Self { problem, missing: None, place: None }
    }

    /// Adds the place of the value, unless the fault is in a value inside it.
    pub(super) fn at(mut self, path: &str, span: &Range<usize>) -> Self {
        self.place.get_or_insert_with(|| FaultPosition {
            path: path.to_owned(),
            span: span.clone(),
            repair: Repair::LeaveOut,
            is_known: false,
        });
        self
    }
}

impl std::error::Error for Fault {}

impl fmt::Display for Fault {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.problem)
    }
}

impl Error for Fault {
    fn custom<T: fmt::Display>(message: T) -> Self {
        Self::new(message.to_string())
    }

    fn invalid_type(found: Unexpected<'_>, expected: &dyn Expected) -> Self {
        // The decoder itself reports other types, with the value.
        let found = if found == Unexpected::Seq { "a list" } else { "the value" };
        Self::new(format!("{found} is not {expected}"))
    }

    fn invalid_value(_: Unexpected<'_>, expected: &dyn Expected) -> Self {
        Self::new(format!("the value is not {expected}"))
    }

    fn unknown_variant(word: &str, known: &'static [&'static str]) -> Self {
        Self::new(format!("{word:?} is not {}{}", one_of(known), suggestion(word, known)))
    }

    fn unknown_field(key: &str, known: &'static [&'static str]) -> Self {
        let hint = match suggestion(key, known) {
            hint if hint.is_empty() && TOP.contains(&key) && !known.contains(&"services") => {
                "; it is a key of the top, so that it belongs above the first table".to_owned()
            }
            hint if hint.is_empty() => format!("; the keys here are {}", known.join(", ")),
            hint => hint,
        };
        Self::new(format!("there is no key {key:?}{hint}"))
    }

    fn missing_field(field: &'static str) -> Self {
        Self {
            missing: Some(field),
            ..Self::new("the key is missing; add it, because it has no default".to_owned())
        }
    }
}

/// `"a"`, or `one of "a", "b"`.
pub(super) fn one_of(words: &[&str]) -> String {
    let quoted: Vec<_> = words.iter().map(|word| format!("{word:?}")).collect();
    match quoted.as_slice() {
        [one] => one.clone(),
        _ => format!("one of {}", quoted.join(", ")),
    }
}

/// A question with the known word that is most similar to `word`, or that has its meaning in other
/// programs. Empty if there is none.
fn suggestion(word: &str, known: &[&str]) -> String {
    let word = word.to_ascii_lowercase();
    let candidates = known.iter().filter(|known| is_similar(&word, known));
    let candidates = candidates.map(|known| (strsim::osa_distance(&word, known), known));
    let mut same = SYNONYMS.iter().filter(|(other, _)| *other == word);
    let same = same.find_map(|(_, name)| known.iter().find(|known| *known == name));
    let best = same.or_else(|| Some(candidates.min_by_key(|(distance, _)| *distance)?.1));
    best.map_or_else(String::new, |known| format!("; did you mean {known:?}?"))
}

/// Words of nginx, HAProxy, Ghostunnel and others, with the names here.
const SYNONYMS: [(&str, &str); 28] = [
    ("addr", "listen"),
    ("address", "listen"),
    ("backend", "upstream"),
    ("bind", "listen"),
    ("block", "reject"),
    ("ca", "trust_anchors"),
    ("ca_file", "trust_anchors"),
    ("cacert", "trust_anchors"),
    ("cert", "certificate"),
    ("cert_file", "certificate"),
    ("deny", "reject"),
    ("drop", "reject"),
    ("hostname", "server_names"),
    ("hosts", "server_names"),
    ("key", "private_key"),
    ("key_file", "private_key"),
    ("port", "listen"),
    ("proxy_pass", "upstream"),
    ("proxy_protocol", "accept_proxy"),
    ("server", "servers"),
    ("ssl", "tls"),
    ("ssl_certificate", "tls"),
    ("ssl_certificate_key", "tls"),
    ("ssl_client_certificate", "client_auth"),
    ("ssl_verify_client", "client_auth"),
    ("target", "upstream"),
    ("tlsv1.2", "1.2"),
    ("tlsv1.3", "1.3"),
];

/// Whether `word` may be a typing error for `known`.
pub(in crate::config::document) fn is_similar(word: &str, known: &str) -> bool {
    (word.len() > 2 && strsim::osa_distance(word, known) <= 1.max(known.len() / 4))
        || strsim::jaro_winkler(word, known) >= SIMILAR
}

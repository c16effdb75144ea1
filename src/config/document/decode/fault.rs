//! Errors of the conversion: the problem, and the place of the value that has it.

use std::fmt;
use std::ops::Range;

use serde::de::{Error, Expected, Unexpected};

use crate::config::reference;
use crate::config::suggestion::suggestion;

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
            hint if hint.is_empty() && is_top_level(key) && !known.contains(&"services") => {
                "; it is a top-level key; write it above the first table".to_owned()
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

/// Whether `key` belongs to no table. Below the header of a table, TOML makes it a key of that table.
fn is_top_level(key: &str) -> bool {
    let mut top = reference::tables().into_iter().filter(|table| table.name.is_empty());
    top.any(|table| table.keys.iter().any(|known| known.name == key))
}

/// `"a"`, or `one of "a", "b"`.
pub(super) fn one_of(words: &[&str]) -> String {
    let quoted: Vec<_> = words.iter().map(|word| format!("{word:?}")).collect();
    match quoted.as_slice() {
        [one] => one.clone(),
        _ => format!("one of {}", quoted.join(", ")),
    }
}

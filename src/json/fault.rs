//! The problem of a value in plain words, with the path of the value.

use std::fmt;

use serde::de::{Error, Expected, Unexpected};

/// Maximum length of a value or a name in a problem, in characters; the rest is cut.
const MAX_SHOWN: usize = 80;

/// The way from a value to one inside it.
#[derive(Clone, Copy)]
pub(super) enum Step<'a> {
    Element(usize),
    Member(&'a str),
    Root,
}

/// The problem of a value, or of a member of it.
#[derive(Debug)]
pub(super) struct Fault {
    /// The path of the value inside the value that is deserialized.
    pub(super) path: String,
    problem: String,
    /// Whether the problem lacks the value in front of it.
    lacks_value: bool,
}

impl Fault {
    fn of_value(problem: String) -> Self {
        Self { path: String::new(), problem, lacks_value: true }
    }

    fn of_member(name: &str, problem: String) -> Self {
        Self { path: name_in_path(name), problem, lacks_value: false }
    }

    /// The fault of a value around, from which `step` leads to `value`, the value of this fault.
    pub(super) fn inside(mut self, step: Step<'_>, value: &dyn fmt::Display) -> Self {
        if self.lacks_value {
            self.problem = format!("{value} {}", self.problem);
            self.lacks_value = false;
        }
        let dot = if self.path.is_empty() || self.path.starts_with('[') { "" } else { "." };
        match step {
            Step::Element(index) => self.path = format!("[{index}]{dot}{}", self.path),
            Step::Member(name) => self.path = format!("{}{dot}{}", name_in_path(name), self.path),
            Step::Root => {}
        }
        self
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { path, problem, .. } = self;
        if path.is_empty() {
            formatter.write_str(problem)
        } else {
            write!(formatter, "{path}: {problem}")
        }
    }
}

impl std::error::Error for Fault {}

impl Error for Fault {
    fn custom<T: fmt::Display>(message: T) -> Self {
        Self { path: String::new(), problem: message.to_string(), lacks_value: false }
    }

    fn invalid_type(_: Unexpected<'_>, expected: &dyn Expected) -> Self {
        Self::of_value(format!("is not {}", plain(expected)))
    }

    fn invalid_value(_: Unexpected<'_>, expected: &dyn Expected) -> Self {
        Self::of_value(format!("is not {}", plain(expected)))
    }

    fn invalid_length(_: usize, expected: &dyn Expected) -> Self {
        Self::of_value(format!("is not {}", plain(expected)))
    }

    fn unknown_variant(_: &str, known: &'static [&'static str]) -> Self {
        Self::of_value(format!("is not one of {}", known.join(", ")))
    }

    fn unknown_field(name: &str, known: &'static [&'static str]) -> Self {
        let problem = format!("the member is unknown; the members here are {}", known.join(", "));
        Self::of_member(name, problem)
    }

    fn missing_field(name: &'static str) -> Self {
        Self::of_member(name, "the member is missing".to_owned())
    }

    fn duplicate_field(name: &'static str) -> Self {
        Self::of_member(name, "the member occurs twice".to_owned())
    }
}

/// The words for what serde expects.
fn plain(expected: &dyn Expected) -> String {
    let text = expected.to_string();
    let words = match text.as_str() {
        "a borrowed string" | "a string" | "path string" => "text in quotes",
        "a boolean" => "true or false",
        "a map" => "an object",
        "a sequence" => "an array",
        "i8" | "i16" | "i32" | "i64" => "a whole number",
        "u8" => "a whole number from 0 to 255",
        "u16" => "a whole number from 0 to 65535",
        "u32" => "a whole number from 0 to 4294967295",
        "u64" | "usize" => "a whole number, 0 or more",
        "f32" | "f64" => "a number",
        text if text.starts_with("struct ") => "an object",
        text if text.starts_with("a tuple") || text.starts_with("tuple") => {
            "an array of the right length"
        }
        _ => return text,
    };
    words.to_owned()
}

/// A name as a part of a path, in quotes if it needs them.
fn name_in_path(name: &str) -> String {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"_-".contains(&byte);
    if !name.is_empty() && name.len() <= MAX_SHOWN && name.bytes().all(is_plain) {
        name.to_owned()
    } else {
        format!("{:?}", shortened(name))
    }
}

pub(super) fn shortened(text: &str) -> String {
    text.chars().take(MAX_SHOWN).collect()
}

//! The contents of inputs: keys, and objects that a question can be about.

use keygate_core::spki::{Algorithm, Fingerprint};
use serde::Serialize;

/// A key and its position in the inputs.
pub(in crate::cli) struct FoundKey<'a> {
    /// The argument, or the path below a directory argument.
    pub(in crate::cli) input: &'a str,
    /// Line number, from 1; `None` for a binary input.
    pub(in crate::cli) line: Option<u64>,
    /// SubjectPublicKeyInfo (DER).
    pub(in crate::cli) spki: &'a [u8],
}

/// An object that a question can be about.
pub(in crate::cli) enum FoundSubject<'a> {
    /// The fingerprint of a key that is not in the inputs.
    Fingerprint {
        /// The argument, or the path below a directory argument.
        input: &'a str,
        /// Line number, from 1.
        line: Option<u64>,
        /// The fingerprint.
        fingerprint: Fingerprint,
    },
    /// A key.
    Key(FoundKey<'a>),
    /// A client of `keygate report --json`, with the key that was found in a filter.
    Reported {
        key: FoundKey<'a>,
        /// The encoding of the key that was found.
        encoding: Option<String>,
        /// Whether there is a question about the key: it is not confirmed.
        is_open: bool,
    },
}

/// The fields of a key in each JSON row.
#[derive(Serialize)]
pub(in crate::cli) struct KeyFields<'a> {
    pub(in crate::cli) input: &'a str,
    pub(in crate::cli) line: Option<u64>,
    pub(in crate::cli) algorithm: String,
    pub(in crate::cli) fingerprint: String,
}

impl<'a> FoundKey<'a> {
    pub(in crate::cli) fn fields(&self) -> KeyFields<'a> {
        KeyFields {
            input: self.input,
            line: self.line,
            algorithm: Algorithm::of(self.spki).to_string(),
            fingerprint: Fingerprint::of(self.spki).to_string(),
        }
    }

    /// `INPUT:LINE`, or `INPUT` for a binary input.
    pub(in crate::cli) fn position(&self) -> String {
        position(self.input, self.line)
    }
}

pub(in crate::cli) fn position(input: &str, line: Option<u64>) -> String {
    line.map_or_else(|| input.to_owned(), |line| format!("{input}:{line}"))
}

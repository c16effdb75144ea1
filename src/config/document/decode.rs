//! Converts a document into typed tables, and reports everything in it that has the wrong form:
//! unknown and missing keys, values of the wrong type, unknown words.
//!
//! serde ends at the first error. The value with the error is then left out, and the conversion is
//! repeated. A required key that is missing gets a placeholder. The tables are therefore complete
//! in any case, and the caller can check the other values in the same pass.

mod access;
mod deserializer;
mod fault;

use std::collections::BTreeSet;

use serde::Deserialize;

use self::deserializer::{Decoder, Value};
use self::fault::Repair;
use super::Document;
use crate::config::ConfigProblem;

/// Maximum number of problems of the form that are collected.
const MAX_PROBLEMS: usize = 100;

/// The tables of a document, and the problems of its form.
pub(in crate::config) struct Decoded<T> {
    /// The tables; values with a problem are left out. `None` if there are too many problems.
    pub(in crate::config) tables: Option<T>,
    pub(in crate::config) problems: Vec<ConfigProblem>,
    /// Paths of the values that have a problem, or that the document lacks.
    faulty: BTreeSet<String>,
}

impl<T> Decoded<T> {
    /// Whether the value at `path`, one around it or one inside it has a problem of its form.
    pub(in crate::config) fn is_faulty(&self, path: &str) -> bool {
        let is_inside = |inner: &str, outer: &str| {
            inner
                .strip_prefix(outer)
                .is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '[']))
        };
        self.faulty.iter().any(|faulty| is_inside(path, faulty) || is_inside(faulty, path))
    }
}

/// Converts `document`.
pub(in crate::config) fn decode<'a, T: Deserialize<'a>>(document: &'a Document<'a>) -> Decoded<T> {
    let mut repairs = Repairs::default();
    let mut problems = Vec::new();
    let tables = loop {
        let root = Value::root(document);
        let fault = match T::deserialize(Decoder::new(root, document, &repairs)) {
            Ok(tables) => break Some(tables),
            Err(fault) => fault,
        };
        let Some(place) = fault.place else {
            problems.push(document.problem("", fault.problem));
            break None;
        };
        if !place.is_known {
            problems.push(document.problem_at(&place.span, &place.path, fault.problem));
        }
        let is_new = match place.repair {
            Repair::Complete => repairs.completed.insert(place.path),
            Repair::LeaveOut => repairs.left_out.insert(place.path),
        };
        if !is_new || problems.len() >= MAX_PROBLEMS {
            break None;
        }
    };
    let Repairs { mut completed, left_out } = repairs;
    completed.extend(left_out);
    Decoded { tables, problems, faulty: completed }
}

/// The values that are treated differently because they have a problem.
#[derive(Default)]
struct Repairs {
    /// Paths of required values that the document lacks. They get a placeholder.
    completed: BTreeSet<String>,
    /// Paths of values that are left out.
    left_out: BTreeSet<String>,
}

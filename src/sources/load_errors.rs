//! The errors of all files of one attempt, so that an operator can mend the files together.

use super::failure::{Failure, ReadError};
use super::load_error::LoadError;
use crate::config::PlacedProblem;
use crate::saved_state::StateError;

/// Maximum number of errors in a message, 100; the rest is counted.
const MAX_SHOWN: usize = 100;

/// Why the files that a configuration names cannot be used: at least one error, in the order of the
/// configuration.
#[derive(Debug, thiserror::Error)]
#[error("{}", self.lines().join("; "))]
pub struct LoadErrors(Vec<LoadError>);

impl LoadErrors {
    /// `first`, followed by `others`.
    pub(super) fn new(first: LoadError, others: impl Iterator<Item = LoadError>) -> Self {
        Self(std::iter::once(first).chain(others).collect())
    }

    /// The errors, of which there is at least one.
    pub(super) fn into_vec(self) -> Vec<LoadError> {
        self.0
    }

    /// The errors.
    pub fn iter(&self) -> std::slice::Iter<'_, LoadError> {
        self.0.iter()
    }

    /// The errors, one a line. After 100 lines, one line gives the number of the others.
    #[must_use]
    pub fn lines(&self) -> Vec<String> {
        let lines = self.iter().take(MAX_SHOWN).map(ToString::to_string);
        lines.chain(self.not_shown()).collect()
    }

    /// The errors as [`LoadErrors::lines`] has them, each with the key of the configuration that
    /// names the file.
    #[must_use]
    pub fn problems(&self) -> Vec<PlacedProblem> {
        let shown = self.iter().take(MAX_SHOWN).map(LoadError::placed);
        let others = self.not_shown().map(|problem| PlacedProblem { place: None, problem });
        shown.chain(others).collect()
    }

    /// A line with the number of errors above the maximum.
    fn not_shown(&self) -> Option<String> {
        match self.0.len().saturating_sub(MAX_SHOWN) {
            0 => None,
            1 => Some("1 further error is not shown".to_owned()),
            others => Some(format!("{others} further errors are not shown")),
        }
    }
}

/// Waits for a writer, and retries reading, although other files are wrong. The errors of all files
/// are then known.
impl ReadError for LoadErrors {
    fn failure(&self) -> Failure {
        let is = |failure| self.iter().any(|error| error.failure() == failure);
        let retried = [Failure::BeingWritten, Failure::Read];
        retried.into_iter().find(|failure| is(*failure)).unwrap_or(Failure::Content)
    }
}

impl From<LoadError> for LoadErrors {
    fn from(error: LoadError) -> Self {
        Self(vec![error])
    }
}

impl From<Vec<StateError>> for LoadErrors {
    fn from(errors: Vec<StateError>) -> Self {
        Self(errors.into_iter().map(LoadError::from).collect())
    }
}

/// Checks that there are no `errors`.
pub(crate) fn none_of(errors: impl IntoIterator<Item = LoadError>) -> Result<(), LoadErrors> {
    let errors: Vec<_> = errors.into_iter().collect();
    if errors.is_empty() { Ok(()) } else { Err(LoadErrors(errors)) }
}

/// All values.
///
/// # Errors
/// Returns the errors of all `results` that have one.
pub(crate) fn all<T, E: Into<LoadErrors>>(
    results: impl IntoIterator<Item = Result<T, E>>,
) -> Result<Vec<T>, LoadErrors> {
    let (mut values, mut errors) = (Vec::new(), Vec::new());
    for result in results {
        match result {
            Ok(value) => values.push(value),
            Err(error) => errors.append(&mut error.into().0),
        }
    }
    none_of(errors).map(|()| values)
}

/// Both values.
///
/// # Errors
/// Returns the errors of the first result, followed by the errors of the second one.
pub(crate) fn both<A, B>(
    first: Result<A, impl Into<LoadErrors>>,
    second: Result<B, impl Into<LoadErrors>>,
) -> Result<(A, B), LoadErrors> {
    match (first, second) {
        (Ok(first), Ok(second)) => Ok((first, second)),
        (Err(errors), Ok(_)) => Err(errors.into()),
        (Ok(_), Err(errors)) => Err(errors.into()),
        (Err(first), Err(second)) => {
            let mut errors = first.into();
            errors.0.append(&mut second.into().0);
            Err(errors)
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;

    fn error(number: usize) -> LoadError {
        LoadError::Thread(io::Error::other(number.to_string()))
    }

    fn text(errors: &LoadErrors) -> String {
        errors.to_string().replace("cannot start the thread that reads files: ", "")
    }

    #[test]
    fn every_error_is_kept_in_the_order_of_the_results() {
        let errors = all([Ok(1), Err(error(2)), Ok(3), Err(error(4))]).unwrap_err();
        assert_eq!(text(&errors), "2; 4");
        let first: Result<(), LoadErrors> = Err(errors);
        let second: Result<(), LoadError> = Err(error(5));
        assert_eq!(text(&both(first, second).unwrap_err()), "2; 4; 5");
        let good: Result<i32, LoadError> = Ok(6);
        assert_eq!(text(&both(good, Err::<(), _>(error(7))).unwrap_err()), "7");
        assert_eq!(all([Ok::<_, LoadError>(8), Ok(9)]).unwrap(), [8, 9]);
    }

    #[test]
    fn errors_after_the_first_hundred_are_counted() {
        let lines = |count| none_of((0..count).map(error)).unwrap_err().lines();
        assert_eq!(lines(100).len(), 100);
        assert_eq!(lines(101).last().unwrap(), "1 further error is not shown");
        assert_eq!(lines(1000).len(), 101);
        assert_eq!(lines(1000).last().unwrap(), "900 further errors are not shown");
    }
}

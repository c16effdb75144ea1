//! Decisions of the operator about updates that wait.

use super::Loader;
use crate::sources::{AcceptError, GuardFile};

impl Loader {
    /// Accepts the waiting update of the filter, list or service with this name on behalf of `peer`,
    /// if it has this SHA-256. The next [`Loader::refresh`] uses it.
    ///
    /// # Errors
    /// Returns an error if there is no such file, if no update waits, or if the waiting update has
    /// another SHA-256.
    pub fn accept(
        &mut self,
        file: GuardFile,
        name: &str,
        sha256: &[u8; 32],
        peer: &str,
    ) -> Result<(), AcceptError> {
        let accepted = self.sources.guarded(file, name).map(|it| it.accept(sha256, peer));
        accepted.unwrap_or_else(|| Err(AcceptError::Unknown(file.subject(name))))
    }

    /// Checks that the accepted update with this SHA-256 is in use.
    ///
    /// # Errors
    /// Returns an error if the update was rejected for another reason, or if its file is being
    /// written.
    pub fn ensure_in_use(
        &mut self,
        file: GuardFile,
        name: &str,
        sha256: &[u8; 32],
    ) -> Result<(), AcceptError> {
        let problem = self.sources.guarded(file, name).and_then(|it| it.problem_of(sha256));
        let subject = file.subject(name);
        match problem {
            None => Ok(()),
            Some(problem) if problem.is_empty() => Err(AcceptError::BeingWritten(subject)),
            Some(problem) => Err(AcceptError::Rejected(subject, problem)),
        }
    }
}

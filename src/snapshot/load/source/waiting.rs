//! The updates of all sources that wait for the operator, and how they are accepted.

use std::collections::BTreeMap;

use super::Sources;
use super::gate::{self, AcceptError};
use crate::snapshot::load::Loader;
use crate::snapshot::operator_decision::GuardFile;
use crate::snapshot::report::WaitingReport;

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
        accepted.unwrap_or_else(|| Err(AcceptError::Unknown(gate::subject(file, name))))
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
        let subject = gate::subject(file, name);
        match problem {
            None => Ok(()),
            Some(problem) if problem.is_empty() => Err(AcceptError::BeingWritten(subject)),
            Some(problem) => Err(AcceptError::Rejected(subject, problem)),
        }
    }
}

/// A source whose updates may wait for the operator.
pub(in crate::snapshot::load) trait Guarded {
    /// Accepts the waiting update with this SHA-256 on behalf of `peer`.
    fn accept(&mut self, sha256: &[u8; 32], peer: &str) -> Result<(), AcceptError>;

    /// Why the update with this SHA-256 is not in use; `None` if it is, or is held no longer. The text
    /// is empty if its file is being written.
    fn problem_of(&self, sha256: &[u8; 32]) -> Option<String>;
}

impl Sources {
    /// The filter, the list, or the service or authorizer with this name.
    fn guarded(&mut self, file: GuardFile, name: &str) -> Option<&mut dyn Guarded> {
        fn found<S: Guarded>(source: Option<&mut S>) -> Option<&mut dyn Guarded> {
            source.map(|source| source as &mut dyn Guarded)
        }
        match file {
            GuardFile::Filter => found(self.filters.iter_mut().find(|it| it.name() == name)),
            GuardFile::List => found(self.lists.iter_mut().find(|it| it.config().name == name)),
            GuardFile::Service => found(self.services.iter_mut().find(|it| it.name() == name))
                .or_else(|| found(self.authorizers.iter_mut().find(|it| it.name() == name))),
        }
    }

    /// The updates of CAs and CRLs that wait, by the name of each service and authorizer.
    pub(in crate::snapshot::load) fn waiting_files(&self) -> BTreeMap<String, Vec<WaitingReport>> {
        let services = self.services.iter().map(|it| (it.name(), &it.gates));
        let all = services.chain(self.authorizers.iter().map(|it| (it.name(), &it.gates)));
        all.map(|(name, gates)| (name.to_owned(), gates.waiting().cloned().collect())).collect()
    }
}

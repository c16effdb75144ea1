//! The updates of all sources that wait for the operator, and how they are accepted.

use std::collections::BTreeMap;
use std::path::PathBuf;

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
        let Sources { filters, lists, services, authorizers, .. } = &mut self.sources;
        let accepted = match file {
            GuardFile::Filter => {
                let filter = filters.iter_mut().find(|it| it.name() == name);
                filter.map(|filter| filter.gate_mut().accept(sha256, peer))
            }
            GuardFile::List => {
                let list = lists.iter_mut().find(|it| it.config().name == name);
                list.map(|list| list.gate_mut().accept(sha256, peer))
            }
            GuardFile::Service => {
                let service = services.iter_mut().find(|it| it.name() == name);
                let service = service.map(|service| service.accept(sha256, peer));
                service.or_else(|| {
                    let authorizer = authorizers.iter_mut().find(|it| it.name() == name);
                    authorizer.map(|authorizer| authorizer.accept(sha256, peer))
                })
            }
        };
        accepted.unwrap_or_else(|| Err(AcceptError::Unknown(gate::subject(file, name))))
    }

    /// Checks that the accepted update with this SHA-256 is in use.
    ///
    /// # Errors
    /// Returns an error if the update was rejected for another reason, or if its file is being
    /// written.
    pub fn ensure_in_use(
        &self,
        file: GuardFile,
        name: &str,
        sha256: &[u8; 32],
    ) -> Result<(), AcceptError> {
        let Sources { filters, lists, services, authorizers, .. } = &self.sources;
        let problem = match file {
            GuardFile::Filter => {
                let filter = filters.iter().find(|it| it.name() == name);
                filter.and_then(|filter| filter.problem_of(sha256))
            }
            GuardFile::List => {
                let list = lists.iter().find(|it| it.config().name == name);
                list.and_then(|list| list.problem_of(sha256))
            }
            GuardFile::Service => {
                let service = services.iter().find(|it| it.name() == name);
                let authorizer = authorizers.iter().find(|it| it.name() == name);
                let problem = service.and_then(|service| service.problem_of(sha256));
                problem.or_else(|| authorizer?.problem_of(sha256))
            }
        };
        let subject = gate::subject(file, name);
        match problem {
            None => Ok(()),
            Some(problem) if problem.is_empty() => Err(AcceptError::BeingWritten(subject)),
            Some(problem) => Err(AcceptError::Rejected(subject, problem)),
        }
    }
}

impl Sources {
    /// The updates of CAs and CRLs that wait, by the path of their file.
    pub(in crate::snapshot::load) fn waiting_files(&self) -> BTreeMap<PathBuf, WaitingReport> {
        let services = self.services.iter().flat_map(|it| it.gates.waiting());
        let waiting = services.chain(self.authorizers.iter().flat_map(|it| it.gates.waiting()));
        waiting.map(|(path, report)| (path.to_owned(), report.clone())).collect()
    }
}

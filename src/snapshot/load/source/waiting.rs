//! The updates that wait for the operator, of all sources.

use std::collections::BTreeMap;
use std::path::PathBuf;

use super::Sources;
use super::gate::{self, AcceptError};
use crate::snapshot::operator_decision::GuardFile;
use crate::snapshot::report::WaitingReport;

impl Sources {
    /// Accepts the waiting update with this SHA-256 of the filter, list or service with this name.
    pub(in crate::snapshot::load) fn accept(
        &mut self,
        file: GuardFile,
        name: &str,
        sha256: &[u8; 32],
        peer: &str,
    ) -> Result<(), AcceptError> {
        let accepted = match file {
            GuardFile::Filter => {
                let filter = self.filters.iter_mut().find(|it| it.name() == name);
                filter.map(|filter| filter.gate_mut().accept(sha256, peer))
            }
            GuardFile::List => {
                let list = self.lists.iter_mut().find(|it| it.config().name == name);
                list.map(|list| list.gate_mut().accept(sha256, peer))
            }
            GuardFile::Service => {
                let service = self.services.iter_mut().find(|it| it.name() == name);
                let service = service.map(|service| service.accept(sha256, peer));
                service.or_else(|| {
                    let authorizer = self.authorizers.iter_mut().find(|it| it.name() == name);
                    authorizer.map(|authorizer| authorizer.accept(sha256, peer))
                })
            }
        };
        accepted.unwrap_or_else(|| Err(AcceptError::Unknown(gate::subject(file, name))))
    }

    /// Why the content with this SHA-256 is not in use for the filter or list with this name;
    /// `None` if it is. The text is empty if the file is being written.
    pub(in crate::snapshot::load) fn problem_of(
        &self,
        file: GuardFile,
        name: &str,
        sha256: &[u8; 32],
    ) -> Option<String> {
        match file {
            GuardFile::Filter => {
                self.filters.iter().find(|it| it.name() == name)?.problem_of(sha256)
            }
            GuardFile::List => {
                self.lists.iter().find(|it| it.config().name == name)?.problem_of(sha256)
            }
            GuardFile::Service => {
                let service = self.services.iter().find(|it| it.name() == name);
                let authorizer = self.authorizers.iter().find(|it| it.name() == name);
                let problem = service.and_then(|service| service.problem_of(sha256));
                problem.or_else(|| authorizer?.problem_of(sha256))
            }
        }
    }

    /// The updates of CAs and CRLs that wait, by the path of their file.
    pub(in crate::snapshot::load) fn waiting_files(&self) -> BTreeMap<PathBuf, WaitingReport> {
        let services = self.services.iter().flat_map(|it| it.gates.waiting());
        let waiting = services.chain(self.authorizers.iter().flat_map(|it| it.gates.waiting()));
        waiting.map(|(path, report)| (path.to_owned(), report.clone())).collect()
    }
}

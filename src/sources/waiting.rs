//! The updates of all sources that wait for the operator.

use std::collections::BTreeMap;

use super::source_set::FileSource;
use super::{AcceptError, GuardFile, Sources, WaitingReport};

/// A source whose updates may wait for the operator.
pub(crate) trait Guarded {
    /// Accepts the waiting update with this SHA-256 on behalf of `peer`.
    fn accept(&mut self, sha256: &[u8; 32], peer: &str) -> Result<(), AcceptError>;

    /// Why the update with this SHA-256 is not in use; `None` if it is, or is held no longer. The text
    /// is empty if its file is being written.
    fn problem_of(&self, sha256: &[u8; 32]) -> Option<String>;
}

impl Sources {
    /// The filter, the list, or the service or authorizer with this name.
    pub(crate) fn guarded(&mut self, file: GuardFile, name: &str) -> Option<&mut dyn Guarded> {
        fn found<S: Guarded>(source: Option<&mut S>) -> Option<&mut dyn Guarded> {
            source.map(|source| source as &mut dyn Guarded)
        }
        match file {
            GuardFile::Filter => found(self.filters.iter_mut().find(|it| it.name() == name)),
            GuardFile::List => found(self.lists.iter_mut().find(|it| it.name() == name)),
            GuardFile::Service => found(self.credentials.iter_mut().find(|it| it.name() == name)),
        }
    }

    /// The updates of CAs and CRLs that wait, by the name of each service and authorizer.
    pub(super) fn waiting_files(&self) -> BTreeMap<String, Vec<WaitingReport>> {
        let all = self.credentials.iter().map(|it| (it.name(), &it.gates));
        all.map(|(name, gates)| (name.to_owned(), gates.waiting().cloned().collect())).collect()
    }
}

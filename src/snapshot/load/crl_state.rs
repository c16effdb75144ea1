//! The newest CRLs of each service that were in use, kept across restarts.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::error::LoadError;
use super::{file, rollback_state};
use crate::config::ServiceConfig;
use crate::regular_file;
use crate::tls::CrlMarks;

/// Maximum number of bytes read from the state file, 16 MiB: enough for tens of thousands of lists.
const MAX_SIZE: u64 = 16 << 20;

/// The marks of all services, and the file that keeps them.
#[derive(Debug, Default)]
pub(crate) struct CrlState {
    /// `None` without a state directory. The marks are then lost at a restart.
    path: Option<PathBuf>,
    services: BTreeMap<String, CrlMarks>,
}

/// The content of the state file.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct CrlStateFile {
    services: BTreeMap<String, CrlMarks>,
}

impl CrlState {
    /// Reads the state file in `directory`; without a directory or a file, there are no marks.
    ///
    /// # Errors
    /// Returns an error if the file exists and cannot be read or parsed. An empty state would allow
    /// the rollback that the file was written to prevent.
    pub(super) fn read(directory: Option<&Path>) -> Result<Self, LoadError> {
        let Some(directory) = directory else { return Ok(Self::default()) };
        let path = directory.join("revocation-lists.json");
        let content = match file::read_with(&path, |path| regular_file::read(path, MAX_SIZE)) {
            Ok(text) => serde_json::from_slice(&text).map_err(io::Error::from),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(CrlStateFile::default()),
            Err(error) => Err(error),
        };
        match content {
            Ok(content) => Ok(Self { path: Some(path), services: content.services }),
            Err(source) => Err(LoadError::State { path, source }),
        }
    }

    /// The marks of the service with this name. Without any, those of the services that are not
    /// among `configured`, because one of them may be this service under its previous name.
    pub(super) fn marks(&self, service: &str, configured: &[ServiceConfig]) -> CrlMarks {
        if let Some(marks) = self.services.get(service) {
            return marks.clone();
        }
        let mut marks = CrlMarks::new();
        let is_gone = |name: &str| configured.iter().all(|it| it.name != name);
        let gone = self.services.iter().filter(|(name, _)| is_gone(name));
        for (id, known) in gone.flat_map(|(_, known)| known) {
            let mark = marks.entry(id.clone()).or_insert_with(|| known.clone());
            if mark.version.is_older_than(&known.version) {
                mark.version = known.version;
            }
        }
        marks
    }

    /// Saves the marks of `services`. The file is written if any of them has changed.
    ///
    /// The marks of services that are no longer configured are kept.
    ///
    /// # Errors
    /// Returns an error if the file cannot be written.
    pub(super) fn save<'a>(
        &mut self,
        services: impl Iterator<Item = (&'a str, &'a CrlMarks)>,
    ) -> Result<(), LoadError> {
        let mut next = self.services.clone();
        for (service, marks) in services.filter(|(_, marks)| !marks.is_empty()) {
            next.insert(service.to_owned(), marks.clone());
        }
        if next == self.services {
            return Ok(());
        }
        if let Some(path) = &self.path {
            let (state_file, content) = (path.clone(), CrlStateFile { services: next.clone() });
            file::write_with(path, 0, move || rollback_state::write(&state_file, &content))
                .map_err(|source| LoadError::State { path: path.clone(), source })?;
        }
        self.services = next;
        Ok(())
    }
}

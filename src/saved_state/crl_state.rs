//! The newest CRLs of each service that were in use, kept across restarts.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use keygate_core::tls::CrlMarks;
use serde::{Deserialize, Serialize};

use super::StateError;
use super::state_file;
use crate::files;

/// The marks of all services, and the file that keeps them.
#[derive(Debug, Default)]
pub(crate) struct CrlState {
    /// `None` without a state directory. The marks are then lost at a restart.
    path: Option<PathBuf>,
    marks: CrlStateFile,
    /// Whether the file lacks a change of `marks`.
    is_unsaved: bool,
}

/// The content of the state file.
#[derive(Debug, Default, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct CrlStateFile {
    /// The marks of the configured services, by name.
    services: BTreeMap<String, CrlMarks>,
    /// The newest marks of services that are no longer configured, without their names. Renamed
    /// services therefore add nothing to the file.
    #[serde(default, skip_serializing_if = "CrlMarks::is_empty")]
    removed: CrlMarks,
}

impl CrlState {
    /// Reads the state file in `directory`; without a directory or a file, there are no marks.
    ///
    /// # Errors
    /// Returns an error if the file exists and cannot be read or parsed. An empty state would allow
    /// the rollback that the file was written to prevent.
    pub(crate) fn read(directory: Option<&Path>) -> Result<Self, StateError> {
        let Some(directory) = directory else { return Ok(Self::default()) };
        let path = directory.join("revocation-lists.json");
        let content = state_file::or_default(files::read_with(&path, state_file::read));
        match content {
            Ok(marks) => Ok(Self { path: Some(path), marks, is_unsaved: false }),
            Err(source) => Err(StateError::File { path, source }),
        }
    }

    /// The marks of the service with this name. `own` replaces the marks of the last save.
    ///
    /// For lists without a mark of the service, the marks of the services and authorizers that are
    /// not among `configured` count, because one of them may be this service under its previous
    /// name. The marks of other configured services do not count, because they may have other
    /// files.
    pub(crate) fn marks(
        &self,
        service: &str,
        own: Option<&CrlMarks>,
        configured: &[&str],
    ) -> CrlMarks {
        let CrlStateFile { services, removed } = &self.marks;
        let is_gone = |name: &str| !configured.contains(&name);
        let mut marks = CrlMarks::new();
        let gone = services.iter().filter(|(name, _)| is_gone(name)).map(|(_, marks)| marks);
        gone.chain([removed]).for_each(|others| join(&mut marks, others));
        let own = own.or_else(|| services.get(service));
        marks.extend(own.into_iter().flatten().map(|(id, mark)| (id.clone(), mark.clone())));
        marks
    }

    /// Records the marks of `services`, which are all that are configured. With `may_write`, the
    /// file is written if it lacks a change.
    ///
    /// # Errors
    /// Returns an error if the file cannot be written. The marks count nevertheless, and the next
    /// call writes the file.
    pub(crate) fn save(
        &mut self,
        mut services: BTreeMap<String, CrlMarks>,
        may_write: bool,
    ) -> Result<(), StateError> {
        services.retain(|_, marks| !marks.is_empty());
        let mut next = CrlStateFile { services, removed: self.marks.removed.clone() };
        for (name, marks) in &self.marks.services {
            if !next.services.contains_key(name) {
                join(&mut next.removed, marks);
            }
        }
        // A service that is configured later has read no file yet.
        next.removed.values_mut().for_each(|mark| mark.file = None);
        if next != self.marks {
            self.marks = next;
            self.is_unsaved = true;
        }
        if let (true, true, Some(path)) = (self.is_unsaved, may_write, &self.path) {
            let (state_file, content) = (path.clone(), self.marks.clone());
            files::write_with(path, 0, move || state_file::write(&state_file, &content))
                .map_err(|source| StateError::File { path: path.clone(), source })?;
            self.is_unsaved = false;
        }
        Ok(())
    }
}

/// Raises `marks` to those in `others`.
fn join(marks: &mut CrlMarks, others: &CrlMarks) {
    for (id, other) in others {
        let mark = marks.entry(id.clone()).or_insert_with(|| other.clone());
        if mark.version.is_older_than(&other.version) {
            mark.clone_from(other);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use keygate_core::tls::{CrlMark, CrlVersion};

    fn marks(list: &str, this_update: u64) -> CrlMarks {
        let version = CrlVersion { number: None, this_update };
        CrlMarks::from([(
            list.to_owned(),
            CrlMark { issuer: "CN=CA".to_owned(), ca: String::new(), file: None, version },
        )])
    }

    fn save(state: &mut CrlState, service: &str, marks: &CrlMarks) {
        state.save(BTreeMap::from([(service.to_owned(), marks.clone())]), true).unwrap();
    }

    #[test]
    fn a_service_that_gets_its_first_name_back_keeps_the_newest_marks() {
        let directory = tempfile::tempdir().unwrap();
        let mut state = CrlState::read(Some(directory.path())).unwrap();
        save(&mut state, "a", &marks("x", 1));
        for (service, this_update) in [("b", 2), ("a", 3), ("c", 4)] {
            let before = state.marks(service, None, &[]);
            assert_eq!(before.get("x"), marks("x", this_update - 1).get("x"), "{service}");
            save(&mut state, service, &marks("x", this_update));
        }
        // A mark of its own counts, and for other lists the newest of removed services.
        save(&mut state, "d", &marks("y", 7));
        let restarted = CrlState::read(Some(directory.path())).unwrap();
        let known = restarted.marks("d", None, &[]);
        assert_eq!((&known["x"], &known["y"]), (&marks("x", 4)["x"], &marks("y", 7)["y"]));
        let own = marks("x", 1);
        assert_eq!(restarted.marks("d", Some(&own), &[])["x"], own["x"]);
    }

    #[test]
    fn services_with_new_names_do_not_make_the_state_file_longer() {
        let directory = tempfile::tempdir().unwrap();
        let mut state = CrlState::read(Some(directory.path())).unwrap();
        let mut length = |service: String| {
            save(&mut state, &service, &marks("x", 5));
            directory.path().join("revocation-lists.json").metadata().unwrap().len()
        };
        length("service 10".to_owned());
        let second = length("service 11".to_owned());
        assert!((12..99).all(|number| length(format!("service {number}")) == second));
    }

    #[test]
    fn marks_that_cannot_be_saved_count_and_are_saved_later() {
        let directory = tempfile::tempdir().unwrap();
        let mut state = CrlState::read(Some(directory.path())).unwrap();
        let known = marks("x", 5);
        let in_the_way = directory.path().join("revocation-lists.json");
        std::fs::create_dir(&in_the_way).unwrap();
        let of = |service: &str| BTreeMap::from([(service.to_owned(), known.clone())]);
        state.save(of("a"), true).unwrap_err();
        assert_eq!(state.marks("b", None, &[]), known);
        state.save(of("b"), false).unwrap();
        assert_eq!(state.marks("c", None, &[]), known);
        std::fs::remove_dir(&in_the_way).unwrap();
        save(&mut state, "b", &known);
        let restarted = CrlState::read(Some(directory.path())).unwrap();
        assert_eq!(restarted.marks.services.keys().collect::<Vec<_>>(), ["b"]);
    }
}

//! Which filter was in use last: what an older file is told by, also after a restart.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::pkbf::Header;

/// The largest state file that is read, in bytes: thousands of filters.
const MAX_SIZE: u64 = 1 << 20;

/// The age of a filter. A later change is greater, of two at the same time the higher revision.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Watermark {
    /// Last change, in seconds since the Unix epoch.
    pub(super) updated: u64,
    pub(super) revision: u32,
}

impl Watermark {
    pub(super) fn of(header: &Header) -> Self {
        Self { updated: header.updated_at, revision: header.revision }
    }
}

/// The marks of all filters by name, and the file that keeps them.
#[derive(Debug, Default)]
pub(super) struct RollbackState {
    file: Option<PathBuf>,
    kept: BTreeMap<String, Watermark>,
}

/// The state as it is in the file.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct State {
    filters: BTreeMap<String, Watermark>,
}

impl RollbackState {
    /// What the state directory remembers; nothing without one, or when it is new.
    ///
    /// # Errors
    /// The file is there and cannot be read or is not what was written: what it should have
    /// prevented is not to be let through.
    pub(super) fn read(directory: Option<&Path>) -> io::Result<Self> {
        let Some(directory) = directory else { return Ok(Self::default()) };
        let file = file_in(directory);
        let mut text = String::new();
        let state: State = match File::open(&file) {
            Ok(content) => {
                content.take(MAX_SIZE).read_to_string(&mut text)?;
                serde_json::from_str(&text)?
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => State::default(),
            Err(error) => return Err(error),
        };
        Ok(Self { file: Some(file), kept: state.filters })
    }

    pub(super) fn file(&self) -> Option<&Path> {
        self.file.as_deref()
    }

    pub(super) fn of(&self, filter: &str) -> Option<Watermark> {
        self.kept.get(filter).copied()
    }

    /// Remembers `marks`, on disk if there is a state directory and anything has changed. Those of
    /// filters that are no longer configured stay.
    pub(super) fn keep(
        &mut self,
        marks: impl Iterator<Item = (String, Watermark)>,
    ) -> io::Result<()> {
        let mut next = self.kept.clone();
        next.extend(marks);
        if let Some(file) = &self.file
            && (next != self.kept || !file.exists())
        {
            write(file, &next)?;
        }
        self.kept = next;
        Ok(())
    }
}

/// The state file in a directory.
pub(super) fn file_in(directory: &Path) -> PathBuf {
    directory.join("filters.json")
}

/// Written beside it, synced and renamed: a crash leaves the old state or the new one.
fn write(file: &Path, filters: &BTreeMap<String, Watermark>) -> io::Result<()> {
    let directory = file.parent().unwrap_or(Path::new("."));
    let mut staged = tempfile::NamedTempFile::new_in(directory)?;
    let mut text = serde_json::to_string_pretty(&State { filters: filters.clone() })?;
    text.push('\n');
    staged.write_all(text.as_bytes())?;
    staged.as_file().sync_all()?;
    staged.persist(file).map_err(|error| error.error)?;
    File::open(directory)?.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mark(updated: u64, revision: u32) -> Watermark {
        Watermark { updated, revision }
    }

    #[test]
    fn time_comes_before_revision() {
        assert!(mark(1, 9) < mark(2, 1));
        assert!(mark(2, 1) < mark(2, 2));
    }

    #[test]
    fn marks_outlive_the_process_that_made_them() {
        let directory = tempfile::tempdir().unwrap();
        let marks = |name: &str, mark| std::iter::once((name.to_owned(), mark));
        let mut first = RollbackState::read(Some(directory.path())).unwrap();
        assert_eq!(first.of("lost"), None);
        first.keep(marks("lost", mark(5, 1))).unwrap();
        first.keep(marks("other", mark(6, 2))).unwrap();

        let second = RollbackState::read(Some(directory.path())).unwrap();
        assert_eq!(second.of("lost"), Some(mark(5, 1)));
        assert_eq!(second.of("other"), Some(mark(6, 2)));
        let names = std::fs::read_dir(directory.path()).unwrap().count();
        assert_eq!(names, 1, "nothing is left over");
    }

    #[test]
    fn without_a_directory_marks_last_as_long_as_the_process() {
        let mut marks = RollbackState::read(None).unwrap();
        marks.keep(std::iter::once(("lost".to_owned(), mark(5, 1)))).unwrap();
        assert_eq!(marks.of("lost"), Some(mark(5, 1)));
    }

    #[test]
    fn a_state_that_is_broken_is_not_taken_for_an_empty_one() {
        let directory = tempfile::tempdir().unwrap();
        for text in ["", "{}", "{\"filters\":{\"lost\":{\"updated\":-1,\"revision\":0}}}"] {
            std::fs::write(file_in(directory.path()), text).unwrap();
            assert!(RollbackState::read(Some(directory.path())).is_err(), "{text}");
        }
    }
}

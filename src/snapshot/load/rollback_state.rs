//! Rollback state: the newest filter of each name that was in use, kept across restarts.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::check::rollback::Watermark;

/// Maximum number of bytes read from the state file, 1 MiB: enough for thousands of filters.
const MAX_SIZE: u64 = 1 << 20;

/// The watermarks of all filters, and the file that keeps them.
#[derive(Debug, Default)]
pub(super) struct RollbackState {
    /// `None` without a state directory. The watermarks are then lost at a restart.
    path: Option<PathBuf>,
    watermarks: BTreeMap<String, Watermark>,
}

/// The content of the state file.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Content {
    filters: BTreeMap<String, Watermark>,
}

impl RollbackState {
    /// Reads the state file in `directory`; without a directory or a file, there are no watermarks.
    ///
    /// # Errors
    /// Returns an error if the file exists and cannot be read or parsed. An empty state would allow
    /// the rollback that the file was written to prevent.
    pub(super) fn read(directory: Option<&Path>) -> io::Result<Self> {
        let Some(directory) = directory else { return Ok(Self::default()) };
        let path = path_in(directory);
        let content = match File::open(&path) {
            Ok(file) => {
                let mut text = String::new();
                file.take(MAX_SIZE).read_to_string(&mut text)?;
                serde_json::from_str(&text)?
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => Content::default(),
            Err(error) => return Err(error),
        };
        Ok(Self { path: Some(path), watermarks: content.filters })
    }

    /// Path of the state file; `None` without a state directory.
    pub(super) fn path(&self) -> Option<&Path> {
        self.path.as_deref()
    }

    /// The watermark of the filter with this name.
    pub(super) fn watermark(&self, filter: &str) -> Option<Watermark> {
        self.watermarks.get(filter).copied()
    }

    /// Saves `watermarks` by filter name. The file is written if any of them has changed.
    ///
    /// The watermarks of filters that are no longer configured are kept.
    ///
    /// # Errors
    /// Returns an error if the file cannot be written.
    pub(super) fn save(
        &mut self,
        watermarks: impl Iterator<Item = (String, Watermark)>,
    ) -> io::Result<()> {
        let mut next = self.watermarks.clone();
        next.extend(watermarks);
        if let Some(path) = &self.path
            && (next != self.watermarks || !path.exists())
        {
            write(path, &Content { filters: next.clone() })?;
        }
        self.watermarks = next;
        Ok(())
    }
}

/// Path of the state file in `directory`.
pub(super) fn path_in(directory: &Path) -> PathBuf {
    directory.join("filters.json")
}

/// Replaces the file at `path` atomically: after a crash it holds the old content or the new.
pub(super) fn write(path: &Path, content: &impl Serialize) -> io::Result<()> {
    let directory = path.parent().unwrap_or(Path::new("."));
    let mut staged = tempfile::NamedTempFile::new_in(directory)?;
    let mut text = serde_json::to_string_pretty(content)?;
    text.push('\n');
    staged.write_all(text.as_bytes())?;
    staged.as_file().sync_all()?;
    staged.persist(path).map_err(|error| error.error)?;
    File::open(directory)?.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn watermark(updated: u64, revision: u32) -> Watermark {
        Watermark { updated, revision }
    }

    fn one(name: &str, watermark: Watermark) -> impl Iterator<Item = (String, Watermark)> {
        std::iter::once((name.to_owned(), watermark))
    }

    #[test]
    fn watermarks_outlive_the_process() {
        let directory = tempfile::tempdir().unwrap();
        let mut first = RollbackState::read(Some(directory.path())).unwrap();
        assert_eq!(first.watermark("lost"), None);
        first.save(one("lost", watermark(5, 1))).unwrap();
        first.save(one("other", watermark(6, 2))).unwrap();

        let second = RollbackState::read(Some(directory.path())).unwrap();
        assert_eq!(second.watermark("lost"), Some(watermark(5, 1)));
        assert_eq!(second.watermark("other"), Some(watermark(6, 2)));
        let files = std::fs::read_dir(directory.path()).unwrap().count();
        assert_eq!(files, 1, "no temporary file remains");
    }

    #[test]
    fn without_a_directory_watermarks_last_as_long_as_the_process() {
        let mut state = RollbackState::read(None).unwrap();
        state.save(one("lost", watermark(5, 1))).unwrap();
        assert_eq!(state.watermark("lost"), Some(watermark(5, 1)));
    }

    #[test]
    fn a_broken_state_file_is_an_error_and_not_an_empty_state() {
        let directory = tempfile::tempdir().unwrap();
        for text in ["", "{}", "{\"filters\":{\"lost\":{\"updated\":-1,\"revision\":0}}}"] {
            std::fs::write(path_in(directory.path()), text).unwrap();
            assert!(RollbackState::read(Some(directory.path())).is_err(), "{text}");
        }
    }
}

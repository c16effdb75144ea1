//! Reads files again when they change, and keeps the last good value that was read from them.
//!
//! Filters, lists, service credentials and the configuration follow this one algorithm. The
//! caller reads the files and decides whether their content is good.

use std::path::PathBuf;
use std::time::SystemTime;

use super::file::FileState;
use crate::metrics::ReloadResult;
use crate::snapshot::report::ReloadReport;
use crate::unix_time;

/// The last good value read from some files.
#[derive(Debug)]
pub(crate) struct LastGood<T> {
    value: T,
    /// When `value` was put in use, in seconds since the Unix epoch.
    loaded_at: u64,
    paths: Vec<PathBuf>,
    /// The state of each of `paths` when they were last read.
    states: Vec<FileState>,
    /// The result of the last attempt to read again; `None` before the first one.
    last_attempt: Option<ReloadReport>,
}

/// When [`LastGood::reread`] reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ReadIf {
    /// Always.
    Always,
    /// Only if a file has changed since it was last read.
    Changed,
}

/// Result of [`LastGood::reread`].
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Reread<R> {
    /// A file is being written; read again soon.
    Pending,
    /// The files were read with this result.
    Read(R),
    /// The files have not changed and were not read.
    Unchanged,
}

/// Result of refreshing one source.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Change {
    /// The value in use stays for now, because a file is being written.
    Pending,
    /// A new value is in use.
    Replaced,
    /// The value in use stays.
    Same,
}

/// The writer of a file holds its lock.
#[derive(Debug)]
pub(crate) struct BeingWritten;

impl<T> LastGood<T> {
    /// A value that was not read from any file. [`LastGood::watch`] names its files later.
    pub(crate) fn new(value: T, now: SystemTime) -> Self {
        let loaded_at = unix_time::seconds(now);
        Self { value, loaded_at, paths: Vec::new(), states: Vec::new(), last_attempt: None }
    }

    /// Reads the files at `paths` for the first time.
    ///
    /// # Errors
    /// Returns the error of `read`.
    pub(crate) fn load<E>(
        paths: Vec<PathBuf>,
        now: SystemTime,
        read: impl FnOnce() -> Result<T, E>,
    ) -> Result<Self, E> {
        // Before the files are read, so that a change during the read is seen later.
        let states = states_of(&paths);
        let value = read()?;
        Ok(Self { paths, states, ..Self::new(value, now) })
    }

    /// Reads from the files at `paths` from now on, beginning with their next change.
    pub(crate) fn watch(&mut self, paths: Vec<PathBuf>) {
        self.states = states_of(&paths);
        self.paths = paths;
    }

    /// Calls `read` with the value in use if a file has changed and all have settled.
    ///
    /// The caller then calls [`LastGood::replace`], [`LastGood::record_unchanged`] or
    /// [`LastGood::record_rejection`].
    pub(crate) fn reread<R>(
        &mut self,
        read_if: ReadIf,
        now: SystemTime,
        read: impl FnOnce(&T) -> Result<R, BeingWritten>,
    ) -> Reread<R> {
        let states = states_of(&self.paths);
        if states == self.states && read_if == ReadIf::Changed {
            return Reread::Unchanged;
        }
        if !states.iter().all(|state| state.is_settled(now)) {
            return Reread::Pending;
        }
        let Ok(content) = read(&self.value) else { return Reread::Pending };
        // A file that changed during the read may have been read half old, half new.
        if states_of(&self.paths) != states {
            return Reread::Pending;
        }
        self.states = states;
        Reread::Read(content)
    }

    /// Puts `value` in use.
    pub(crate) fn replace(&mut self, value: T, now: SystemTime) {
        self.value = value;
        self.loaded_at = unix_time::seconds(now);
        self.last_attempt = Some(ReloadReport::done(ReloadResult::Loaded, self.loaded_at));
    }

    /// Records that the files hold the value in use.
    pub(crate) fn record_unchanged(&mut self, now: SystemTime) {
        let now = unix_time::seconds(now);
        self.last_attempt = Some(ReloadReport::done(ReloadResult::Unchanged, now));
    }

    /// Records that the content of the files was rejected.
    pub(crate) fn record_rejection(
        &mut self,
        reason: Option<&'static str>,
        error: &dyn std::error::Error,
        now: SystemTime,
    ) {
        let now = unix_time::seconds(now);
        self.last_attempt = Some(ReloadReport::rejected(reason, error.to_string(), now));
    }

    /// The value in use.
    pub(crate) fn get(&self) -> &T {
        &self.value
    }

    /// The value in use, for changes to its parts that do not come from files.
    pub(crate) fn get_mut(&mut self) -> &mut T {
        &mut self.value
    }

    /// When the value was put in use, in seconds since the Unix epoch.
    pub(crate) fn loaded_at(&self) -> u64 {
        self.loaded_at
    }

    /// The files.
    pub(crate) fn paths(&self) -> &[PathBuf] {
        &self.paths
    }

    /// The result of the last attempt to read again; `None` before the first one.
    pub(crate) fn last_attempt(&self) -> Option<&ReloadReport> {
        self.last_attempt.as_ref()
    }

    /// The result of the last attempt to read, the first one included.
    pub(crate) fn last_reload(&self) -> ReloadReport {
        let first = || ReloadReport::done(ReloadResult::Loaded, self.loaded_at);
        self.last_attempt.clone().unwrap_or_else(first)
    }
}

fn states_of(paths: &[PathBuf]) -> Vec<FileState> {
    paths.iter().map(|path| FileState::of(path)).collect()
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;
    use std::time::Duration;

    use super::*;

    /// A time at which a file that is written now has settled.
    fn later() -> SystemTime {
        SystemTime::now() + Duration::from_secs(1)
    }

    fn last_good(path: &Path) -> LastGood<String> {
        LastGood::load(vec![path.to_owned()], SystemTime::now(), || fs::read_to_string(path))
            .unwrap()
    }

    fn file(content: &str) -> (tempfile::TempDir, PathBuf) {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("file");
        fs::write(&path, content).unwrap();
        (directory, path)
    }

    #[test]
    fn a_file_is_read_again_only_if_it_has_changed_or_the_caller_insists() {
        let (_directory, path) = file("1");
        let mut value = last_good(&path);
        assert_eq!(value.reread(ReadIf::Changed, later(), |_| Ok(())), Reread::Unchanged);
        assert_eq!(value.reread(ReadIf::Always, later(), |_| Ok(())), Reread::Read(()));
        fs::write(&path, "22").unwrap();
        let read = value.reread(ReadIf::Changed, later(), |before| Ok(before.clone()));
        assert_eq!(read, Reread::Read("1".to_owned()));
        assert_eq!(value.reread(ReadIf::Changed, later(), |_| Ok(())), Reread::Unchanged);
    }

    #[test]
    fn a_file_that_is_being_written_is_read_later() {
        let (_directory, path) = file("1");
        let mut value = last_good(&path);
        fs::write(&path, "22").unwrap();
        let pending: Reread<()> = Reread::Pending;
        assert_eq!(value.reread(ReadIf::Changed, SystemTime::now(), |_| Ok(())), pending);
        assert_eq!(value.reread(ReadIf::Changed, later(), |_| Err(BeingWritten)), pending);
        let changing = |_: &String| {
            fs::write(&path, "333").unwrap();
            Ok(())
        };
        assert_eq!(value.reread(ReadIf::Changed, later(), changing), pending);
        assert_eq!(value.reread(ReadIf::Changed, later(), |_| Ok(())), Reread::Read(()));
    }

    #[test]
    fn a_rejection_keeps_the_value_and_is_reported() {
        let (_directory, path) = file("1");
        let mut value = last_good(&path);
        assert!(value.last_attempt().is_none());
        assert_eq!(value.last_reload().error, None);
        value.record_rejection(None, &std::fmt::Error, later());
        assert_eq!(value.get(), "1");
        assert!(value.last_reload().error.is_some());
        value.replace("22".to_owned(), later());
        assert_eq!(value.get(), "22");
        assert_eq!(value.last_reload().error, None);
    }
}

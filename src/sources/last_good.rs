//! Reads files again when they change, and keeps the last good value that was read from them.
//!
//! Filters, lists, service credentials and the configuration follow this one algorithm. The
//! caller reads the files and decides whether their content is good.
//!
//! | files | reading |
//! | --- | --- |
//! | unchanged | only if the last attempt could not read them |
//! | changed | when all are unchanged for [`SETTLE`](crate::files::SETTLE) |
//! | renamed over again and again | after [`MAX_UNSETTLED`], because each of them is complete |
//! | written in place without a pause | after [`MAX_WRITING`] |

use std::cell::Cell;
use std::path::PathBuf;
use std::time::{Duration, Instant, SystemTime};

use keygate_core::unix_time;
use tracing::info;

use super::failure::{Failure, ReadError};
use super::rejection_reason::RejectionReason;
use crate::files::FileState;
use crate::metrics::{Label, ReloadResult};
use crate::sources::report::ReloadReport;

/// Maximum time to wait for files to settle that are renamed over, 2 s.
const MAX_UNSETTLED: Duration = Duration::from_secs(2);
/// Maximum time to wait for the writer of a file, 60 s. The update is rejected after it if the
/// writer is not done; it is still read when the writer is done.
const MAX_WRITING: Duration = Duration::from_secs(60);
/// Maximum time to wait for the writer of a file that has no last good value, 10 s.
const MAX_FIRST_WAIT: Duration = Duration::from_secs(10);
/// Pause between two attempts to read files for the first time.
const FIRST_PAUSE: Duration = Duration::from_millis(50);

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
    /// Whether the last attempt could not read the files, so that unchanged files are read again.
    must_retry: bool,
    /// Whether the last attempt read unchanged files.
    is_retry: bool,
    /// The files that changed and have not settled.
    unsettled: Option<Unsettled>,
}

/// Files that changed and have not settled.
#[derive(Debug)]
struct Unsettled {
    since: SystemTime,
    /// The state of each file when it was last looked at.
    states: Vec<FileState>,
}

/// When [`LastGood::reread`] reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ReadIf {
    /// Always.
    Always,
    /// Only if a file has changed since it was last read.
    Changed,
}

/// Time left to wait for writers of files: [`MAX_FIRST_WAIT`] minus the time spent on sources that
/// failed.
///
/// A source that fails ends the whole attempt. Later sources are read for their errors only.
#[derive(Debug)]
pub(crate) struct MaxWait(Cell<Duration>);

impl MaxWait {
    /// Counts the time that a source took which cannot be used.
    fn spend(&self, time: Duration) {
        self.0.set(self.0.get().saturating_sub(time));
    }
}

impl Default for MaxWait {
    fn default() -> Self {
        Self(Cell::new(MAX_FIRST_WAIT))
    }
}

/// Files that cannot be used, as they were when they were read.
#[derive(Debug)]
pub(crate) struct UnusableFile<E> {
    pub(crate) error: E,
    pub(crate) files: ReadFiles,
}

/// Paths of files, and their states when they were read.
#[derive(Debug)]
pub(crate) struct ReadFiles {
    paths: Vec<PathBuf>,
    states: Vec<FileState>,
}

impl ReadFiles {
    /// `value` in place of the content of the files, which are read again when they change.
    pub(crate) fn in_place<T>(self, value: T, now: SystemTime) -> LastGood<T> {
        LastGood { paths: self.paths, states: self.states, ..LastGood::new(value, now) }
    }
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
pub(crate) enum ValueChange {
    /// The value in use stays for now, because a file is being written.
    Pending,
    /// A new value is in use.
    Replaced,
    /// The value in use stays.
    Same,
}

impl<T> LastGood<T> {
    /// A value that was not read from any file. [`LastGood::watch`] names its files later.
    pub(crate) fn new(value: T, now: SystemTime) -> Self {
        let loaded_at = unix_time::seconds(now);
        Self {
            value,
            loaded_at,
            paths: Vec::new(),
            states: Vec::new(),
            last_attempt: None,
            must_retry: false,
            is_retry: false,
            unsettled: None,
        }
    }

    /// Reads the files at `paths` for the first time. Waits for their writers for `max_wait` at
    /// most.
    ///
    /// # Errors
    /// Returns the last error of `read`, with the files as they were then.
    pub(crate) fn load<E: ReadError>(
        paths: Vec<PathBuf>,
        now: SystemTime,
        max_wait: &MaxWait,
        mut read: impl FnMut() -> Result<T, E>,
    ) -> Result<Self, UnusableFile<E>> {
        let (left, start) = (max_wait, Instant::now());
        let max_wait = left.0.get();
        let max_unsettled = MAX_UNSETTLED.min(max_wait);
        let mut is_logged = false;
        loop {
            let waited = start.elapsed();
            // Before the files are read, so that a change during the read is seen later.
            let states = states_of(&paths);
            let is_settled = are_settled(&states, SystemTime::now());
            if is_settled || waited >= max_unsettled {
                match read() {
                    Ok(value) if waited >= max_unsettled || states_of(&paths) == states => {
                        return Ok(Self { paths, states, ..Self::new(value, now) });
                    }
                    Err(error)
                        if waited >= max_wait
                            || is_settled
                                && error.failure() != Failure::BeingWritten
                                && states_of(&paths) == states =>
                    {
                        left.spend(start.elapsed());
                        return Err(UnusableFile { error, files: ReadFiles { paths, states } });
                    }
                    Ok(_) | Err(_) => {}
                }
            }
            if !is_logged && is_settled {
                let files: Vec<_> = paths.iter().map(|path| path.display().to_string()).collect();
                info!(files = files.join(" "), "waiting for the writer of a file");
                is_logged = true;
            }
            std::thread::sleep(FIRST_PAUSE);
        }
    }

    /// Reads from the files at `paths` from now on, beginning with their next change.
    pub(crate) fn watch(&mut self, paths: Vec<PathBuf>) {
        self.states = states_of(&paths);
        self.paths = paths;
    }

    /// Calls `read` with the value in use if a file has changed and all have settled, or if the
    /// last attempt could not read the files.
    ///
    /// The caller then calls [`LastGood::replace`], [`LastGood::record_unchanged`] or
    /// [`LastGood::record_rejection`].
    pub(crate) fn reread<R, E: ReadError>(
        &mut self,
        read_if: ReadIf,
        now: SystemTime,
        read: impl FnOnce(&T) -> Result<R, E>,
    ) -> Reread<Result<R, E>> {
        let states = states_of(&self.paths);
        let is_unchanged = states == self.states;
        if is_unchanged && read_if == ReadIf::Changed && !self.must_retry {
            self.unsettled = None;
            return Reread::Unchanged;
        }
        let is_settled = are_settled(&states, now);
        if !is_settled && !self.may_read_unsettled(&states, now) {
            return self.mark_pending(states, now);
        }
        let content = read(&self.value);
        let is_torn = content.as_ref().is_err_and(|it| it.failure() == Failure::BeingWritten);
        if is_torn && self.unsettled_for(now) < MAX_WRITING {
            return self.mark_pending(states, now);
        }
        // A file that changed during the read may have been read half old, half new.
        if is_settled && states_of(&self.paths) != states {
            return self.mark_pending(states, now);
        }
        if !is_torn {
            self.unsettled = None;
        }
        self.states = states;
        self.is_retry = is_unchanged;
        self.must_retry = false;
        Reread::Read(content)
    }

    /// Whether files in these `states` are read although they have not settled.
    fn may_read_unsettled(&self, states: &[FileState], now: SystemTime) -> bool {
        let Some(before) = &self.unsettled else { return false };
        let mut unsettled =
            states.iter().zip(&before.states).filter(|(state, _)| !state.is_settled(now));
        let waited = self.unsettled_for(now);
        waited >= MAX_WRITING
            || waited >= MAX_UNSETTLED && unsettled.all(|(state, before)| state.replaces(before))
    }

    fn unsettled_for(&self, now: SystemTime) -> Duration {
        let since = self.unsettled.as_ref().map_or(now, |unsettled| unsettled.since);
        now.duration_since(since).unwrap_or_default()
    }

    fn mark_pending<R>(&mut self, states: Vec<FileState>, now: SystemTime) -> Reread<R> {
        // A clock that was set back begins the wait again.
        let since = self.unsettled.as_ref().map_or(now, |unsettled| unsettled.since.min(now));
        self.unsettled = Some(Unsettled { since, states });
        Reread::Pending
    }

    /// Puts `value` in use.
    pub(crate) fn replace(&mut self, value: T, now: SystemTime) {
        self.value = value;
        self.record_loaded(now);
    }

    /// Records that the value in use was read from the files.
    pub(crate) fn record_loaded(&mut self, now: SystemTime) {
        self.loaded_at = unix_time::seconds(now);
        self.last_attempt = Some(ReloadReport::done(ReloadResult::Loaded, self.loaded_at));
    }

    /// Records that the files hold the value in use.
    pub(crate) fn record_unchanged(&mut self, now: SystemTime) {
        let now = unix_time::seconds(now);
        self.last_attempt = Some(ReloadReport::done(ReloadResult::Unchanged, now));
    }

    /// Records that the files cannot be used. Returns whether that is new: false if unchanged files
    /// failed again with the same error.
    pub(crate) fn record_rejection(
        &mut self,
        reason: Option<RejectionReason>,
        failure: Failure,
        text: &str,
        now: SystemTime,
    ) -> bool {
        self.must_retry = failure != Failure::Content;
        let is_same_attempt = self.is_retry || failure == Failure::BeingWritten;
        let last_error = self.last_attempt.as_ref().and_then(|last| last.error.as_ref());
        let is_new = !is_same_attempt || last_error.is_none_or(|last| last != text);
        let now = unix_time::seconds(now);
        self.last_attempt =
            Some(ReloadReport::rejected(reason.map(Label::as_str), text.to_owned(), now));
        is_new
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

    /// Why the last attempt to read failed. Empty if it did not, or if a file is being written.
    pub(crate) fn problem(&self) -> String {
        let last = self.last_attempt.as_ref().filter(|_| self.unsettled.is_none());
        last.and_then(|last| last.error.clone()).unwrap_or_default()
    }

    /// The result of the last attempt to read, the first one included.
    pub(crate) fn last_reload(&self) -> ReloadReport {
        let first = || ReloadReport::done(ReloadResult::Loaded, self.loaded_at);
        self.last_attempt.clone().unwrap_or_else(first)
    }
}

fn are_settled(states: &[FileState], now: SystemTime) -> bool {
    states.iter().all(|state| state.is_settled(now))
}

fn states_of(paths: &[PathBuf]) -> Vec<FileState> {
    paths.iter().map(|path| FileState::read(path)).collect()
}

#[cfg(test)]
mod tests;

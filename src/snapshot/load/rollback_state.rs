//! State that outlives a restart: for each filter, the newest one that was in use, its copy, and
//! the update that waits for the operator.
//!
//! One file holds all of it and is replaced atomically. The copy of a filter is complete before the
//! file names it, and is removed only after the file names another one. A crash at any point
//! therefore leaves a state whose parts belong together.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use data_encoding::HEXLOWER;
use serde::{Deserialize, Serialize};

use super::check::new_hits::MAX_NAMED;
use super::check::rollback::Watermark;
use super::error::LoadError;
use super::signed::LoadedFilter;
use super::{file, kept_filters, state_file};
use crate::guard::NamedFilter;
use crate::snapshot::report::WaitingReport;

/// Maximum length of a value in an error, in characters; the rest is cut.
const MAX_SHOWN: usize = 80;
/// Time after a copy could not be written until the next attempt, 60 s.
const RETRY_AFTER: Duration = Duration::from_secs(60);

/// The records of all filters, and the directory that keeps them.
#[derive(Debug, Default)]
pub(crate) struct RollbackState {
    /// `None` without a state directory. The records are then lost at a restart.
    directory: Option<PathBuf>,
    filters: BTreeMap<String, FilterRecord>,
    /// When a copy could not be written.
    failed_at: Option<Instant>,
}

/// The state of a filter.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct FilterRecord {
    /// Last change of the filter in use, in seconds since the Unix epoch.
    updated: u64,
    /// Revision of the filter in use.
    revision: u32,
    /// Number of entries of the filter in use.
    #[serde(default)]
    entries: u32,
    /// SHA-256 of the copy of the filter in use, in hex; `None` without a copy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    last_good: Option<String>,
    /// The signature of the filter in use; `None` if none was needed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    signature: Option<String>,
    /// The update that waits for the operator.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    waiting: Option<WaitingReport>,
}

/// The content of the state file.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct RollbackFile {
    filters: BTreeMap<String, FilterRecord>,
}

impl FilterRecord {
    /// The record of the filter `in_use`, while an update is `waiting`.
    pub(crate) fn new(in_use: &LoadedFilter, waiting: Option<WaitingReport>) -> Self {
        let LoadedFilter { named: in_use, signature } = in_use;
        let header = in_use.filter.header();
        Self {
            updated: header.updated_at,
            revision: header.revision,
            entries: header.entry_count,
            last_good: Some(HEXLOWER.encode(&in_use.sha256)),
            signature: signature.as_ref().map(|signature| signature.text().to_owned()),
            waiting,
        }
    }

    /// The watermark of the filter that was in use.
    pub(crate) fn watermark(&self) -> Watermark {
        Watermark { updated: self.updated, revision: self.revision }
    }

    /// Number of entries of the filter that was in use; 0 if there is no copy of it.
    pub(crate) fn entries(&self) -> u32 {
        if self.last_good.is_some() { self.entries } else { 0 }
    }

    /// SHA-256 of the copy, in hex.
    pub(crate) fn last_good(&self) -> Option<&str> {
        self.last_good.as_deref()
    }

    /// The signature of the copy, as it was beside the file.
    pub(crate) fn signature(&self) -> Option<&str> {
        self.signature.as_deref()
    }

    /// The update that waited.
    pub(crate) fn waiting(&self) -> Option<&WaitingReport> {
        self.waiting.as_ref()
    }

    /// Bounds what the file holds for the filter `name`, and checks the digest that becomes part of
    /// a path.
    fn checked(mut self, name: &str) -> io::Result<Self> {
        let is_digest = |text: &String| {
            text.len() == 64 && text.bytes().all(|it| matches!(it, b'0'..=b'9' | b'a'..=b'f'))
        };
        if let Some(found) = self.last_good.as_ref().filter(|text| !is_digest(text)) {
            let found: String = found.chars().take(MAX_SHOWN).collect();
            let problem =
                format!("filters.{name:?}.last_good: {found:?} is not a SHA-256 in lower-case hex");
            return Err(io::Error::new(io::ErrorKind::InvalidData, problem));
        }
        if let Some(waiting) = &mut self.waiting {
            waiting.clients.truncate(MAX_NAMED);
        }
        Ok(self)
    }
}

impl RollbackState {
    /// Reads the state file in `directory`; without a directory or a file, there are no records.
    ///
    /// # Errors
    /// Returns an error if the file exists and cannot be read or parsed. An empty state would allow
    /// the rollback that the file was written to prevent.
    pub(crate) fn read(directory: Option<&Path>) -> io::Result<Self> {
        let Some(directory) = directory else { return Ok(Self::default()) };
        let filters = file::read_with(&path_in(directory), read);
        let filters = state_file::or_default(filters)?;
        Ok(Self { directory: Some(directory.to_owned()), filters, failed_at: None })
    }

    /// The state directory, if there is one.
    pub(crate) fn directory(&self) -> Option<&Path> {
        self.directory.as_deref()
    }

    /// The record of the filter with this name.
    pub(crate) fn filter(&self, name: &str) -> Option<&FilterRecord> {
        self.filters.get(name)
    }

    /// Saves the records of the filters `in_use`, with a copy of each. Files are written only if
    /// they differ, for example because another process has changed them.
    ///
    /// The watermarks of filters that are no longer configured are kept, and their copies removed.
    /// Without `may_write`, the records stay in memory.
    ///
    /// # Errors
    /// Returns an error if the state file or a copy cannot be written. Without a copy, the
    /// watermark is saved nevertheless.
    pub(crate) fn save(
        &mut self,
        in_use: impl Iterator<Item = (FilterRecord, Arc<NamedFilter>)>,
        may_write: bool,
    ) -> Result<(), LoadError> {
        let in_use: Vec<_> = in_use.collect();
        let mut next = self.filters.clone();
        for record in next.values_mut() {
            (record.last_good, record.signature, record.waiting) = (None, None, None);
        }
        let Some(directory) = self.directory.clone().filter(|_| may_write) else {
            next.extend(in_use.into_iter().map(|(record, it)| (it.name.to_string(), record)));
            self.filters = next;
            return Ok(());
        };
        let path = path_in(&directory);
        let sizes = in_use.iter().map(|(_, it)| it.filter.header().data_size());
        let failed_at = self.failed_at.filter(|failed| failed.elapsed() < RETRY_AFTER);
        let mut update = StateUpdate { directory, next, failed_at };
        // One call for all files, so that a call that hangs is never followed by another one.
        let saved = file::write_with(&path, sizes.fold(0, u64::saturating_add), move || {
            let kept = update.keep_all(in_use);
            let written = update.write();
            Ok((update, kept, written))
        });
        let failed = |source| LoadError::State { path: path.clone(), source };
        let (update, kept, written) = saved.map_err(failed)?;
        self.failed_at = update.failed_at;
        written.map_err(failed)?;
        self.filters = update.next;
        kept
    }
}

/// The next content of the state directory.
struct StateUpdate {
    directory: PathBuf,
    next: BTreeMap<String, FilterRecord>,
    /// When a copy could not be written. No other copy is tried then.
    failed_at: Option<Instant>,
}

impl StateUpdate {
    /// Writes the copies of the filters `in_use`, and adds their records.
    fn keep_all(&mut self, in_use: Vec<(FilterRecord, Arc<NamedFilter>)>) -> Result<(), LoadError> {
        let mut kept = Ok(());
        for (mut record, filter) in in_use {
            if let Err(error) = self.keep(&filter, &record) {
                (record.last_good, record.signature) = (None, None);
                kept = error.map_or(kept, Err);
            }
            self.next.insert(filter.name.to_string(), record);
        }
        kept
    }

    /// Writes the copy of a filter unless there is one. The error is `None` if an attempt failed
    /// less than [`RETRY_AFTER`] ago.
    fn keep(
        &mut self,
        filter: &NamedFilter,
        record: &FilterRecord,
    ) -> Result<(), Option<LoadError>> {
        let Some(sha256) = record.last_good() else { return Ok(()) };
        if self.failed_at.is_some() {
            return Err(None);
        }
        kept_filters::keep(&self.directory, filter, sha256).map_err(|source| {
            self.failed_at = Some(Instant::now());
            let path = kept_filters::path_in(&self.directory, sha256);
            Some(LoadError::LastGood { name: filter.name.to_string(), path, source })
        })
    }

    /// Writes the state file if it differs, and then removes the copies that it does not name.
    fn write(&self) -> io::Result<()> {
        let path = path_in(&self.directory);
        let is_same = path.exists() && read(&path).is_ok_and(|found| found == self.next);
        if is_same {
            return Ok(());
        }
        state_file::write(&path, &RollbackFile { filters: self.next.clone() })?;
        let copies = self.next.values().filter_map(|record| record.last_good.clone());
        kept_filters::remove_others(&self.directory, &copies.collect())
    }
}

/// Path of the state file in `directory`.
pub(crate) fn path_in(directory: &Path) -> PathBuf {
    directory.join("filters.json")
}

fn read(path: &Path) -> io::Result<BTreeMap<String, FilterRecord>> {
    let content: RollbackFile = state_file::or_default(state_file::read(path))?;
    let records = content.filters.into_iter();
    let checked = records.map(|(name, record)| {
        let record = record.checked(&name)?;
        Ok((name, record))
    });
    checked.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pkbf::{Filter, Parameters};

    fn in_use(name: &str, updated: u64, revision: u32) -> (FilterRecord, Arc<NamedFilter>) {
        let mut filter = Filter::new(Parameters::new(3, 12).unwrap()).unwrap();
        filter.insert(name.as_bytes());
        filter.stamp_as(revision, updated);
        let sha256 = filter.sha256();
        let named = NamedFilter { name: name.into(), filter, sha256 };
        let named = Arc::new(named);
        let loaded = LoadedFilter { named: Arc::clone(&named), signature: None };
        (FilterRecord::new(&loaded, None), named)
    }

    fn save(state: &mut RollbackState, filters: &[(FilterRecord, Arc<NamedFilter>)]) {
        state.save(filters.iter().cloned(), true).unwrap();
    }

    fn files(directory: &Path) -> Vec<String> {
        let files = std::fs::read_dir(directory).unwrap();
        let mut files: Vec<_> =
            files.map(|it| it.unwrap().file_name().into_string().unwrap()).collect();
        files.sort();
        files
    }

    #[test]
    fn records_outlive_the_process_and_only_filters_in_use_have_a_copy() {
        let directory = tempfile::tempdir().unwrap();
        let mut first = RollbackState::read(Some(directory.path())).unwrap();
        assert_eq!(first.filter("lost"), None);
        save(&mut first, &[in_use("lost", 5, 1)]);
        let copy = in_use("other", 6, 2);
        save(&mut first, std::slice::from_ref(&copy));

        let second = RollbackState::read(Some(directory.path())).unwrap();
        assert_eq!(second.filter("other"), Some(&copy.0));
        let lost = second.filter("lost").unwrap();
        assert_eq!(lost.watermark(), Watermark { updated: 5, revision: 1 });
        assert_eq!((lost.last_good(), lost.entries()), (None, 0));
        let name = format!("last-good-{}.pkbf", copy.0.last_good().unwrap());
        assert_eq!(files(directory.path()), ["filters.json".to_owned(), name]);
    }

    #[test]
    fn without_a_directory_records_last_as_long_as_the_process() {
        let mut state = RollbackState::read(None).unwrap();
        save(&mut state, &[in_use("lost", 5, 1)]);
        let watermark = Watermark { updated: 5, revision: 1 };
        assert_eq!(state.filter("lost").unwrap().watermark(), watermark);
    }

    #[test]
    fn a_copy_that_cannot_be_written_leaves_the_watermark_and_names_no_copy() {
        let directory = tempfile::tempdir().unwrap();
        let mut state = RollbackState::read(Some(directory.path())).unwrap();
        let filter = in_use("lost", 5, 1);
        let copy = kept_filters::path_in(directory.path(), filter.0.last_good().unwrap());
        std::fs::create_dir_all(copy.join("in the way")).unwrap();
        let error = state.save([filter].into_iter(), true).unwrap_err();
        assert!(matches!(error, LoadError::LastGood { .. }), "{error}");
        let state = RollbackState::read(Some(directory.path())).unwrap();
        assert_eq!(state.filter("lost").unwrap().last_good(), None);
        assert_eq!(state.filter("lost").unwrap().watermark().updated, 5);
    }

    #[test]
    fn a_broken_state_file_is_an_error_and_not_an_empty_state() {
        let directory = tempfile::tempdir().unwrap();
        let path = path_in(directory.path());
        for (text, problem) in [
            ("", "the JSON ends too early"),
            ("{\n}", "filters: the member is missing (line 2, column 1)"),
            (
                "{\"filters\":{\"lost\":{\"updated\":-1,\"revision\":0}}}",
                "filters.lost.updated: -1 is not a whole number, 0 or more (line 1,",
            ),
            (
                "{\"filters\":{\"lost\":{\"updated\":1,\"revision\":0,\"keys\":7}}}",
                "filters.lost.keys: the member is unknown; the members here are updated, revision,",
            ),
            (
                "{\"filters\":{\"lost\":{\"updated\":1,\"revision\":0,\"last_good\":\"../x\"}}}",
                "filters.\"lost\".last_good: \"../x\" is not a SHA-256 in lower-case hex",
            ),
        ] {
            std::fs::write(&path, text).unwrap();
            let source = RollbackState::read(Some(directory.path())).unwrap_err();
            let error = LoadError::State { path: path.clone(), source }.to_string();
            assert!(error.starts_with(&format!("state {}: {problem}", path.display())), "{error}");
            let remedy =
                "; restore the file from a backup, or remove it to accept older filters or CRLs";
            assert!(error.ends_with(remedy), "{error}");
        }
        let old = "{\"filters\":{\"lost\":{\"updated\":1,\"revision\":2}}}";
        std::fs::write(path_in(directory.path()), old).unwrap();
        let state = RollbackState::read(Some(directory.path())).unwrap();
        assert_eq!(state.filter("lost").unwrap().watermark().revision, 2);
    }
}

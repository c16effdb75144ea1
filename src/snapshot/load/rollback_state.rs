//! State that outlives a restart: for each filter and list a record of what was in use, copies of
//! the filters, and the updates that wait for the operator.
//!
//! One file holds all of it and is replaced atomically. The copy of a filter is complete before the
//! file names it, and is removed only after the file names another one. A crash at any point
//! therefore leaves a state whose parts belong together.

use std::collections::{BTreeMap, HashSet};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use keygate_core::guard::NamedFilter;
use serde::{Deserialize, Serialize};

use super::check::dry_run::MAX_NAMED;
use super::error::LoadError;
use super::file_record::{self, FileRecord, REMEMBERED_DAYS};
use super::{file, saved_filters, state_file};
use crate::snapshot::operator_decision::GuardFile;
use crate::snapshot::report::WaitingReport;

/// Time after a copy could not be written until the next attempt, 60 s.
const RETRY_AFTER: Duration = Duration::from_secs(60);

/// The records of all filters and lists, and the directory that keeps them.
#[derive(Debug, Default)]
pub(crate) struct RollbackState {
    /// `None` without a state directory. The records are then lost at a restart.
    directory: Option<PathBuf>,
    records: FileRecords,
    /// When a copy could not be written.
    failed_at: Option<Instant>,
    /// SHA-256 of the copies that this process has written or compared, in hex.
    known_copies: HashSet<String>,
}

/// The content of the state file: records by name.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct FileRecords {
    filters: BTreeMap<String, FileRecord>,
    /// The lists that were in use within the last seven days.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    lists: BTreeMap<String, FileRecord>,
    /// The updates of CAs and CRLs that wait, by the name of the service or authorizer.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    waiting: BTreeMap<String, WaitingFiles>,
}

/// The updates of the CAs and CRLs of a service that wait, or waited when it was removed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct WaitingFiles {
    /// The last day on which the service was configured, since the Unix epoch. The updates of a removed
    /// service are kept for seven days.
    day: u64,
    updates: Vec<WaitingReport>,
}

impl RollbackState {
    /// Reads the state file in `directory`; without a directory or a file, there are no records.
    ///
    /// # Errors
    /// Returns an error if the file exists and cannot be read or parsed. An empty state would allow
    /// the rollback that the file was written to prevent.
    pub(crate) fn read(directory: Option<&Path>) -> io::Result<Self> {
        let Some(directory) = directory else { return Ok(Self::default()) };
        let records = state_file::or_default(file::read_with(&path_in(directory), read))?;
        Ok(Self { directory: Some(directory.to_owned()), records, ..Self::default() })
    }

    /// The state directory, if there is one.
    pub(crate) fn directory(&self) -> Option<&Path> {
        self.directory.as_deref()
    }

    /// The record of the file that is configured with this name and path, and the name of the
    /// record. A file that was in use under this path is the same one, whatever its name.
    pub(crate) fn find(
        &self,
        file: GuardFile,
        name: &str,
        path: &Path,
    ) -> Option<(&str, &FileRecord)> {
        let (records, path) = (self.records.of(file), path.display().to_string());
        let of_path = records.iter().filter(|(_, record)| record.is_of(&path));
        let of_path = of_path.max_by_key(|(_, it)| (it.was_in_use(), it.watermark()));
        let in_use = of_path.filter(|(_, record)| record.was_in_use());
        let found = in_use.or_else(|| records.get_key_value(name)).or(of_path);
        found.map(|(name, record)| (name.as_str(), record))
    }

    /// The update with this SHA-256, in hex, if it waited under any name.
    pub(crate) fn waiting(&self, file: GuardFile, sha256: &str) -> Option<&WaitingReport> {
        let mut waiting =
            self.records.of(file).values().filter_map(|record| record.waiting.as_ref());
        waiting.find(|waiting| waiting.sha256 == sha256)
    }

    /// The updates that waited for the service with this name, and for services that are not among
    /// the `configured` ones, because one of them may be this service under its previous name.
    pub(crate) fn waiting_files(
        &self,
        service: &str,
        configured: &[&str],
    ) -> impl Iterator<Item = &WaitingReport> {
        let waiting = self.records.waiting.iter();
        let own = waiting.filter(move |(name, _)| {
            name.as_str() == service || !configured.contains(&name.as_str())
        });
        own.flat_map(|(_, waiting)| &waiting.updates)
    }

    /// Saves the records of the filters and lists `in_use` and the updates that are `waiting` for each
    /// service, with a copy of each filter. Files are written only if they differ, for example because another process has changed
    /// them.
    ///
    /// The watermarks of filters that are no longer configured are kept, and their copies removed.
    /// What a file had in use is kept for seven days.
    /// Without `may_write`, the records stay in memory.
    ///
    /// # Errors
    /// Returns an error if the state file or a copy cannot be written. Without a copy, the
    /// watermark is saved nevertheless.
    pub(crate) fn save(
        &mut self,
        in_use: impl Iterator<Item = (FileRecord, Arc<NamedFilter>)>,
        lists: BTreeMap<String, FileRecord>,
        waiting: BTreeMap<String, Vec<WaitingReport>>,
        may_write: bool,
    ) -> Result<(), LoadError> {
        let in_use: Vec<_> = in_use.collect();
        let now = SystemTime::now();
        let waiting = self.records.waiting_next(waiting, file_record::today(now));
        let mut next = FileRecords { filters: self.records.filters.clone(), lists, waiting };
        next.filters.values_mut().for_each(|record| _ = record.retire(now));
        let removed = self.records.lists.iter().filter(|(name, _)| !next.lists.contains_key(*name));
        let mut removed: BTreeMap<_, _> =
            removed.map(|(name, record)| (name.clone(), record.clone())).collect();
        removed.retain(|_, record| record.retire(now));
        next.lists.extend(removed);
        let Some(directory) = self.directory.clone().filter(|_| may_write) else {
            let in_use = in_use.into_iter().map(|(record, it)| (it.name.to_string(), record));
            next.filters.extend(in_use);
            self.records = next;
            return Ok(());
        };
        let path = path_in(&directory);
        let sizes = in_use.iter().map(|(_, it)| it.filter.header().data_size());
        let failed_at = self.failed_at.filter(|failed| failed.elapsed() < RETRY_AFTER);
        let known_copies = std::mem::take(&mut self.known_copies);
        let mut update = StateUpdate { directory, next, failed_at, known_copies };
        // One call for all files, so that a call that hangs is never followed by another one.
        let saved = file::write_with(&path, sizes.fold(0, u64::saturating_add), move || {
            let kept = update.keep_all(in_use);
            let written = update.write();
            Ok((update, kept, written))
        });
        let failed = |source| LoadError::State { path: path.clone(), source };
        let (update, kept, written) = saved.map_err(failed)?;
        (self.failed_at, self.known_copies) = (update.failed_at, update.known_copies);
        written.map_err(failed)?;
        self.records = update.next;
        kept
    }
}

/// The next content of the state directory.
struct StateUpdate {
    directory: PathBuf,
    next: FileRecords,
    /// When a copy could not be written. No other copy is tried then.
    failed_at: Option<Instant>,
    /// The copies that need no comparison.
    known_copies: HashSet<String>,
}

impl StateUpdate {
    /// Writes the copies of the filters `in_use`, and adds their records.
    fn keep_all(&mut self, in_use: Vec<(FileRecord, Arc<NamedFilter>)>) -> Result<(), LoadError> {
        let mut kept = Ok(());
        for (mut record, filter) in in_use {
            if let Err(error) = self.keep(&filter, &record) {
                record.forget_copy();
                kept = error.map_or(kept, Err);
            }
            self.next.filters.insert(filter.name.to_string(), record);
        }
        kept
    }

    /// Writes the copy of a filter unless there is one. The error is `None` if an attempt failed
    /// less than [`RETRY_AFTER`] ago.
    fn keep(&mut self, filter: &NamedFilter, record: &FileRecord) -> Result<(), Option<LoadError>> {
        let Some(sha256) = record.last_good.as_deref() else { return Ok(()) };
        if self.failed_at.is_some() {
            return Err(None);
        }
        let is_known = self.known_copies.contains(sha256);
        let kept = saved_filters::keep(&self.directory, filter, sha256, is_known);
        if kept.is_ok() && !is_known {
            self.known_copies.insert(sha256.to_owned());
        }
        kept.map_err(|source| {
            self.failed_at = Some(Instant::now());
            let path = saved_filters::path_in(&self.directory, sha256);
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
        state_file::write(&path, &self.next)?;
        let copies = self.next.filters.values().filter_map(|it| it.last_good.clone());
        saved_filters::remove_others(&self.directory, &copies.collect())
    }
}

/// Path of the state file in `directory`.
pub(crate) fn path_in(directory: &Path) -> PathBuf {
    directory.join("filters.json")
}

fn read(path: &Path) -> io::Result<FileRecords> {
    let FileRecords { filters, lists, mut waiting } =
        state_file::or_default(state_file::read(path))?;
    let updates = waiting.values_mut().flat_map(|it| &mut it.updates);
    updates.for_each(|it| it.clients.truncate(MAX_NAMED));
    Ok(FileRecords { filters: checked(filters)?, lists: checked(lists)?, waiting })
}

fn checked(records: BTreeMap<String, FileRecord>) -> io::Result<BTreeMap<String, FileRecord>> {
    let checked = records.into_iter().map(|(name, record)| {
        let record = record.checked(&name)?;
        Ok((name, record))
    });
    checked.collect()
}

impl FileRecords {
    fn of(&self, file: GuardFile) -> &BTreeMap<String, FileRecord> {
        if file == GuardFile::Filter { &self.filters } else { &self.lists }
    }

    /// The updates that are `waiting` for each configured service, and for removed ones, of which a
    /// service under another name does not have the same.
    fn waiting_next(
        &self,
        waiting: BTreeMap<String, Vec<WaitingReport>>,
        day: u64,
    ) -> BTreeMap<String, WaitingFiles> {
        let mut next = self.waiting.clone();
        next.retain(|name, removed| {
            removed.updates.retain(|update| !waiting.values().flatten().any(|it| it == update));
            let is_recent = removed.day.abs_diff(day) < REMEMBERED_DAYS;
            !waiting.contains_key(name) && is_recent && !removed.updates.is_empty()
        });
        let waiting = waiting.into_iter().filter(|(_, updates)| !updates.is_empty());
        next.extend(waiting.map(|(name, updates)| (name, WaitingFiles { day, updates })));
        next
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::snapshot::load::check::rollback::Watermark;
    use crate::snapshot::load::signed::LoadedFilter;
    use crate::snapshot::load::source::gate::Gate;
    use keygate_core::pkbf::{Filter, Parameters};

    fn in_use(name: &str, updated: u64, revision: u32) -> (FileRecord, Arc<NamedFilter>) {
        let mut filter = Filter::new(Parameters::new(3, 12).unwrap()).unwrap();
        filter.insert(name.as_bytes());
        filter.stamp_as(revision, updated);
        let sha256 = filter.sha256();
        let named = NamedFilter { name: name.into(), filter, sha256 };
        let named = Arc::new(named);
        let loaded = LoadedFilter { named: Arc::clone(&named), signature: None };
        let gate = Gate::new(GuardFile::Filter, name, None);
        let record = FileRecord::new(Path::new(name), 1, &gate);
        (record.of_filter(&loaded), named)
    }

    fn record<'a>(state: &'a RollbackState, name: &str) -> Option<&'a FileRecord> {
        state.records.filters.get(name)
    }

    fn save(state: &mut RollbackState, filters: &[(FileRecord, Arc<NamedFilter>)]) {
        state.save(filters.iter().cloned(), BTreeMap::new(), BTreeMap::new(), true).unwrap();
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
        assert_eq!(record(&first, "lost"), None);
        save(&mut first, &[in_use("lost", 5, 1)]);
        let copy = in_use("other", 6, 2);
        save(&mut first, std::slice::from_ref(&copy));

        let second = RollbackState::read(Some(directory.path())).unwrap();
        assert_eq!(record(&second, "other"), Some(&copy.0));
        let lost = record(&second, "lost").unwrap();
        assert_eq!(lost.watermark(), Watermark { updated: 5, revision: 1 });
        assert_eq!((&lost.last_good, lost.entries), (&None, 0));
        let name = format!("last-good-{}.pkbf", copy.0.last_good.as_deref().unwrap());
        assert_eq!(files(directory.path()), ["filters.json".to_owned(), name]);
    }

    #[test]
    fn without_a_directory_records_last_as_long_as_the_process() {
        let mut state = RollbackState::read(None).unwrap();
        save(&mut state, &[in_use("lost", 5, 1)]);
        let watermark = Watermark { updated: 5, revision: 1 };
        assert_eq!(record(&state, "lost").unwrap().watermark(), watermark);
    }

    #[test]
    fn a_copy_that_cannot_be_written_leaves_the_watermark_and_names_no_copy() {
        let directory = tempfile::tempdir().unwrap();
        let mut state = RollbackState::read(Some(directory.path())).unwrap();
        let filter = in_use("lost", 5, 1);
        let copy = saved_filters::path_in(directory.path(), filter.0.last_good.as_deref().unwrap());
        std::fs::create_dir_all(copy.join("in the way")).unwrap();
        let error =
            state.save([filter].into_iter(), BTreeMap::new(), BTreeMap::new(), true).unwrap_err();
        assert!(matches!(error, LoadError::LastGood { .. }), "{error}");
        let state = RollbackState::read(Some(directory.path())).unwrap();
        assert_eq!(record(&state, "lost").unwrap().last_good, None);
        assert_eq!(record(&state, "lost").unwrap().watermark().updated, 5);
    }

    #[test]
    fn a_broken_state_file_is_an_error_and_not_an_empty_state() {
        let directory = tempfile::tempdir().unwrap();
        let path = path_in(directory.path());
        for (text, problem) in [
            ("", "not JSON: EOF while parsing a value"),
            ("{\n}", "missing field `filters` at line 2 column 1"),
            (
                "{\"filters\":{\"lost\":{\"updated\":-1,\"revision\":0}}}",
                "filters.lost.updated: invalid value: integer `-1`, expected u64 at line 1 ",
            ),
            (
                "{\"filters\":{\"lost\":{\"updated\":1,\"revision\":0,\"keys\":7}}}",
                "filters.lost.keys: unknown field `keys`, expected one of `updated`, `revision`,",
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
        assert_eq!(record(&state, "lost").unwrap().watermark().revision, 2);
    }

    #[test]
    fn the_clients_of_an_update_that_waits_are_bounded() {
        let directory = tempfile::tempdir().unwrap();
        let client = json!({ "service": "s", "fingerprint": "00", "subject": "CN=s" });
        let waiting = json!({
            "sha256": "00", "entries": 0, "new_hits": 99, "max_new_hits": 1, "clients": vec![client; 99]
        });
        let waiting = json!({ "day": 1, "updates": [waiting] });
        let state = json!({ "filters": {}, "waiting": { "s": waiting } });
        std::fs::write(path_in(directory.path()), state.to_string()).unwrap();
        let state = RollbackState::read(Some(directory.path())).unwrap();
        let report = state.waiting_files("s", &["s"]).next().unwrap();
        assert_eq!(report.clients.len(), MAX_NAMED);
    }
}

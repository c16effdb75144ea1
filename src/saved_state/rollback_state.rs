//! State that outlives a restart: for each filter and list a record of what was in use and a copy,
//! and the updates that wait for the operator.
//!
//! One file holds all of it and is replaced atomically. A copy is complete before the file names it,
//! and is removed only after the file names another one. A crash at any point
//! therefore leaves a state whose parts belong together.

use std::collections::{BTreeMap, HashSet};
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

use super::StateError;
use super::copies::{self, Original};
use super::file_record::{self, FileRecord};
use super::file_records::{FileRecords, path_in, read};
use super::{GuardFile, WaitingReport, state_file};
use crate::files;

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
    /// Ids of the copies that this process has written or compared.
    known_copies: HashSet<String>,
}

/// A filter or list in use.
pub(crate) struct FileInUse {
    pub(crate) file: GuardFile,
    pub(crate) name: String,
    pub(crate) record: FileRecord,
    pub(crate) original: Original,
}

impl RollbackState {
    /// Reads the state file in `directory`; without a directory or a file, there are no records.
    ///
    /// # Errors
    /// Returns an error if the file exists and cannot be read or parsed. An empty state would allow
    /// the rollback that the file was written to prevent.
    pub(crate) fn read(directory: Option<&Path>) -> Result<Self, StateError> {
        let Some(directory) = directory else { return Ok(Self::default()) };
        let path = path_in(directory);
        let records = state_file::or_default(files::read_with(&path, read))
            .map_err(|source| StateError::File { path: path.clone(), source })?;
        Ok(Self { directory: Some(directory.to_owned()), records, ..Self::default() })
    }

    /// The state directory, if there is one.
    pub(crate) fn directory(&self) -> Option<&Path> {
        self.directory.as_deref()
    }

    /// Whether the copy with this id was written, or no copies are written.
    pub(crate) fn is_kept(&self, id: &str) -> bool {
        self.directory.is_none() || self.known_copies.contains(id)
    }

    /// The record of the file that is configured with this name and path. A file that was in use
    /// under this path is the same one, whatever its name.
    pub(crate) fn find(&self, file: GuardFile, name: &str, path: &Path) -> Option<&FileRecord> {
        let (records, path) = (self.records.of(file), path.display().to_string());
        let of_path = records.values().filter(|record| record.is_of(&path));
        let of_path = of_path.max_by_key(|it| (it.was_in_use(), it.watermark()));
        let in_use = of_path.filter(|record| record.was_in_use());
        in_use.or_else(|| records.get(name)).or(of_path)
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

    /// The names of removed services for which an update waited.
    pub(crate) fn removed_services(&self, configured: &[&str]) -> Vec<&str> {
        let names = self.records.waiting.keys().map(String::as_str);
        names.filter(|name| !configured.contains(name)).collect()
    }

    /// Saves the records of the filters and lists `in_use` and the updates that are `waiting` for each
    /// service, with a copy of each filter and list. Files are written only if they differ, for example
    /// because another process has changed them.
    ///
    /// The watermarks of filters that are no longer configured are kept, and their copies removed.
    /// The state of a file that was in use is kept for seven days.
    /// Without `may_write`, the records stay in memory.
    ///
    /// # Errors
    /// Returns an error if the state file or a copy cannot be written. Without a copy, the
    /// watermark is saved nevertheless.
    pub(crate) fn save(
        &mut self,
        in_use: Vec<FileInUse>,
        waiting: BTreeMap<String, Vec<WaitingReport>>,
        may_write: bool,
    ) -> Result<(), StateError> {
        let now = SystemTime::now();
        let waiting = self.records.waiting_next(waiting, file_record::today(now));
        let mut next = FileRecords { waiting, ..self.records.clone() };
        next.filters.values_mut().for_each(|record| _ = record.retire(now));
        next.lists.retain(|_, record| record.retire(now));
        let Some(directory) = self.directory.clone().filter(|_| may_write) else {
            for FileInUse { file, name, record, .. } in in_use {
                next.of_mut(file).insert(name, record);
            }
            self.records = next;
            return Ok(());
        };
        let path = path_in(&directory);
        let sizes = in_use.iter().map(|it| it.original.size());
        let failed_at = self.failed_at.filter(|failed| failed.elapsed() < RETRY_AFTER);
        let known_copies = std::mem::take(&mut self.known_copies);
        let kept = HashSet::new();
        let mut update = StateUpdate { directory, next, failed_at, known_copies, kept };
        // One call for all files, so that a call that hangs is never followed by another one.
        let saved = files::write_with(&path, sizes.fold(0, u64::saturating_add), move || {
            let copied = update.keep_all(in_use);
            let written = update.write();
            Ok((update, copied, written))
        });
        let failed = |source| StateError::File { path: path.clone(), source };
        let (update, copied, written) = saved.map_err(failed)?;
        (self.failed_at, self.known_copies) = (update.failed_at, update.known_copies);
        written.map_err(failed)?;
        self.records = update.next;
        copied
    }
}

/// The next content of the state directory.
struct StateUpdate {
    directory: PathBuf,
    next: FileRecords,
    /// When a copy could not be written. No other copy is written then.
    failed_at: Option<Instant>,
    /// The copies that need no comparison.
    known_copies: HashSet<String>,
    /// The files of all copies of what is in use.
    kept: HashSet<PathBuf>,
}

impl StateUpdate {
    /// Writes the copies of the files `in_use`, and adds their records.
    fn keep_all(&mut self, in_use: Vec<FileInUse>) -> Result<(), StateError> {
        let mut copied = Ok(());
        for FileInUse { file, name, mut record, original } in in_use {
            if let Err(error) = self.keep(file, &name, &original) {
                record.last_good = None;
                copied = error.map_or(copied, Err);
            }
            self.next.of_mut(file).insert(name, record);
        }
        copied
    }

    /// Writes the copy of a file unless there is one. The error is `None` if an attempt failed less
    /// than [`RETRY_AFTER`] ago.
    fn keep(
        &mut self,
        file: GuardFile,
        name: &str,
        original: &Original,
    ) -> Result<(), Option<StateError>> {
        let id = original.id();
        let is_known = self.known_copies.contains(&id);
        if self.failed_at.is_some() && !is_known {
            return Err(None);
        }
        let kept = original.keep(&self.directory, is_known, &mut self.kept);
        kept.map_err(|source| {
            self.failed_at = Some(Instant::now());
            let (name, path) = (name.to_owned(), original.path_in(&self.directory));
            Some(StateError::Copy { file, name, path, source })
        })?;
        self.known_copies.insert(id);
        Ok(())
    }

    /// Writes the state file if it differs, and then removes the copies that it does not name.
    fn write(&self) -> io::Result<()> {
        let path = path_in(&self.directory);
        let is_same = path.exists() && read(&path).is_ok_and(|found| found == self.next);
        if !is_same {
            state_file::write(&path, &self.next)?;
        }
        copies::remove_others(&self.directory, &self.kept)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::saved_state::copies::{Content, CopyKind};
    use crate::saved_state::{MAX_NAMED, Watermark};
    use keygate_core::guard::NamedFilter;
    use keygate_core::pkbf::{Filter, Parameters};
    use std::sync::Arc;

    fn in_use(name: &str, updated: u64, revision: u32) -> FileInUse {
        let mut filter = Filter::new(Parameters::new(3, 12).unwrap()).unwrap();
        filter.insert(name.as_bytes());
        filter.stamp_as(revision, updated);
        let (sha256, header) = (filter.sha256(), *filter.header());
        let content = Content::Filter(Arc::new(NamedFilter { name: name.into(), filter, sha256 }));
        let original = Original { content, sha256, signature: None, metadata: None };
        let record = FileRecord {
            updated: header.updated_at,
            revision: header.revision,
            entries: 1,
            path: Some(name.to_owned()),
            last_good: Some(original.id()),
            ..FileRecord::default()
        };
        FileInUse { file: GuardFile::Filter, name: name.to_owned(), record, original }
    }

    fn record<'a>(state: &'a RollbackState, name: &str) -> Option<&'a FileRecord> {
        state.records.filters.get(name)
    }

    fn save(state: &mut RollbackState, in_use: Vec<FileInUse>) {
        state.save(in_use, BTreeMap::new(), true).unwrap();
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
        save(&mut first, vec![in_use("lost", 5, 1)]);
        let other = in_use("other", 6, 2);
        let copy = other.record.clone();
        save(&mut first, vec![other]);

        let second = RollbackState::read(Some(directory.path())).unwrap();
        assert_eq!(record(&second, "other"), Some(&copy));
        let lost = record(&second, "lost").unwrap();
        assert_eq!(lost.watermark(), Watermark { updated: 5, revision: 1 });
        assert_eq!((&lost.last_good, lost.entries), (&None, 0));
        let name = format!("last-good-{}.pkbf", copy.last_good.as_deref().unwrap());
        assert_eq!(files(directory.path()), ["filters.json".to_owned(), name]);
    }

    #[test]
    fn without_a_directory_records_last_as_long_as_the_process() {
        let mut state = RollbackState::read(None).unwrap();
        save(&mut state, vec![in_use("lost", 5, 1)]);
        let watermark = Watermark { updated: 5, revision: 1 };
        assert_eq!(record(&state, "lost").unwrap().watermark(), watermark);
    }

    #[test]
    fn a_copy_that_cannot_be_written_leaves_the_watermark_and_names_no_copy() {
        let directory = tempfile::tempdir().unwrap();
        let mut state = RollbackState::read(Some(directory.path())).unwrap();
        let filter = in_use("lost", 5, 1);
        let id = filter.record.last_good.as_deref().unwrap();
        let copy = CopyKind::Filter.path_in(directory.path(), id);
        std::fs::create_dir_all(copy.join("in the way")).unwrap();
        let error = state.save(vec![filter], BTreeMap::new(), true).unwrap_err();
        assert!(matches!(error, StateError::Copy { .. }), "{error}");
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
                // An earlier format, which has the signature of the copy here.
                "{\"filters\":{\"lost\":{\"updated\":1,\"revision\":0,\"signature\":\"\"}}}",
                "filters.lost.signature: unknown field `signature`, expected one of `updated`,",
            ),
            (
                // An earlier format, which has no service.
                "{\"filters\":{},\"waiting\":{\"/ca.pem\":{\"sha256\":\"00\"}}}",
                "waiting./ca.pem.sha256: unknown field `sha256`, expected `day` or `updates` at line ",
            ),
            (
                "{\"filters\":{\"lost\":{\"updated\":1,\"revision\":0,\"last_good\":\"../x\"}}}",
                "filters.\"lost\".last_good: \"../x\" is not a SHA-256 in lower-case hex",
            ),
        ] {
            std::fs::write(&path, text).unwrap();
            let error = RollbackState::read(Some(directory.path())).unwrap_err().to_string();
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

//! The content of the state file: the records of filters and lists, and the updates that wait.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::file_record::{FileRecord, REMEMBERED_DAYS};
use super::state_file;
use super::{GuardFile, MAX_NAMED, WaitingReport};

/// The content of the state file: records by name.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct FileRecords {
    pub(super) filters: BTreeMap<String, FileRecord>,
    /// The lists that were in use within the last seven days.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(super) lists: BTreeMap<String, FileRecord>,
    /// The updates of CAs and CRLs that wait, by the name of the service or authorizer.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(super) waiting: BTreeMap<String, WaitingFiles>,
}

/// The updates of the CAs and CRLs of a service that wait, or waited when it was removed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct WaitingFiles {
    /// The last day on which the service was configured, since the Unix epoch. The updates of a removed
    /// service are kept for seven days.
    day: u64,
    pub(super) updates: Vec<WaitingReport>,
}

/// Path of the state file in `directory`.
pub(super) fn path_in(directory: &Path) -> PathBuf {
    directory.join("filters.json")
}

pub(super) fn read(path: &Path) -> io::Result<FileRecords> {
    let FileRecords { filters, lists, mut waiting } = state_file::read(path)?;
    let updates = waiting.values_mut().flat_map(|it| &mut it.updates);
    updates.for_each(|it| it.clients.truncate(MAX_NAMED));
    Ok(FileRecords {
        filters: checked("filters", filters)?,
        lists: checked("lists", lists)?,
        waiting,
    })
}

fn checked(
    table: &str,
    records: BTreeMap<String, FileRecord>,
) -> io::Result<BTreeMap<String, FileRecord>> {
    let checked = records.into_iter().map(|(name, record)| {
        let record = record.checked(table, &name)?;
        Ok((name, record))
    });
    checked.collect()
}

impl FileRecords {
    pub(super) fn of(&self, file: GuardFile) -> &BTreeMap<String, FileRecord> {
        if file == GuardFile::Filter { &self.filters } else { &self.lists }
    }

    pub(super) fn of_mut(&mut self, file: GuardFile) -> &mut BTreeMap<String, FileRecord> {
        if file == GuardFile::Filter { &mut self.filters } else { &mut self.lists }
    }

    /// The updates that are `waiting` for each configured service, and for removed ones, of which a
    /// service under another name does not have the same.
    pub(super) fn waiting_next(
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

//! The record of a filter or list that outlives a restart.

use std::collections::BTreeMap;
use std::io;
use std::time::SystemTime;

use keygate_core::pkbf::Header;
use keygate_core::unix_time;
use serde::{Deserialize, Serialize};

use super::{MAX_NAMED, WaitingReport};

/// Maximum length of a value in an error, in characters; the rest is cut.
const MAX_SHOWN: usize = 80;
/// Length of a day, in seconds.
const DAY: u64 = 86_400;
/// Number of days for which numbers of entries, and waiting updates, are remembered.
pub(crate) const REMEMBERED_DAYS: u64 = 7;

/// The day since the Unix epoch.
pub(crate) fn today(now: SystemTime) -> u64 {
    unix_time::seconds(now) / DAY
}

/// The age of the newest filter that was in use. A filter with a lower watermark is older.
///
/// The time of the last change is compared first, then the revision.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Watermark {
    /// Last change, in seconds since the Unix epoch.
    pub(crate) updated: u64,
    /// Revision in the header.
    pub(crate) revision: u32,
}

impl Watermark {
    /// The watermark of the filter with this `header`.
    pub(crate) fn from_header(header: &Header) -> Self {
        Self { updated: header.updated_at, revision: header.revision }
    }
}

/// The record of a filter or list.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct FileRecord {
    /// Last change of the filter in use, in seconds since the Unix epoch; 0 of a list.
    pub(crate) updated: u64,
    /// Revision of the filter in use; 0 of a list.
    pub(crate) revision: u32,
    /// Number of entries in use; 0 if the file is no longer configured.
    #[serde(default)]
    pub(crate) entries: u64,
    /// Path of the file, under which another name finds the record.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) path: Option<String>,
    /// The entries and new hits of the last seven days.
    #[serde(default, skip_serializing_if = "FileHistory::is_empty")]
    pub(crate) history: FileHistory,
    /// Id of the copy of the file in use, a SHA-256 in hex; `None` without a copy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) last_good: Option<String>,
    /// The update that waits for the operator.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) waiting: Option<WaitingReport>,
}

/// The last seven days of a file, by day since the Unix epoch.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub(crate) struct FileHistory(BTreeMap<u64, Day>);

/// A day of a file.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Day {
    /// The largest number of entries in use.
    entries: u64,
    /// The new hits of all updates that were used without a decision of an operator.
    #[serde(default)]
    hits: usize,
}

impl FileRecord {
    /// The watermark of the filter that was in use.
    pub(crate) fn watermark(&self) -> Watermark {
        Watermark { updated: self.updated, revision: self.revision }
    }

    /// Whether this is the record of a file with this path, as [`Path::display`] shows it.
    pub(crate) fn is_of(&self, path: &str) -> bool {
        self.path.as_deref() == Some(path)
    }

    /// Whether the file was in use when the record was saved.
    pub(crate) fn was_in_use(&self) -> bool {
        self.last_good.is_some() || self.entries > 0
    }

    /// Keeps the watermark, and for seven days the history and the waiting update, because the file
    /// is no longer configured. Returns whether these are kept.
    pub(crate) fn retire(&mut self, now: SystemTime) -> bool {
        self.history.note_entries(std::mem::take(&mut self.entries), now);
        self.last_good = None;
        let is_recent = !self.history.is_empty();
        self.waiting.take_if(|_| !is_recent);
        is_recent
    }

    /// Bounds what the file holds under `name`, and checks the digest that becomes part of a path.
    pub(crate) fn checked(mut self, table: &str, name: &str) -> io::Result<Self> {
        let is_digest = |text: &String| {
            text.len() == 64 && text.bytes().all(|it| matches!(it, b'0'..=b'9' | b'a'..=b'f'))
        };
        if let Some(found) = self.last_good.as_ref().filter(|text| !is_digest(text)) {
            let found: String = found.chars().take(MAX_SHOWN).collect();
            let problem =
                format!("{table}.{name:?}.last_good: {found:?} is not a SHA-256 in lower-case hex");
            return Err(io::Error::new(io::ErrorKind::InvalidData, problem));
        }
        if let Some(waiting) = &mut self.waiting {
            waiting.clients.truncate(MAX_NAMED);
        }
        Ok(self)
    }
}

impl FileHistory {
    /// Remembers that a file with this number of entries was in use until `now`; 0 adds nothing.
    pub(crate) fn note_entries(&mut self, entries: u64, now: SystemTime) {
        self.change_today(entries > 0, now, |day| day.entries = day.entries.max(entries));
    }

    /// Remembers that an update with this number of new hits was used.
    pub(crate) fn add_hits(&mut self, hits: usize, now: SystemTime) {
        self.change_today(hits > 0, now, |day| day.hits = day.hits.saturating_add(hits));
    }

    fn change_today(&mut self, is_change: bool, now: SystemTime, change: impl FnOnce(&mut Day)) {
        let today = today(now);
        if is_change {
            change(self.0.entry(today).or_default());
        }
        self.0.retain(|day, _| day.abs_diff(today) < REMEMBERED_DAYS);
    }

    /// The largest number of entries of the last seven days.
    pub(crate) fn largest(&self, now: SystemTime) -> u64 {
        self.last_days(now).map(|day| day.entries).max().unwrap_or(0)
    }

    /// The new hits of the last seven days.
    pub(crate) fn hits(&self, now: SystemTime) -> usize {
        self.last_days(now).map(|day| day.hits).fold(0, usize::saturating_add)
    }

    fn last_days(&self, now: SystemTime) -> impl Iterator<Item = &Day> {
        let today = today(now);
        let days = self.0.iter().filter(move |(day, _)| day.abs_diff(today) < REMEMBERED_DAYS);
        days.map(|(_, day)| day)
    }

    fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, UNIX_EPOCH};

    use super::*;

    #[test]
    fn entries_and_new_hits_count_for_seven_days() {
        let day = |day: u64| UNIX_EPOCH + Duration::from_secs(day * DAY + 5);
        let mut history = FileHistory::default();
        history.note_entries(120, day(100));
        history.note_entries(66, day(101));
        history.note_entries(90, day(101));
        history.add_hits(2, day(101));
        history.add_hits(3, day(102));
        assert_eq!((history.largest(day(106)), history.hits(day(106))), (120, 5));
        assert_eq!((history.largest(day(107)), history.hits(day(108))), (90, 3));
        for now in 103..200 {
            history.note_entries(1, day(now));
        }
        assert_eq!((history.largest(day(199)), history.0.len()), (1, 7));
        let text = serde_json::to_string(&history).unwrap();
        assert_eq!(serde_json::from_str::<FileHistory>(&text).unwrap(), history);
    }
}

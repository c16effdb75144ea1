//! The gate before a file is replaced: updates that are held for later, and what the
//! operator decided about them.

use std::time::SystemTime;

use data_encoding::HEXLOWER;
use keygate_core::unix_time;
use tracing::warn;

use crate::saved_state::file_record::{FileHistory, FileRecord};
use crate::sources::failure::Failure;
use crate::sources::operator_decision::{GuardFile, NeedsOperator, WaitCause};
use crate::sources::report::{DryRunReport, WaitingReport};

/// The update of a file that is held, and what was in use before.
#[derive(Debug, Clone)]
pub(crate) struct Gate {
    file: GuardFile,
    held: Option<PendingUpdate>,
    /// When a rejected update that is dated in the future may be used, in seconds since the Unix
    /// epoch.
    due_at: Option<u64>,
    /// Whether the file had the waiting update at the last look, so that it can be accepted.
    is_offered: bool,
    pub(super) history: FileHistory,
    /// SHA-256 of the last update that passed, in hex.
    passed: Option<String>,
    /// Recent clients that the file in use newly rejected; `None` if it was not examined.
    pub(super) new_hits: Option<usize>,
    /// Why `max_new_hits` was not checked for the file in use.
    pub(super) untried: Option<String>,
}

/// An update that needs the operator, because it has too many new hits or too few entries.
#[derive(Debug, Clone)]
struct PendingUpdate {
    report: WaitingReport,
    /// The peer of the operator who has accepted it.
    accepted_by: Option<String>,
}

/// An update in use that an operator accepted, until it is logged.
#[derive(Debug, Clone)]
pub(super) struct Acceptance {
    file: GuardFile,
    report: WaitingReport,
    peer: String,
}

/// Why an update cannot be accepted. Each error has the filter or list, such as `filter "lost"`.
#[derive(Debug, thiserror::Error)]
pub enum AcceptError {
    /// The waiting update is not the one that was inspected.
    #[error(
        "{0}: the waiting update has the SHA-256 {1}: inspect it with `keygate {kind} {command}`, then accept it",
        kind = .2.as_str(),
        command = if *.2 == GuardFile::Service { "accept" } else { "diff" }
    )]
    Another(String, String, GuardFile),
    /// The accepted update cannot be read, because it is being written.
    #[error(
        "{0}: the update is not used, because the file is being written; accept it again when the writer is done"
    )]
    BeingWritten(String),
    /// No update waits.
    #[error("{0}: no update waits to be accepted; `keygate status` has the state of each file")]
    Nothing(String),
    /// The accepted update fails another check.
    #[error("{0}: the update is still rejected: {1}")]
    Rejected(String, String),
    /// No filter, list or service has this name.
    #[error("there is no {0}; `keygate status` has the names")]
    Unknown(String),
}

impl Gate {
    /// The gate of a file whose update is `waiting`.
    pub(super) fn new(file: GuardFile, waiting: Option<WaitingReport>) -> Self {
        let held = waiting.map(|report| PendingUpdate { report, accepted_by: None });
        let history = FileHistory::default();
        let (due_at, is_offered, passed, new_hits, untried) = (None, false, None, None, None);
        Self { file, held, due_at, is_offered, history, passed, new_hits, untried }
    }

    /// The gate of a file that is loaded. `before` is the gate of the same file under other
    /// settings, with the number of entries in use; `record` is of the last process.
    pub(super) fn from_known(
        file: GuardFile,
        before: Option<(&Self, u64)>,
        record: Option<&FileRecord>,
        now: SystemTime,
    ) -> Self {
        let mut gate = Self::new(file, record.and_then(|record| record.waiting.clone()));
        gate.history = record.map(|record| record.history.clone()).unwrap_or_default();
        if let Some((before, _)) = before {
            // A decision of the operator counts until the file is in use.
            gate = Self { due_at: None, is_offered: false, ..before.clone() };
        }
        let entries = before.map(|(_, entries)| entries).or(record.map(|record| record.entries));
        gate.history.note_entries(entries.unwrap_or(0), now);
        gate
    }

    /// Checks that `update` needs no operator, or that one has accepted it. Otherwise the update waits.
    ///
    /// `cause` is a reason that other checks have found. New hits and entries of the update that
    /// waits already count even if the recent clients or the file in use have changed, so that
    /// neither a restart nor the passing of time lets it through. At a start, another update that
    /// waited counts as well.
    ///
    /// # Errors
    /// Returns an error if there is a `cause`, if the update has half of the entries before it or
    /// fewer, if its new hits and the new hits of the last seven days are more than `max_new_hits`, or
    /// if it cannot be tried and another one waited.
    pub(super) fn check(
        &mut self,
        mut update: WaitingReport,
        cause: Option<WaitCause>,
        is_start: bool,
        now: SystemTime,
    ) -> Result<(), NeedsOperator> {
        let own_hits = update.new_hits;
        if self.has_accepted(&update.sha256) {
            (self.passed, self.new_hits) = (Some(update.sha256), Some(own_hits));
            return Ok(());
        }
        // An old revocation must not hold back a new one.
        let is_service = self.file == GuardFile::Service;
        update.hits_before = if is_service { 0 } else { self.history.hits(now) };
        let waiting = self.waiting();
        let waiting = waiting.filter(|waiting| is_start || waiting.sha256 == update.sha256);
        if let Some(waiting) = waiting {
            update.entries_before = update.entries_before.max(waiting.entries_before);
            if waiting.new_hits > update.new_hits {
                (update.new_hits, update.clients) = (waiting.new_hits, waiting.clients.clone());
            }
            update.hits_before = update.hits_before.max(waiting.hits_before);
        }
        let too_many = || {
            let (new_hits, before, allowed) =
                (update.new_hits, update.hits_before, update.max_new_hits?);
            let is_over = new_hits > 0 && new_hits.saturating_add(before) > allowed;
            let other = waiting.filter(|waiting| waiting.sha256 != update.sha256);
            is_over.then(|| match other {
                Some(other) => WaitCause::Untried { waiting: other.sha256.clone() },
                None => WaitCause::NewHits { new_hits, before, allowed },
            })
        };
        let cause = shrunk(update.entries_before, update.entries).or(cause).or_else(too_many);
        if let Some(cause) = cause {
            self.held = Some(PendingUpdate { report: update, accepted_by: None });
            return Err(NeedsOperator::new(self.file, cause));
        }
        if self.passed.as_ref() != Some(&update.sha256) {
            self.history.add_hits(own_hits, now);
            (self.passed, self.new_hits) = (Some(update.sha256), Some(own_hits));
        }
        Ok(())
    }

    /// Whether the operator has accepted the update with this SHA-256, in hex, and it is not in use
    /// yet.
    pub(super) fn has_accepted(&self, sha256: &str) -> bool {
        let held = self.held.as_ref();
        held.is_some_and(|held| held.accepted_by.is_some() && held.report.sha256 == sha256)
    }

    /// The waiting update. The file may have another content now.
    pub(super) fn waiting(&self) -> Option<&WaitingReport> {
        let held = self.held.as_ref().filter(|held| held.accepted_by.is_none());
        held.map(|held| &held.report)
    }

    /// The waiting update, if the file had it at the last look, so that it can be accepted.
    pub(super) fn acceptable(&self) -> Option<&WaitingReport> {
        self.waiting().filter(|_| self.is_offered)
    }

    /// The update that waits, and why recent clients were not asked about the file in use.
    pub(super) fn report(&self) -> DryRunReport {
        let (waiting, acceptable) = (self.waiting().cloned(), self.acceptable().is_some());
        DryRunReport { waiting, acceptable, max_new_hits: self.untried.clone() }
    }

    /// Whether the held update may be used at `now`, although its file has not changed.
    pub(super) fn may_be_used(&self, now: SystemTime) -> bool {
        self.held.as_ref().is_some_and(|held| held.accepted_by.is_some())
            || self.due_at.is_some_and(|due_at| unix_time::seconds(now) >= due_at)
    }

    /// Records that the file was rejected. `is_offered`: because its update waits. The update waits
    /// until another one is used, because the file may have it again after a restart. A file that
    /// could not be read may have the accepted update.
    pub(super) fn record_rejection(&mut self, is_offered: bool, failure: Failure) {
        self.is_offered = is_offered;
        if failure == Failure::Content {
            self.due_at = None;
            self.held.iter_mut().for_each(|held| held.accepted_by = None);
        }
    }

    /// Forgets the entries because of which an update waits.
    pub(super) fn allow_shrinking(&mut self) {
        self.held.iter_mut().for_each(|held| held.report.entries_before = 0);
    }

    /// Makes an update of any name of the file wait, unless one waits.
    pub(super) fn wait_for(&mut self, waiting: Option<&WaitingReport>) {
        let waiting = waiting.filter(|_| self.held.is_none());
        let held = |it: &WaitingReport| PendingUpdate { report: it.clone(), accepted_by: None };
        self.held = waiting.map(held).or_else(|| self.held.take());
    }

    /// Forgets an update that waits, because the file is in use.
    pub(super) fn forget_waiting(&mut self) {
        self.held.take_if(|held| held.accepted_by.is_none());
    }

    /// Reads the file again at `due_at`, in seconds since the Unix epoch.
    pub(super) fn hold_until(&mut self, due_at: u64) {
        self.due_at = Some(due_at);
    }

    /// Forgets the held update, because the file is in use.
    pub(super) fn clear(&mut self) {
        (self.held, self.due_at, self.is_offered) = (None, None, false);
    }

    /// The largest number of entries of the last days, and at least `in_use`.
    pub(super) fn entries_before(&self, in_use: u64, now: SystemTime) -> u64 {
        in_use.max(self.history.largest(now))
    }

    /// Records that the update with this SHA-256, in hex, replaces a file with this number of
    /// entries. If an operator accepted it, earlier entries and new hits no longer matter.
    pub(super) fn record_use(
        &mut self,
        sha256: &str,
        entries_before: u64,
        now: SystemTime,
    ) -> Option<Acceptance> {
        let held = self.held.take();
        self.clear();
        match held {
            Some(PendingUpdate { report, accepted_by: Some(peer) }) if report.sha256 == sha256 => {
                self.history = FileHistory::default();
                Some(Acceptance { file: self.file, report, peer })
            }
            Some(_) | None => {
                self.history.note_entries(entries_before, now);
                None
            }
        }
    }

    /// Accepts the waiting update with this SHA-256 of the filter, list or service `name` on behalf of
    /// `peer`. The next refresh uses the update, regardless of new hits and entries.
    pub(crate) fn accept(
        &mut self,
        name: &str,
        sha256: &[u8; 32],
        peer: &str,
    ) -> Result<(), AcceptError> {
        let subject = self.file.subject(name);
        let Some(report) = self.acceptable().cloned() else {
            return Err(AcceptError::Nothing(subject));
        };
        if report.sha256 != HEXLOWER.encode(sha256) {
            return Err(AcceptError::Another(subject, report.sha256, self.file));
        }
        self.held = Some(PendingUpdate { report, accepted_by: Some(peer.to_owned()) });
        Ok(())
    }
}

impl Acceptance {
    /// Logs the decision, once the update is in use.
    pub(super) fn log(&self, name: &str) {
        let Self { file, report, peer } = self;
        let WaitingReport { sha256, revision, entries, new_hits, .. } = report;
        let clients = report.client_list();
        match file {
            GuardFile::Filter => warn!(
                target: "keygate::client_key",
                filter = name, peer, sha256, revision, entries, new_hits, clients,
                "filter update accepted by an operator"
            ),
            GuardFile::List => warn!(
                target: "keygate::client_key",
                list = name, peer, sha256, entries, new_hits, clients,
                "list update accepted by an operator"
            ),
            GuardFile::Service => warn!(
                target: "keygate::client_key",
                service = name, peer, sha256, path = report.path, new_hits, clients,
                "certificate update accepted by an operator"
            ),
        }
    }
}

/// The shrinking of a file to half of the entries `before` or fewer.
pub(crate) fn shrunk(before: u64, entries: u64) -> Option<WaitCause> {
    let is_shrunk = before > 0 && entries <= before / 2;
    is_shrunk.then_some(WaitCause::Shrunk { entries, before })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_has_shrunk_if_half_of_its_entries_are_gone() {
        for (before, entries, expected) in [
            (0, 0, false),
            (1, 0, true),
            (1, 1, false),
            (2, 1, true),
            (3, 2, false),
            (1000, 501, false),
            (1000, 500, true),
            (u64::MAX, u64::MAX, false),
            (u64::MAX, 0, true),
        ] {
            assert_eq!(shrunk(before, entries).is_some(), expected, "{before} {entries}");
        }
    }

    #[test]
    fn an_accepted_update_that_fails_is_read_again_only_if_it_could_not_be_read() {
        let sha256 = "00".repeat(32);
        let shrunk =
            WaitingReport { sha256, entries: 1, entries_before: 10, ..WaitingReport::default() };
        let mut gate = Gate::new(GuardFile::List, None);
        gate.check(shrunk, None, false, SystemTime::now()).unwrap_err();
        gate.record_rejection(true, Failure::Content);
        gate.accept("deny", &[0; 32], "127.0.0.1:1").unwrap();
        gate.record_rejection(false, Failure::Read);
        assert!(gate.may_be_used(SystemTime::now()));
        gate.record_rejection(false, Failure::Content);
        assert!(!gate.may_be_used(SystemTime::now()));
    }
}

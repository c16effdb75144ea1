//! The gate before a file is replaced: updates that are held for later, and what the
//! operator decided about them.

use std::time::SystemTime;

use data_encoding::HEXLOWER;
use tracing::warn;

use crate::snapshot::load::check::needs_operator::ensure_needs_no_operator;
use crate::snapshot::load::failure::Failure;
use crate::snapshot::load::file_record::Peaks;
use crate::snapshot::operator_decision::{GuardFile, NeedsOperator, WaitCause};
use crate::snapshot::report::WaitingReport;
use crate::unix_time;

/// The update of a file that is held, and the numbers of entries that were in use.
#[derive(Debug, Clone)]
pub(crate) struct Gate {
    file: GuardFile,
    /// Name of the filter, list or service.
    name: String,
    held: Option<HeldUpdate>,
    /// Whether the file had the waiting update at the last look, so that it can be accepted.
    is_offered: bool,
    /// The numbers of entries that were in use before.
    peaks: Peaks,
}

/// A rejected update that may be used later without a change of the file.
#[derive(Debug, Clone)]
enum HeldUpdate {
    /// The operator at `peer` has accepted the update.
    Accepted { report: WaitingReport, peer: String },
    /// The update needs the operator, because it has too many new hits or too few entries.
    AwaitsOperator(WaitingReport),
    /// The update is dated in the future; it may be used from this time on, in seconds since the
    /// Unix epoch.
    Until(u64),
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
    pub(super) fn new(
        file: GuardFile,
        name: &str,
        waiting: Option<WaitingReport>,
        peaks: Peaks,
    ) -> Self {
        let held = waiting.map(HeldUpdate::AwaitsOperator);
        Self { file, name: name.to_owned(), held, is_offered: false, peaks }
    }

    /// Adopts the decision of the operator from the gate of the same file under other settings.
    pub(in crate::snapshot::load) fn adopt_acceptance(&mut self, before: &Self) {
        if let Some(HeldUpdate::Accepted { .. }) = before.held {
            self.held.clone_from(&before.held);
        }
    }

    /// Returns an error if `update` needs an operator and none has accepted it. The update waits
    /// then. `cause` is a reason besides new hits and the number of entries. At a start, another
    /// update that waited holds this one as well.
    pub(super) fn check(
        &mut self,
        update: WaitingReport,
        cause: Option<WaitCause>,
        is_start: bool,
    ) -> Result<(), NeedsOperator> {
        if self.has_accepted(&update.sha256) {
            return Ok(());
        }
        let waiting = self.waiting();
        let waiting = waiting.filter(|waiting| is_start || waiting.sha256 == update.sha256);
        ensure_needs_no_operator(self.file, update, cause, waiting).map_err(|waits| {
            let (rejection, report) = *waits;
            self.held = Some(HeldUpdate::AwaitsOperator(report));
            rejection
        })
    }

    /// Whether the operator has accepted the update with this SHA-256, in hex, and it is not in use
    /// yet.
    pub(super) fn has_accepted(&self, sha256: &str) -> bool {
        match &self.held {
            Some(HeldUpdate::Accepted { report, .. }) => report.sha256 == sha256,
            Some(HeldUpdate::AwaitsOperator(_) | HeldUpdate::Until(_)) | None => false,
        }
    }

    /// The waiting update. The file may have another content now.
    pub(super) fn waiting(&self) -> Option<&WaitingReport> {
        match &self.held {
            Some(HeldUpdate::AwaitsOperator(report)) => Some(report),
            Some(HeldUpdate::Accepted { .. } | HeldUpdate::Until(_)) | None => None,
        }
    }

    /// The waiting update, if the file had it at the last look, so that it can be accepted.
    pub(super) fn acceptable(&self) -> Option<&WaitingReport> {
        self.waiting().filter(|_| self.is_offered)
    }

    /// Whether the held update may be used at `now`, although its file has not changed.
    pub(super) fn may_be_used(&self, now: SystemTime) -> bool {
        match &self.held {
            Some(HeldUpdate::Accepted { .. }) => true,
            Some(HeldUpdate::Until(time)) => unix_time::seconds(now) >= *time,
            Some(HeldUpdate::AwaitsOperator(_)) | None => false,
        }
    }

    /// Records that the file was rejected. `is_offered`: because its update waits. The waiting
    /// update waits until another one is used, because the file may have it again after a restart.
    /// A file that could not be read may have the held update.
    pub(super) fn record_rejection(&mut self, is_offered: bool, failure: Failure) {
        self.is_offered = is_offered;
        if failure == Failure::Content {
            self.held = match self.held.take() {
                Some(HeldUpdate::Accepted { report, .. } | HeldUpdate::AwaitsOperator(report)) => {
                    Some(HeldUpdate::AwaitsOperator(report))
                }
                Some(HeldUpdate::Until(_)) | None => None,
            };
        }
    }

    /// Forgets the entries because of which an update waits.
    pub(super) fn allow_shrinking(&mut self) {
        if let Some(HeldUpdate::AwaitsOperator(report)) = &mut self.held {
            report.entries_before = 0;
        }
    }

    /// Forgets an update that waits, because the file is in use.
    pub(super) fn forget_waiting(&mut self) {
        self.held.take_if(|held| matches!(held, HeldUpdate::AwaitsOperator(_)));
    }

    /// Holds an update until `time`, in seconds since the Unix epoch.
    pub(super) fn hold_until(&mut self, time: u64) {
        self.held = Some(HeldUpdate::Until(time));
    }

    /// Forgets the held update, because the file is in use.
    pub(super) fn clear(&mut self) {
        (self.held, self.is_offered) = (None, false);
    }

    /// The numbers of entries that were in use before.
    pub(super) fn peaks(&self) -> &Peaks {
        &self.peaks
    }

    /// The largest number of entries of the last days, and at least `in_use`.
    pub(super) fn entries_before(&self, in_use: u64, now: SystemTime) -> u64 {
        in_use.max(self.peaks.largest(now))
    }

    /// Records that the update with this SHA-256, in hex, replaces a file with this number of
    /// entries. Returns whether an operator accepted it: the decision is then logged, and earlier
    /// numbers of entries no longer matter.
    pub(super) fn record_use(
        &mut self,
        sha256: &str,
        entries_before: u64,
        now: SystemTime,
    ) -> bool {
        let held = self.held.take();
        self.clear();
        match held {
            Some(HeldUpdate::Accepted { report, peer }) if report.sha256 == sha256 => {
                log_acceptance(self.file, &self.name, &report, &peer);
                self.peaks = Peaks::default();
                true
            }
            Some(_) | None => {
                self.peaks.note(entries_before, now);
                false
            }
        }
    }

    /// Accepts the waiting update with this SHA-256 on behalf of `peer`. The next refresh uses the
    /// update, regardless of new hits and entries.
    pub(crate) fn accept(&mut self, sha256: &[u8; 32], peer: &str) -> Result<(), AcceptError> {
        let subject = subject(self.file, &self.name);
        let Some(report) = self.acceptable().cloned() else {
            return Err(AcceptError::Nothing(subject));
        };
        if report.sha256 != HEXLOWER.encode(sha256) {
            return Err(AcceptError::Another(subject, report.sha256, self.file));
        }
        self.held = Some(HeldUpdate::Accepted { report, peer: peer.to_owned() });
        Ok(())
    }
}

/// The filter, list or service with this name, as errors show it.
pub(crate) fn subject(file: GuardFile, name: &str) -> String {
    format!("{} {name:?}", file.as_str())
}

/// The file may have changed after the command, so that the command alone counts for nothing.
fn log_acceptance(file: GuardFile, name: &str, report: &WaitingReport, peer: &str) {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_accepted_update_that_fails_is_read_again_only_if_it_could_not_be_read() {
        let shrunk = WaitingReport {
            sha256: "00".repeat(32),
            revision: 0,
            updated: 0,
            entries: 1,
            entries_before: 10,
            new_hits: 0,
            max_new_hits: None,
            clients: Vec::new(),
            path: None,
        };
        let mut gate = Gate::new(GuardFile::List, "deny", None, Peaks::default());
        gate.check(shrunk, None, false).unwrap_err();
        gate.record_rejection(true, Failure::Content);
        gate.accept(&[0; 32], "127.0.0.1:1").unwrap();
        gate.record_rejection(false, Failure::Read);
        assert!(gate.may_be_used(SystemTime::now()));
        gate.record_rejection(false, Failure::Content);
        assert!(!gate.may_be_used(SystemTime::now()));
    }
}

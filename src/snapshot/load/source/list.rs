//! An exact list, read again when its file, its checksum file, its signature or its metadata
//! change.

mod read;

use std::cell::OnceCell;
use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use data_encoding::HEXLOWER;
use keygate_core::guard::ExactList;
use keygate_core::signature::FileSignature;
use keygate_core::unix_time;
use tracing::{info, warn};

use self::read::paths;
pub(crate) use self::read::read;
use super::gate::{AcceptError, Gate};
use super::waiting::Guarded;
use crate::config::{ListConfig, ListFormat, Shrink};
use crate::metrics::{Label, ListMetrics};
use crate::snapshot::list_rejection_reason::ListRejectionReason;
use crate::snapshot::load::check::dry_run::DryRun;
use crate::snapshot::load::check::rollback::MAX_CLOCK_SKEW;
use crate::snapshot::load::context::LoadContext;
use crate::snapshot::load::error::{ListFileError, LoadError};
use crate::snapshot::load::failure::ReadError;
use crate::snapshot::load::file_record::FileRecord;
use crate::snapshot::load::last_good::{LastGood, ReadIf, Reread, ValueChange};
use crate::snapshot::load::signed::LoadedList;
use crate::snapshot::operator_decision::{GuardFile, NeedsOperator, WaitCause};
use crate::snapshot::report::{ListReport, SignatureReport, WaitingReport};
use crate::snapshot::warning::Warning;

/// A configured list and the last good state of its file.
#[derive(Debug)]
pub(crate) struct ListSource {
    config: ListConfig,
    metrics: ListMetrics<ListRejectionReason>,
    list: LastGood<LoadedList>,
    is_stale: bool,
    /// Why the copy in the state directory is in use at the start, and not the file.
    rejection: Option<ListFileError>,
    /// Holds updates that wait for the operator.
    gate: Gate,
}

impl ListSource {
    /// Reads the list for the first time, or under other settings than those of `in_use`, which is
    /// the source with the same name or path. If the file of a new list is rejected or needs the
    /// operator, the copy in the state directory is used.
    ///
    /// # Errors
    /// Returns an error if the list cannot be used, and no copy can be used in its place.
    pub(crate) fn load(
        config: ListConfig,
        in_use: Option<&Self>,
        context: LoadContext<'_>,
    ) -> Result<Self, LoadError> {
        let record = context.rollback.find(GuardFile::List, &config.name, &config.path);
        let kept = OnceCell::new();
        let kept = || match in_use {
            // Under new settings the file must be usable: the list in use stays otherwise.
            Some(_) => None,
            None => {
                let name = record.map_or(&*config.name, |(name, _)| name);
                kept.get_or_init(|| context.saved_lists.read(&config, name)).clone()
            }
        };
        let before = || match in_use {
            Some(source) => Some(source.list().clone()),
            None => kept().map(|kept| kept.list),
        };
        let gate_before = in_use.map(|it| (&it.gate, it.list().len() as u64));
        let of_record = record.map(|(_, record)| record);
        let (file, now) = (GuardFile::List, context.now);
        let gate_before = Gate::of_loaded(file, &config.name, gate_before, of_record, now);
        let mut gate = gate_before.clone();
        let read = || {
            gate.clone_from(&gate_before); // the result of an earlier attempt was dropped
            let (update, before) = (read(&config, before)?, before());
            gate.wait_for(context.rollback.waiting(file, &HEXLOWER.encode(&update.sha256)));
            if !before.as_ref().is_some_and(|before| before.has_same_entries(&update.list)) {
                let (dry_run, is_start) = (context.dry_run, context.is_start);
                ensure_may_be_used(&config, &mut gate, before, &update, dry_run, is_start)?;
                let limit = config.max_new_hits.filter(|_| in_use.is_some() || record.is_some());
                gate.untried = dry_run.untried(None, limit);
            }
            Ok(update)
        };
        let loaded = LastGood::load(paths(&config), context.now, context.max_wait, read);
        let (list, rejection) = match loaded {
            Ok(list) => {
                gate.forget_waiting();
                (list, None)
            }
            Err(source) => match kept() {
                Some(kept) => {
                    let mut list = LastGood::new(kept, context.now);
                    list.watch(paths(&config));
                    let reason = ListRejectionReason::of(&source).as_str();
                    list.record_rejection(Some(reason), &source, context.now);
                    gate.record_rejection(source.needs_operator(), source.failure());
                    (list, Some(source))
                }
                None => {
                    let is_known = in_use.is_some_and(|it| it.config.name == config.name);
                    let source = if is_known { source } else { source.without_list_in_use() };
                    return Err(LoadError::of_list(&config, source, context.file));
                }
            },
        };
        let metrics = context.metrics.list(&config.name);
        Ok(Self { config, metrics, list, is_stale: false, rejection, gate })
    }

    /// Logs and counts the first value, which is now in use.
    pub(crate) fn show_loaded(&mut self, now: SystemTime) {
        let (entries, sha256) = (self.list().len(), HEXLOWER.encode(&self.list.get().sha256));
        if self.gate.has_accepted(&sha256) {
            self.record_use(&sha256, entries as u64, now);
        }
        self.metrics.record_loaded(entries, self.list().date());
        self.log_loaded(entries, None);
        self.log_warnings(now);
        if let Some(rejection) = &self.rejection {
            self.metrics.record_rejected(ListRejectionReason::of(rejection));
        }
        self.check_age(now);
    }

    fn log_loaded(&self, entries: usize, before: Option<usize>) {
        let signature = self.list.get().signature();
        info!(
            list = %self.config.name,
            entries,
            before,
            signed_by = signature.map(FileSignature::key_id),
            comment = signature.map(FileSignature::comment),
            max_new_hits = self.gate.untried,
            "list loaded"
        );
    }

    /// The faults of the list that an operator must mend.
    pub(crate) fn warnings(&self, now: SystemTime) -> Vec<Warning> {
        self.timeless_warnings(now).into_iter().chain(self.overdue(now)).collect()
    }

    /// The faults of the list apart from its age.
    fn timeless_warnings(&self, now: SystemTime) -> Vec<Warning> {
        let list = &self.config.name;
        let rejection = self.rejection.as_ref().map(|rejection| {
            let reason = ListRejectionReason::of(rejection);
            Warning::last_good_list(list, &self.config.path, reason, rejection)
        });
        let deprecated = self.is_deprecated().then(|| Warning::deprecated_list(list));
        let is_ageless = self.max_age().is_some() && self.age(now).is_none();
        let ageless = is_ageless.then(|| Warning::ageless_list(list, self.list().date()));
        let empty = self.list().is_empty().then(|| Warning::empty_list(list));
        rejection.into_iter().chain(deprecated).chain(ageless).chain(empty).collect()
    }

    /// Reads the list again if one of its files has changed, or if the operator has accepted an
    /// update. An update is tried on the recent clients of `dry_run`.
    pub(crate) fn refresh(&mut self, now: SystemTime, dry_run: &DryRun) -> ValueChange {
        self.check_age(now);
        let read_if = if self.gate.may_be_used(now) { ReadIf::Always } else { ReadIf::Changed };
        let read = |before: &LoadedList| read(&self.config, || Some(before.list.clone()));
        match self.list.reread(read_if, now, read) {
            Reread::Pending => ValueChange::Pending,
            Reread::Read(Ok(list)) => self.update(list, now, dry_run),
            Reread::Read(Err(error)) => self.reject(&error, now),
            Reread::Unchanged => ValueChange::Same,
        }
    }

    fn update(&mut self, update: LoadedList, now: SystemTime, dry_run: &DryRun) -> ValueChange {
        // Otherwise every connection would be judged again.
        if self.list().has_same_entries(&update.list) {
            return self.keep(update, now);
        }
        let before = Some(self.list().clone());
        match ensure_may_be_used(&self.config, &mut self.gate, before, &update, dry_run, false) {
            Ok(()) => {
                self.gate.untried = dry_run.untried(None, self.config.max_new_hits);
                self.activate(update, now)
            }
            Err(needs_operator) => self.reject(&needs_operator.into(), now),
        }
    }

    fn keep(&mut self, update: LoadedList, now: SystemTime) -> ValueChange {
        // The file may have been signed again, with another key.
        let in_use = self.list.get_mut();
        (in_use.signed, in_use.sha256) = (update.signed, update.sha256);
        self.gate.clear();
        self.list.record_unchanged(now);
        self.rejection = None;
        self.metrics.record_unchanged();
        ValueChange::Same
    }

    fn activate(&mut self, list: LoadedList, now: SystemTime) -> ValueChange {
        let (entries, before) = (list.list.len(), self.list().len());
        let sha256 = HEXLOWER.encode(&list.sha256);
        self.record_use(&sha256, before as u64, now);
        self.list.replace(list, now);
        self.rejection = None;
        self.metrics.record_loaded(entries, self.list().date());
        self.log_loaded(entries, Some(before));
        self.log_warnings(now);
        self.check_age(now);
        ValueChange::Replaced
    }

    fn record_use(&mut self, sha256: &str, entries_before: u64, now: SystemTime) {
        if let Some(accepted) = self.gate.record_use(sha256, entries_before, now) {
            accepted.log();
            self.metrics.accepted.inc();
        }
    }

    /// Logs the warnings. [`Self::check_age`] logs that of the age once.
    fn log_warnings(&self, now: SystemTime) {
        self.timeless_warnings(now).iter().for_each(Warning::log);
    }

    /// Logs once when the list in use becomes older than `max_age`, and sets its metric. A list of
    /// unknown age counts as stale; its warning is one of [`Self::warnings`].
    fn check_age(&mut self, now: SystemTime) {
        let overdue = self.overdue(now);
        let is_stale = overdue.is_some() || self.max_age().is_some() && self.age(now).is_none();
        self.metrics.set_stale(is_stale);
        if let Some(warning) = overdue
            && !self.is_stale
        {
            warning.log();
        }
        self.is_stale = is_stale;
    }

    /// The warning that the list in use is older than `max_age`.
    fn overdue(&self, now: SystemTime) -> Option<Warning> {
        let (max_age, age) = self.max_age().zip(self.age(now))?;
        (age > max_age).then(|| Warning::stale_list(&self.config.name, age, max_age))
    }

    /// The age of the list in use. `None` if it has no date, or one that lies in the future, which
    /// would hide its age.
    fn age(&self, now: SystemTime) -> Option<Duration> {
        let (date, now) = (self.list().date()?, unix_time::seconds(now));
        let age = Duration::from_secs(now.saturating_sub(date));
        (date <= now.saturating_add(MAX_CLOCK_SKEW)).then_some(age)
    }

    fn max_age(&self) -> Option<Duration> {
        match self.config.format {
            ListFormat::Badkeys(settings) => settings.max_age,
            ListFormat::Fingerprints => None,
        }
    }

    fn is_deprecated(&self) -> bool {
        match self.list() {
            ExactList::Badkeys(list) => list.is_deprecated,
            ExactList::Fingerprints(_) => false,
        }
    }

    fn reject(&mut self, error: &ListFileError, now: SystemTime) -> ValueChange {
        let reason = ListRejectionReason::of(error);
        self.gate.record_rejection(error.needs_operator(), error.failure());
        if !self.list.record_rejection(Some(reason.as_str()), error, now) {
            return ValueChange::Same;
        }
        self.metrics.record_rejected(reason);
        let waiting = self.gate.acceptable();
        warn!(
            list = %self.config.name,
            path = %self.config.path.display(),
            reason = reason.as_str(),
            %error,
            sha256 = waiting.map(|waiting| waiting.sha256.as_str()),
            clients = waiting.map(WaitingReport::client_list).filter(|list| !list.is_empty()),
            "list update rejected, keeping the one in use"
        );
        ValueChange::Same
    }

    /// The configuration of the list.
    pub(crate) fn config(&self) -> &ListConfig {
        &self.config
    }

    /// The list in use.
    pub(crate) fn list(&self) -> &ExactList {
        &self.list.get().list
    }

    /// The list in use with its signature.
    pub(crate) fn loaded(&self) -> &LoadedList {
        self.list.get()
    }

    /// Paths of the list, its checksum file, its metadata, the signatures and the keys.
    pub(crate) fn paths(&self) -> &[PathBuf] {
        self.list.paths()
    }

    /// The facts that outlive a restart.
    pub(crate) fn record(&self) -> FileRecord {
        FileRecord::new(&self.config.path, self.list().len() as u64, &self.gate)
    }

    /// The list in use and the result of the last attempt to read it.
    pub(crate) fn report(&self) -> ListReport {
        let (format, updated, sha256) = match self.list() {
            ExactList::Badkeys(it) => ("badkeys", it.date, Some(HEXLOWER.encode(&it.sha256))),
            ExactList::Fingerprints(_) => ("fingerprints", None, None),
        };
        ListReport {
            name: self.config.name.clone(),
            path: self.config.path.display().to_string(),
            format,
            entries: self.list().len(),
            updated,
            sha256,
            signature: self.list.get().signature().map(SignatureReport::of),
            stale: self.is_stale,
            last_good_in_use: self.rejection.is_some(),
            dry_run: self.gate.report(),
            last_reload: self.list.last_reload(),
        }
    }
}

impl Guarded for ListSource {
    fn accept(&mut self, sha256: &[u8; 32], peer: &str) -> Result<(), AcceptError> {
        self.gate.accept(sha256, peer)
    }

    fn problem_of(&self, sha256: &[u8; 32]) -> Option<String> {
        (self.list.get().sha256 != *sha256).then(|| self.list.problem())
    }
}

/// Checks that `update` may replace the list `before` without an operator, or was accepted by one.
fn ensure_may_be_used(
    config: &ListConfig,
    gate: &mut Gate,
    before: Option<ExactList>,
    update: &LoadedList,
    dry_run: &DryRun,
    is_start: bool,
) -> Result<(), NeedsOperator> {
    let (lost, entries) = match config.shrink {
        Shrink::Allow => {
            gate.allow_shrinking();
            (None, 0)
        }
        Shrink::Refuse => {
            let entries = before.as_ref().map_or(0, |list| list.len() as u64);
            (lost(before.as_ref(), &update.list), gate.entries_before(entries, dry_run.now))
        }
    };
    let (hits, allowed) = (dry_run.new_hits_of_list(&update.list), config.max_new_hits);
    gate.check(WaitingReport::of_list(update, entries, hits, allowed), lost, is_start, dry_run.now)
}

/// The records that a blocklist lacks, if they are most of the records in use.
pub(crate) fn lost(before: Option<&ExactList>, update: &ExactList) -> Option<WaitCause> {
    let (Some(ExactList::Badkeys(before)), ExactList::Badkeys(update)) = (before, update) else {
        return None;
    };
    let lost = before.blocklist.difference(&update.blocklist).0 as u64;
    let in_use = before.blocklist.len() as u64;
    (lost > in_use / 2).then_some(WaitCause::Lost { lost, in_use })
}

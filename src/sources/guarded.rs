//! A file by which keys are judged, a filter or an exact list, with its last good value.
//!
//! | event | file | result |
//! | --- | --- | --- |
//! | start | usable | in use |
//! | start | rejected, or needs the operator | the copy in the state directory, else an error |
//! | new settings | rejected | the configuration is rejected |
//! | new settings | needs the operator | the value in use, if it passes the new checks |
//! | reload | content in use | stays, with a new signature |
//! | reload | rejected | the value in use stays |
//! | reload | needs the operator | the value in use stays until the operator accepts the update |

mod file;
mod first_value;

use std::cell::OnceCell;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use data_encoding::HEXLOWER;
use humantime::format_duration;
use tracing::{info, warn};

pub(crate) use self::file::{GuardedFile, GuardedSettings};
use self::first_value::{copy, ensure_may_be_used, first_value, in_place_of_file};
use super::check::MAX_CLOCK_SKEW;
use super::check::dry_run::{DryRun, NOT_CHECKED};
use super::context::LoadContext;
use super::failure::ReadError;
use super::file_rejection::FileRejection;
use super::gate::{AcceptError, Gate};
use super::last_good::{LastGood, ReadIf, Reread, UnusableFile, ValueChange};
use super::load_errors::LoadErrors;
use super::operator_decision::{GuardFile, NeedsOperator};
use super::report::{ReloadReport, WaitingReport};
use super::source_set::FileSource;
use super::waiting::Guarded;
use super::warning::Warning;
use crate::metrics::{GuardedFileMetrics, Label, ReloadResult};
use crate::saved_state::Watermark;
use crate::saved_state::file_record::FileRecord;
use crate::saved_state::rollback_state::FileInUse;

/// A configured filter or list and the last good state of its file.
#[derive(Debug)]
pub(crate) struct GuardedSource<F: GuardedFile> {
    config: F::Config,
    metrics: F::Metrics,
    pub(super) file: LastGood<F>,
    pub(super) is_stale: bool,
    /// Whether the value in use comes from the state directory, because its file was rejected at
    /// the start.
    pub(super) is_last_good: bool,
    /// The last rejection, unless the file was loaded since.
    rejection: Option<FileRejection>,
    /// The report of the last rejection, kept when the file is loaded.
    pub(super) last_rejection: Option<ReloadReport>,
    /// Holds rejected updates that may be used later without a change of the file.
    pub(super) gate: Gate,
}

impl<F: GuardedFile> FileSource for GuardedSource<F> {
    type Config = F::Config;

    fn config(&self) -> &F::Config {
        &self.config
    }

    fn name(&self) -> &str {
        F::settings(&self.config).name
    }

    fn replaced_by<'a>(
        config: &F::Config,
        in_use: &'a [Self],
        _: LoadContext<'_>,
    ) -> Option<&'a Self> {
        let GuardedSettings { name, path, .. } = F::settings(config);
        let same = in_use.iter().find(|known| known.name() == name);
        same.or_else(|| in_use.iter().find(|known| known.path() == path))
    }

    /// `before` is the source in use with the same name or path. A rejected file is an error if
    /// nothing can be used in its place.
    fn load(
        config: &F::Config,
        before: Option<&Self>,
        context: LoadContext<'_>,
    ) -> Result<Self, LoadErrors> {
        let settings = F::settings(config);
        let record = context.state.rollback.find(F::KIND, settings.name, settings.path);
        let saved = OnceCell::new();
        let copy = || saved.get_or_init(|| copy::<F>(config, record, context)).clone();
        let in_use = || match before {
            Some(before) => Some(before.value().clone()),
            None if F::COMPARES_WITH_COPY => copy(),
            None => None,
        };
        let known_gate = before.map(|before| (&before.gate, before.value().entries()));
        let known_gate = Gate::from_known(F::KIND, known_gate, record, context.now);
        let mut gate = known_gate.clone();
        let read = || {
            gate.clone_from(&known_gate); // the result of an earlier attempt was dropped
            first_value(config, &in_use, record, &mut gate, context)
        };
        let paths = F::paths(config);
        let loaded = LastGood::load(paths, context.now, context.max_wait, read);
        let (file, is_last_good, rejection) = match loaded {
            Ok(file) => {
                gate.forget_waiting();
                (file, false, None)
            }
            Err(UnusableFile { error, files }) => {
                let (value, is_last_good, error) =
                    in_place_of_file(config, before, copy, error, context)?;
                (files.in_place(value, context.now), is_last_good, Some(error))
            }
        };
        let metrics = F::metrics(context.metrics, settings.name);
        let (is_stale, last_rejection) = (false, None);
        let config = config.clone();
        Ok(Self { config, metrics, file, is_stale, is_last_good, rejection, last_rejection, gate })
    }

    fn log_and_count_first_load(&mut self, now: SystemTime) {
        let sha256 = HEXLOWER.encode(self.value().sha256());
        if self.gate.has_accepted(&sha256) {
            self.record_use(&sha256, now);
        }
        self.log_and_count_loaded(None, now);
        if let Some(max_new_hits) = &self.gate.untried {
            let [filter, list] = F::KIND.names(self.name());
            warn!(filter, list, max_new_hits, "max_new_hits was not checked");
        }
        if let Some(rejection) = self.rejection.take() {
            self.reject(rejection, now);
        }
    }

    /// Reads the file again if one of its files has changed, or if a pending update may be used now.
    /// An update is checked by a dry run on recent clients.
    fn refresh(&mut self, now: SystemTime, dry_run: &DryRun) -> Vec<ValueChange> {
        self.check_age(now);
        let read_if = if self.gate.may_be_used(now) { ReadIf::Always } else { ReadIf::Changed };
        let read = |in_use: &F| F::read(&self.config, &|| Some(in_use.clone()));
        let change = match self.file.reread(read_if, now, read) {
            Reread::Pending => ValueChange::Pending,
            Reread::Read(Ok(content)) => self.update(content, now, dry_run),
            Reread::Read(Err(rejection)) => self.reject(rejection, now),
            Reread::Unchanged => ValueChange::Same,
        };
        vec![change]
    }

    fn paths(&self) -> impl Iterator<Item = &PathBuf> {
        self.file.paths().iter()
    }
}

impl<F: GuardedFile> GuardedSource<F> {
    fn log_and_count_loaded(&mut self, before: Option<u64>, now: SystemTime) {
        self.value().count_loaded(&self.metrics, now);
        self.value().show_file(&self.metrics);
        let is_tried = F::settings(&self.config).max_new_hits.is_some()
            && self.gate.untried.as_deref() != Some(NOT_CHECKED);
        self.metrics.set_new_hits(self.gate.new_hits.filter(|_| is_tried));
        self.metrics.set_last_good_in_use(self.is_last_good);
        self.value().log_loaded(before, self.gate.untried.as_deref());
        self.timeless_warnings(now).iter().for_each(Warning::log);
        self.check_age(now);
    }

    /// The faults of the value in use that an operator must mend.
    pub(crate) fn warnings(&self, now: SystemTime) -> Vec<Warning> {
        self.timeless_warnings(now).into_iter().chain(self.overdue(now)).collect()
    }

    fn timeless_warnings(&self, now: SystemTime) -> Vec<Warning> {
        let rejection = self.rejection.as_ref().filter(|_| self.is_last_good);
        let copy = rejection.map(|rejection| {
            let event = match F::KIND {
                GuardFile::Filter => {
                    "filter file rejected at the start, using the last good filter"
                }
                GuardFile::List | GuardFile::Service => {
                    "list file rejected at the start, using the last good list"
                }
            };
            let (path, kind) = (self.path().display(), F::KIND.as_str());
            let problem =
                format!("{path}: {rejection}; the last good {kind} in state.dir is in use");
            let warning = Warning::about_guard(F::KIND, self.name(), event, &problem);
            let reason = Some(rejection.reason().as_str());
            Warning { reason, ..warning.elsewhere(true) }
        });
        copy.into_iter().chain(self.value().faults(&self.config, now)).collect()
    }

    fn update(&mut self, content: F, now: SystemTime, dry_run: &DryRun) -> ValueChange {
        // Otherwise every connection would be judged again.
        if self.value().judges_like(&content) {
            if self.rejection.is_some() {
                let ([filter, list], path) = (F::KIND.names(self.name()), self.path().display());
                info!(filter, list, %path, "{} file is usable again", F::KIND.as_str());
            }
            self.clear_rejection();
            self.file.get_mut().adopt(content);
            self.value().show_file(&self.metrics);
            self.file.record_unchanged(now);
            self.metrics.checks().record_usable(ReloadResult::Unchanged);
            return ValueChange::Same;
        }
        match self.check(&content, now, dry_run) {
            Ok(()) => self.activate(content, now),
            Err(rejection) => self.reject(rejection, now),
        }
    }

    /// Checks `update`, and that it needs no operator, or that one has accepted it.
    fn check(
        &mut self,
        update: &F,
        now: SystemTime,
        dry_run: &DryRun,
    ) -> Result<(), FileRejection> {
        update.check(&self.config, self.value().watermark(), now)?;
        let in_use = self.file.get();
        ensure_may_be_used(&self.config, &mut self.gate, Some(in_use), update, dry_run, false)?;
        self.gate.untried = dry_run.untried(None, F::settings(&self.config).max_new_hits);
        Ok(())
    }

    fn activate(&mut self, update: F, now: SystemTime) -> ValueChange {
        let before = self.value().entries();
        self.record_use(&HEXLOWER.encode(update.sha256()), now);
        self.clear_rejection();
        self.file.replace(update, now);
        self.log_and_count_loaded(Some(before), now);
        ValueChange::Replaced
    }

    /// Records that the update with this SHA-256, in hex, replaces the value.
    fn record_use(&mut self, sha256: &str, now: SystemTime) {
        if let Some(accepted) = self.gate.record_use(sha256, self.value().entries(), now) {
            accepted.log(self.name());
            self.metrics.checks().accepted.inc();
        }
    }

    fn reject(&mut self, rejection: FileRejection, now: SystemTime) -> ValueChange {
        let is_offered = rejection.waits().is_some_and(NeedsOperator::can_be_accepted);
        self.gate.record_rejection(is_offered, rejection.failure());
        if let Some(updated) = rejection.future() {
            self.gate.hold_until(updated.saturating_sub(MAX_CLOCK_SKEW));
        }
        let (reason, error) = (rejection.reason(), rejection.to_string());
        if !self.file.record_rejection(Some(reason), rejection.failure(), &error, now) {
            return ValueChange::Same;
        }
        self.metrics.checks().record_rejected(reason);
        let (waiting, [filter, list]) = (self.gate.acceptable(), F::KIND.names(self.name()));
        warn!(
            filter,
            list,
            path = %self.path().display(),
            reason = reason.as_str(),
            error,
            revision_in_use = self.value().watermark().map(|watermark| watermark.revision),
            sha256 = waiting.map(|waiting| waiting.sha256.as_str()),
            clients = waiting.map(WaitingReport::client_list).filter(|list| !list.is_empty()),
            "{} update rejected, keeping the one in use",
            F::KIND.as_str()
        );
        self.last_rejection = Some(self.file.last_reload());
        self.rejection = Some(rejection);
        ValueChange::Same
    }

    /// Forgets the rejection, because the file is in use now.
    fn clear_rejection(&mut self) {
        self.rejection = None;
        self.gate.clear();
        self.is_last_good = false;
        self.metrics.set_last_good_in_use(false);
    }

    /// Logs once when the value in use becomes older than `max_age`, and sets its metric. A value of
    /// unknown age counts as stale; its warning is one of its faults.
    fn check_age(&mut self, now: SystemTime) {
        let overdue = self.overdue(now);
        let max_age = F::settings(&self.config).max_age;
        let is_ageless = max_age.is_some() && self.value().age(now).is_none();
        let is_stale = overdue.is_some() || is_ageless;
        self.metrics.set_stale(is_stale);
        if let Some(warning) = overdue.filter(|_| !self.is_stale) {
            warning.log();
        }
        self.is_stale = is_stale;
    }

    /// The warning that the value is older than `max_age`.
    fn overdue(&self, now: SystemTime) -> Option<Warning> {
        let (age, max_age) = self.value().age(now).zip(F::settings(&self.config).max_age)?;
        if age <= max_age {
            return None;
        }
        let event = match F::KIND {
            GuardFile::Filter => "the filter in use is stale: keys that leaked since are not in it",
            GuardFile::List | GuardFile::Service => {
                "the list in use is stale: keys that leaked since are not on it"
            }
        };
        let (days, maximum) = (age.as_secs() / 86_400, format_duration(max_age));
        let problem = format!(
            "it is {days} days old, and max_age is {maximum}, so that keys that leaked since are \
             not on it; fetch it again"
        );
        let warning = Warning::about_guard(F::KIND, self.name(), event, &problem).elsewhere(true);
        Some(Warning { age: Some((age, max_age)), ..warning })
    }

    /// The facts that outlive a restart, and the files that are copied.
    pub(crate) fn saved(&self) -> FileInUse {
        let (value, original) = (self.value(), self.value().original());
        let Watermark { updated, revision } = value.watermark().unwrap_or_default();
        let record = FileRecord {
            updated,
            revision,
            entries: value.entries(),
            path: Some(self.path().display().to_string()),
            history: self.gate.history.clone(),
            last_good: Some(original.id()),
            waiting: self.gate.waiting().cloned(),
        };
        FileInUse { file: F::KIND, name: self.name().to_owned(), record, original }
    }

    pub(crate) fn path(&self) -> &Path {
        F::settings(&self.config).path
    }

    /// The value in use.
    pub(crate) fn value(&self) -> &F {
        self.file.get()
    }
}

impl<F: GuardedFile> Guarded for GuardedSource<F> {
    fn accept(&mut self, sha256: &[u8; 32], peer: &str) -> Result<(), AcceptError> {
        self.gate.accept(F::settings(&self.config).name, sha256, peer)
    }

    fn problem_of(&self, sha256: &[u8; 32]) -> Option<String> {
        (self.value().sha256() != sha256).then(|| self.file.problem())
    }
}

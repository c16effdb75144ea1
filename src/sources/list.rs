//! An exact list: its files, their checks, and what the log and the status have of it.

mod read;

use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use data_encoding::HEXLOWER;
use keygate_core::guard::ExactList;
use keygate_core::signature::FileSignature;
use keygate_core::unix_time;
use tracing::{error, info};

pub(crate) use self::read::read;
use super::check::dry_run::{DryRun, NewHits};
use super::check::rollback::MAX_CLOCK_SKEW;
use super::context::LoadContext;
use super::error::{ListFileError, LoadError};
use super::guarded::{GuardedFile, GuardedSettings, GuardedSource};
use super::list_rejection_reason::ListRejectionReason;
use super::load_errors::LoadErrors;
use super::operator_decision::{GuardFile, WaitCause};
use super::report::{ListReport, SignatureReport, WaitingReport};
use super::signed::LoadedList;
use super::source_set::Source;
use super::warning::Warning;
use crate::config::{ListConfig, ListFormat, Shrink};
use crate::metrics::{ControlMetrics, ListMetrics};
use crate::saved_state::Watermark;
use crate::saved_state::copies::CopyKind;
use crate::saved_state::file_record::FileRecord;
use crate::saved_state::rollback_state::FileInUse;

/// A configured list and the last good state of its file.
pub(crate) type ListSource = GuardedSource<LoadedList>;

impl GuardedFile for LoadedList {
    const KIND: GuardFile = GuardFile::List;
    const COMPARES_WITH_COPY: bool = true;
    type Config = ListConfig;
    type Content = Self;
    type Rejection = ListFileError;
    type Metrics = ListMetrics<ListRejectionReason>;

    fn settings(config: &ListConfig) -> GuardedSettings<'_> {
        let ListConfig { name, path, max_new_hits, .. } = config;
        let may_shrink = match config.shrink {
            Shrink::Allow => true,
            Shrink::Refuse => false,
        };
        GuardedSettings { name, path, max_new_hits: *max_new_hits, may_shrink }
    }

    fn paths(config: &ListConfig) -> Vec<PathBuf> {
        read::paths(config)
    }

    fn metrics(metrics: &ControlMetrics, name: &str) -> Self::Metrics {
        metrics.list(name)
    }

    fn read(config: &ListConfig, in_use: &dyn Fn() -> Option<Self>) -> Result<Self, ListFileError> {
        read(config, || in_use().map(|in_use| in_use.list))
    }

    /// [`read`] has made all checks.
    fn check(
        _: &ListConfig,
        content: Self,
        _: Option<Watermark>,
        _: SystemTime,
    ) -> Result<Self, ListFileError> {
        Ok(content)
    }

    fn copy(
        config: &ListConfig,
        record: Option<(&str, &FileRecord)>,
        context: LoadContext<'_>,
    ) -> Option<Self> {
        let (_, record) = record?;
        let (directory, id) = (context.rollback.directory()?, record.last_good.as_deref()?);
        let kind = match config.format {
            ListFormat::Badkeys(_) => CopyKind::Blocklist,
            ListFormat::Fingerprints => CopyKind::Fingerprints,
        };
        let path = kind.path_in(directory, id);
        let copy = read::read_copy(config, &path, id);
        copy.inspect_err(|error| {
            let (list, path) = (&config.name, path.display());
            error!(%list, %path, %error, "the copy of the last good list cannot be used");
        })
        .ok()
    }

    fn under_new_settings(
        &self,
        _: &ListConfig,
        _: SystemTime,
    ) -> Result<Option<Self>, ListFileError> {
        Ok(None)
    }

    fn errors(config: &ListConfig, error: ListFileError, file: Option<&Path>) -> LoadErrors {
        LoadError::from_list(config, error, file).into()
    }

    fn has_content(&self, content: &Self) -> bool {
        self.judges_like(content)
    }

    fn judges_like(&self, other: &Self) -> bool {
        self.list.has_same_entries(&other.list)
    }

    fn adopt(&mut self, content: Self) {
        *self = Self { list: self.list.clone(), ..content };
    }

    fn sha256(&self) -> &[u8; 32] {
        &self.sha256
    }

    fn entries(&self) -> u64 {
        self.list.len() as u64
    }

    fn watermark(&self) -> Option<Watermark> {
        None
    }

    fn lost(&self, update: &Self) -> Option<WaitCause> {
        lost(Some(&self.list), &update.list)
    }

    fn new_hits(&self, dry_run: &DryRun) -> NewHits {
        dry_run.new_hits_of_list(&self.list)
    }

    fn waiting(&self, entries_before: u64, hits: NewHits, max: Option<usize>) -> WaitingReport {
        WaitingReport::from_list(self, entries_before, hits, max)
    }

    fn faults(&self, config: &ListConfig, now: SystemTime) -> Vec<Warning> {
        let name = &config.name;
        let is_deprecated = match &self.list {
            ExactList::Badkeys(list) => list.is_deprecated,
            ExactList::Fingerprints(_) => false,
        };
        let deprecated = is_deprecated.then(|| Warning::deprecated_list(name));
        let is_ageless = self.is_ageless(config, now);
        let ageless = is_ageless.then(|| Warning::ageless_list(name, self.list.date()));
        let empty = self.list.is_empty().then(|| Warning::empty_list(name));
        deprecated.into_iter().chain(ageless).chain(empty).collect()
    }

    fn overdue(&self, config: &ListConfig, now: SystemTime) -> Option<Warning> {
        let (max_age, age) = max_age(config).zip(self.age(now))?;
        (age > max_age).then(|| Warning::stale_list(&config.name, age, max_age))
    }

    fn is_ageless(&self, config: &ListConfig, now: SystemTime) -> bool {
        max_age(config).is_some() && self.age(now).is_none()
    }

    fn copy_in_use(config: &ListConfig, rejection: &ListFileError) -> Warning {
        Warning::last_good_list(&config.name, &config.path, rejection)
    }

    fn log_loaded(&self, before: Option<u64>, untried: Option<&str>) {
        let signature = self.signature.as_deref();
        info!(
            list = %self.list.name(),
            entries = self.list.len(),
            before,
            signed_by = signature.map(FileSignature::key_id),
            comment = signature.map(FileSignature::comment),
            max_new_hits = untried,
            "list loaded"
        );
    }

    fn count_loaded(&self, metrics: &Self::Metrics, _: SystemTime) {
        metrics.record_loaded(self.list.len(), self.list.date());
    }
}

impl LoadedList {
    /// The age of the list. `None` if it has no date, or one that lies in the future, which would
    /// hide its age.
    fn age(&self, now: SystemTime) -> Option<Duration> {
        let (date, now) = (self.list.date()?, unix_time::seconds(now));
        let age = Duration::from_secs(now.saturating_sub(date));
        (date <= now.saturating_add(MAX_CLOCK_SKEW)).then_some(age)
    }
}

impl ListSource {
    /// The list in use.
    pub(crate) fn list(&self) -> &ExactList {
        &self.value().list
    }

    /// Forgets the content of the file if the copy with this id was written.
    pub(crate) fn forget_text_if(&mut self, is_kept: impl FnOnce(&str) -> bool) {
        if is_kept(&self.value().original().id()) {
            self.value_mut().text = None;
        }
    }

    /// The facts that outlive a restart, and the files that are copied.
    pub(crate) fn saved(&self) -> FileInUse {
        let (entries, original) = (self.value().entries(), self.value().original());
        let record = self.gate().record(self.path(), entries).with_copy(original.id());
        FileInUse { file: GuardFile::List, name: self.name().to_owned(), record, original }
    }

    /// The list in use and the result of the last attempt to read it.
    pub(crate) fn report(&self) -> ListReport {
        let (format, updated, sha256) = match self.list() {
            ExactList::Badkeys(it) => ("badkeys", it.date, Some(HEXLOWER.encode(&it.sha256))),
            ExactList::Fingerprints(_) => ("fingerprints", None, None),
        };
        ListReport {
            name: self.name().to_owned(),
            path: self.path().display().to_string(),
            format,
            entries: self.list().len(),
            updated,
            sha256,
            signature: self.value().signature.as_deref().map(SignatureReport::new),
            stale: self.is_stale(),
            last_good_in_use: self.is_last_good(),
            dry_run: self.gate().report(),
            last_reload: self.file().last_reload(),
        }
    }
}

fn max_age(config: &ListConfig) -> Option<Duration> {
    match config.format {
        ListFormat::Badkeys(settings) => settings.max_age,
        ListFormat::Fingerprints => None,
    }
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

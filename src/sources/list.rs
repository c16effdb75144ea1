//! An exact list: its files, their checks, and what the log and the status have of it.

mod read;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use data_encoding::HEXLOWER;
use keygate_core::guard::ExactList;
use keygate_core::signature::FileSignature;
use keygate_core::unix_time::{self, dated, utc};
use tracing::info;

pub(crate) use self::read::read;
use super::check::MAX_CLOCK_SKEW;
use super::check::dry_run::{DryRun, NewHits};
use super::file_rejection::FileRejection;
use super::guarded::{GuardedFile, GuardedSettings, GuardedSource};
use super::operator_decision::{GuardFile, WaitCause};
use super::rejection_reason::RejectionReason;
use super::report::{ListReport, SignatureReport, WaitingReport};
use super::signed::VerifiedList;
use super::source_set::FileSource;
use super::warning::Warning;
use crate::config::{ListConfig, ListFormat, Shrink};
use crate::metrics::{ControlMetrics, ListMetrics};
use crate::saved_state::Watermark;
use crate::saved_state::copies::{Content, CopyKind, Original};

/// A configured list and the last good state of its file.
pub(crate) type ListSource = GuardedSource<VerifiedList>;

impl GuardedFile for VerifiedList {
    const KIND: GuardFile = GuardFile::List;
    const COMPARES_WITH_COPY: bool = true;
    type Config = ListConfig;
    type Metrics = ListMetrics;

    fn settings(config: &ListConfig) -> GuardedSettings<'_> {
        let may_shrink = match config.shrink {
            Shrink::Allow => true,
            Shrink::Refuse => false,
        };
        GuardedSettings {
            name: &config.name,
            path: &config.path,
            max_new_hits: config.max_new_hits,
            may_shrink,
            max_age: config.max_age,
            canaries: &config.canaries,
            is_fetched: config.source.is_some(),
        }
    }

    fn paths(config: &ListConfig) -> Vec<PathBuf> {
        read::paths(config)
    }

    fn metrics(metrics: &ControlMetrics, name: &str) -> Self::Metrics {
        metrics.list(name, RejectionReason::OF_LISTS)
    }

    fn read(config: &ListConfig, in_use: &dyn Fn() -> Option<Self>) -> Result<Self, FileRejection> {
        read(config, || in_use().map(|in_use| in_use.list))
    }

    /// [`read`] has made all checks.
    fn check(
        &self,
        _: &ListConfig,
        _: Option<Watermark>,
        _: SystemTime,
    ) -> Result<(), FileRejection> {
        Ok(())
    }

    fn copy_kind(config: &ListConfig) -> CopyKind {
        match config.format {
            ListFormat::Badkeys => CopyKind::Blocklist,
            ListFormat::Fingerprints => CopyKind::Fingerprints,
        }
    }

    fn read_copy(config: &ListConfig, path: &Path) -> Result<Self, FileRejection> {
        read::read_copy(config, path)
    }

    fn under_new_settings(
        &self,
        _: &ListConfig,
        _: SystemTime,
    ) -> Result<Option<Self>, FileRejection> {
        Ok(None)
    }

    fn judges_like(&self, other: &Self) -> bool {
        self.list.has_same_entries(&other.list)
    }

    fn adopt(&mut self, same: Self) {
        // The list in use stays, so that it is not twice in memory.
        let bytes = match &self.list {
            ExactList::Badkeys(list) => Content::Blocklist(Arc::clone(list)),
            ExactList::Fingerprints(_) => same.original.content,
        };
        self.original = Original { content: bytes, ..same.original };
    }

    fn sha256(&self) -> &[u8; 32] {
        &self.original.sha256
    }

    fn entries(&self) -> u64 {
        self.list.len() as u64
    }

    fn watermark(&self) -> Option<Watermark> {
        None
    }

    /// A date in the future would hide the age.
    fn age(&self, now: SystemTime) -> Option<Duration> {
        let (date, now) = (self.list.date()?, unix_time::seconds(now));
        let age = Duration::from_secs(now.saturating_sub(date));
        (date <= now.saturating_add(MAX_CLOCK_SKEW)).then_some(age)
    }

    fn original(&self) -> Original {
        self.original.clone()
    }

    fn lost(&self, update: &Self) -> Option<WaitCause> {
        lost(&self.list, &update.list)
    }

    fn new_hits(&self, dry_run: &DryRun) -> NewHits {
        dry_run.new_hits_of_list(&self.list)
    }

    fn waiting(&self) -> WaitingReport {
        WaitingReport {
            sha256: HEXLOWER.encode(&self.original.sha256),
            updated: self.list.date().unwrap_or(0),
            entries: self.entries(),
            ..WaitingReport::default()
        }
    }

    fn faults(&self, config: &ListConfig, now: SystemTime) -> Vec<Warning> {
        let about =
            |event, problem: &str| Warning::about_guard(Self::KIND, &config.name, event, problem);
        let is_deprecated = match &self.list {
            ExactList::Badkeys(list) => list.is_deprecated,
            ExactList::Fingerprints(_) => false,
        };
        let deprecated = is_deprecated.then(|| {
            about(
                "the format of the list is deprecated, it may not be updated any more",
                "badkeysdata.json calls its format deprecated, so that it may not be updated any \
                 more; look for a newer keygate",
            )
        });
        let is_ageless = Self::settings(config).max_age.is_some() && self.age(now).is_none();
        let ageless = is_ageless.then(|| {
            let problem = match self.list.date() {
                None => {
                    "there is no badkeysdata.json with a date beside the file, so that its age \
                         is unknown; fetch it too, or remove max_age"
                        .to_owned()
                }
                Some(date) => format!(
                    "its date {} is in the future, so that its age is unknown; correct the clock, \
                     or fetch the list again",
                    dated(date)
                ),
            };
            about("the age of the list is unknown, it counts as stale", &problem)
        });
        let empty = self.list.is_empty().then(|| {
            about(
                "the list in use has no entries",
                "it has no entries, so no key is a hit; add keys with `keygate key --lists`, or \
                 remove the list",
            )
        });
        deprecated.into_iter().chain(ageless).chain(empty).collect()
    }

    fn log_loaded(&self, before: Option<u64>, untried: Option<&str>) {
        let signature = self.original.signature.as_deref();
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

    fn show_file(&self, metrics: &Self::Metrics) {
        let signature = self.original.signature.as_deref();
        let date = || self.list.date().map(utc).unwrap_or_default();
        let version = signature.map_or_else(date, FileSignature::comment);
        metrics.show_file(&self.original.sha256, &version);
    }
}

impl ListSource {
    /// The list in use.
    pub(crate) fn list(&self) -> &ExactList {
        &self.value().list
    }

    /// Forgets the text of a list of fingerprints if the copy with this id was written.
    pub(crate) fn forget_text_if(&mut self, is_kept: impl FnOnce(&str) -> bool) {
        let original = &self.value().original;
        if let Content::Fingerprints(Some(_)) = original.content
            && is_kept(&original.id())
        {
            self.file.get_mut().original.content = Content::Fingerprints(None);
        }
    }

    /// The list in use and the result of the last attempt to read it.
    pub(crate) fn report(&self) -> ListReport {
        let (format, updated) = match self.list() {
            ExactList::Badkeys(it) => ("badkeys", it.date),
            ExactList::Fingerprints(_) => ("fingerprints", None),
        };
        ListReport {
            name: self.name().to_owned(),
            path: self.path().display().to_string(),
            format,
            entries: self.list().len(),
            loaded: self.file.loaded_at(),
            updated,
            sha256: HEXLOWER.encode(&self.value().original.sha256),
            signature: self.value().original.signature.as_deref().map(SignatureReport::new),
            stale: self.is_stale,
            last_good_in_use: self.is_last_good,
            dry_run: self.gate.report(),
            last_reload: self.file.last_reload(),
        }
    }
}

/// The entries that an update lacks, if they are most of the entries in use.
pub(crate) fn lost(before: &ExactList, update: &ExactList) -> Option<WaitCause> {
    let (lost, in_use) = (before.difference(update)?.0 as u64, before.len() as u64);
    (lost > in_use / 2).then_some(WaitCause::Lost { lost, in_use })
}

//! The methods that filters and lists have in common: their files are read, checked, compared and
//! reported.

use std::fmt;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use crate::metrics::{ControlMetrics, GuardedFileMetrics};
use crate::saved_state::Watermark;
use crate::saved_state::file_record::FileRecord;
use crate::sources::check::dry_run::{DryRun, NewHits};
use crate::sources::context::LoadContext;
use crate::sources::failure::FileRejection;
use crate::sources::load_errors::LoadErrors;
use crate::sources::operator_decision::{GuardFile, WaitCause};
use crate::sources::report::WaitingReport;
use crate::sources::warning::Warning;

/// The value that is read from a file by which keys are judged.
pub(crate) trait GuardedFile: Clone + fmt::Debug {
    const KIND: GuardFile;
    /// Whether an update at a start is compared with the copy in the state directory. The record of a
    /// filter has the SHA-256 of its copy. A large copy is not read for the comparison.
    const COMPARES_WITH_COPY: bool;
    type Config: Clone + PartialEq + fmt::Debug;
    /// The content that was read from the file, before the checks of [`GuardedFile::check`].
    type Content;
    type Rejection: FileRejection;
    type Metrics: GuardedFileMetrics<<Self::Rejection as FileRejection>::Reason> + fmt::Debug;

    fn settings(config: &Self::Config) -> GuardedSettings<'_>;

    /// Paths of all files that are read.
    fn paths(config: &Self::Config) -> Vec<PathBuf>;

    fn metrics(metrics: &ControlMetrics, name: &str) -> Self::Metrics;

    /// Reads the file, in whose place `in_use` is used.
    fn read(
        config: &Self::Config,
        in_use: &dyn Fn() -> Option<Self>,
    ) -> Result<Self::Content, Self::Rejection>;

    /// Checks `content`, which must not be older than `watermark`.
    fn check(
        config: &Self::Config,
        content: Self::Content,
        watermark: Option<Watermark>,
        now: SystemTime,
    ) -> Result<Self, Self::Rejection>;

    /// The copy in the state directory, if there is one that passes every check. Logs why one cannot
    /// be used.
    fn copy(
        config: &Self::Config,
        record: Option<(&str, &FileRecord)>,
        context: LoadContext<'_>,
    ) -> Option<Self>;

    /// This value under new settings while an update waits; `None` if the file must be usable.
    fn under_new_settings(
        &self,
        config: &Self::Config,
        now: SystemTime,
    ) -> Result<Option<Self>, Self::Rejection>;

    /// The errors of a file that has no usable value. `file` is the configuration.
    fn errors(config: &Self::Config, error: Self::Rejection, file: Option<&Path>) -> LoadErrors;

    /// Whether `content` is the content of this value.
    fn has_content(&self, content: &Self::Content) -> bool;

    /// Whether `other` has the same keys.
    fn judges_like(&self, other: &Self) -> bool;

    /// Takes the signature of the same `content`, which may have been signed again.
    fn adopt(&mut self, content: Self::Content);

    fn sha256(&self) -> &[u8; 32];

    fn entries(&self) -> u64;

    fn watermark(&self) -> Option<Watermark>;

    /// Why `update` lost so much of this value that the operator must decide.
    fn lost(&self, update: &Self) -> Option<WaitCause>;

    /// The recent clients that this value would reject.
    fn new_hits(&self, dry_run: &DryRun) -> NewHits;

    /// This value as an update that waits.
    fn waiting(&self, entries_before: u64, hits: NewHits, max: Option<usize>) -> WaitingReport;

    /// The faults that an operator must mend, apart from the age.
    fn faults(&self, config: &Self::Config, now: SystemTime) -> Vec<Warning>;

    /// The warning that the value is older than `max_age`.
    fn overdue(&self, config: &Self::Config, now: SystemTime) -> Option<Warning>;

    /// Whether `max_age` is set, and the age is not known.
    fn is_ageless(&self, config: &Self::Config, now: SystemTime) -> bool;

    /// The warning that the copy is in use, because the file was rejected.
    fn copy_in_use(config: &Self::Config, rejection: &Self::Rejection) -> Warning;

    /// Logs the value, which replaces one with this number of entries.
    fn log_loaded(&self, before: Option<u64>, untried: Option<&str>);

    fn count_loaded(&self, metrics: &Self::Metrics, now: SystemTime);
}

/// The settings that filters and lists have in common.
#[derive(Debug, Clone, Copy)]
pub(crate) struct GuardedSettings<'a> {
    pub(crate) name: &'a str,
    pub(crate) path: &'a Path,
    pub(crate) max_new_hits: Option<usize>,
    /// Whether an update with few entries is used without the operator.
    pub(crate) may_shrink: bool,
}

//! The methods that filters and lists have in common: their files are read, checked, compared and
//! reported.

use std::fmt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use crate::metrics::{ControlMetrics, GuardedFileMetrics};
use crate::saved_state::Watermark;
use crate::saved_state::copies::{CopyKind, Original};
use crate::sources::check::dry_run::{DryRun, NewHits};
use crate::sources::file_rejection::FileRejection;
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
    type Metrics: GuardedFileMetrics + fmt::Debug;

    fn settings(config: &Self::Config) -> GuardedSettings<'_>;

    /// Paths of all files that are read.
    fn paths(config: &Self::Config) -> Vec<PathBuf>;

    fn metrics(metrics: &ControlMetrics, name: &str) -> Self::Metrics;

    /// Reads the file, in whose place `in_use` is used.
    fn read(
        config: &Self::Config,
        in_use: &dyn Fn() -> Option<Self>,
    ) -> Result<Self, FileRejection>;

    /// The kind of its copy in the state directory.
    fn copy_kind(config: &Self::Config) -> CopyKind;

    /// Reads the copy at `path` in the state directory.
    fn read_copy(config: &Self::Config, path: &Path) -> Result<Self, FileRejection>;

    /// Makes the checks that [`GuardedFile::read`] has not made. The value must not be older than
    /// `watermark`.
    fn check(
        &self,
        config: &Self::Config,
        watermark: Option<Watermark>,
        now: SystemTime,
    ) -> Result<(), FileRejection>;

    /// This value under new settings while an update waits; `None` if the file must be usable.
    fn under_new_settings(
        &self,
        config: &Self::Config,
        now: SystemTime,
    ) -> Result<Option<Self>, FileRejection>;

    /// Whether `other` has the same keys.
    fn judges_like(&self, other: &Self) -> bool;

    /// Takes the signature of `same`, which has the same keys and may have been signed again.
    fn adopt(&mut self, same: Self);

    fn sha256(&self) -> &[u8; 32];

    fn entries(&self) -> u64;

    fn watermark(&self) -> Option<Watermark>;

    /// The age; `None` if it is not known.
    fn age(&self, now: SystemTime) -> Option<Duration>;

    /// The bytes of the files, for their copies.
    fn original(&self) -> Original;

    /// Why `update` lost so much of this value that the operator must decide.
    fn lost(&self, update: &Self) -> Option<WaitCause>;

    /// The recent clients that this value would reject.
    fn new_hits(&self, dry_run: &DryRun) -> NewHits;

    /// This value as an update that waits, without its effect on clients.
    fn waiting(&self) -> WaitingReport;

    /// The faults that an operator must mend, apart from the age of a value with a date.
    fn faults(&self, config: &Self::Config, now: SystemTime) -> Vec<Warning>;

    /// Logs the value, which replaces one with this number of entries.
    fn log_loaded(&self, before: Option<u64>, untried: Option<&str>);

    fn count_loaded(&self, metrics: &Self::Metrics, now: SystemTime);

    /// Shows the file of the value, which may change while its keys stay. Only lists do.
    fn show_file(&self, _metrics: &Self::Metrics) {}
}

/// The settings that filters and lists have in common.
#[derive(Debug, Clone, Copy)]
pub(crate) struct GuardedSettings<'a> {
    pub(crate) name: &'a str,
    pub(crate) path: &'a Path,
    pub(crate) max_new_hits: Option<usize>,
    /// Whether an update with few entries is used without the operator.
    pub(crate) may_shrink: bool,
    pub(crate) max_age: Option<Duration>,
    pub(crate) canaries: &'a [PathBuf],
    /// Whether `keygate fetch` downloads the file.
    pub(crate) is_fetched: bool,
}

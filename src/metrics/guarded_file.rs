//! The series that filters and lists have in common.

use prometheus::{Gauge, IntCounter, IntCounterVec};

use super::labels::{Family, Label, ReloadResult};

/// The series of the checks of one file.
#[derive(Debug, Clone, Copy)]
pub struct FileChecks<'a> {
    pub(super) name: &'a str,
    pub(super) last_reload_successful: &'a Gauge,
    pub(super) reloads: &'a Family<ReloadResult, IntCounter>,
    pub(super) rejections: &'a IntCounterVec,
    /// Updates that an operator accepted although they failed a check.
    pub accepted: &'a IntCounter,
}

impl FileChecks<'_> {
    /// Counts a check after which the content is in use: the file was loaded, or is unchanged.
    pub fn record_usable(&self, result: ReloadResult) {
        self.last_reload_successful.set(1.0);
        self.reloads.of(result).inc();
    }

    /// Counts a rejected update.
    pub fn record_rejected(&self, reason: impl Label) {
        self.last_reload_successful.set(0.0);
        self.reloads.of(ReloadResult::Rejected).inc();
        self.rejections.with_label_values(&[self.name, reason.as_str()]).inc();
    }
}

/// The series that filters and lists have in common.
pub trait GuardedFileMetrics {
    /// The series of the checks of the file.
    fn checks(&self) -> FileChecks<'_>;

    /// Sets whether the value in use is older than its `max_age`, or of unknown age.
    fn set_stale(&self, is_stale: bool);

    /// Sets whether the value in use comes from the state directory. Lists have no such series.
    fn set_last_good_in_use(&self, _is_last_good: bool) {}

    /// Sets the number of recent clients that the value in use newly rejects; `None` if it was tried on
    /// none. Filters have no such series.
    fn set_new_hits(&self, _count: Option<usize>) {}
}

//! The context in which new sources are loaded.

use std::path::Path;
use std::time::SystemTime;

use super::ServiceIds;
use super::check::dry_run::DryRun;
use super::last_good::MaxWait;
use crate::config::Config;
use crate::metrics::ControlMetrics;
use crate::saved_state::SavedState;

/// The context in which new sources are loaded.
#[derive(Clone, Copy)]
pub(crate) struct LoadContext<'a> {
    pub(crate) metrics: &'a ControlMetrics,
    pub(crate) ids: &'a ServiceIds,
    pub(crate) state: &'a SavedState,
    /// The new configuration, whose services and authorizers are named.
    pub(crate) configured: &'a Config,
    /// The file of the new configuration, if it has one.
    pub(crate) file: Option<&'a Path>,
    /// The recent clients on which updates are checked.
    pub(crate) dry_run: &'a DryRun,
    /// Maximum time to wait for the writer of a file, for all new sources together.
    pub(crate) max_wait: &'a MaxWait,
    /// Whether the process starts, so that there are no recent clients.
    pub(crate) is_start: bool,
    pub(crate) now: SystemTime,
}

//! Checks a downloaded file as a reload would, before it replaces the file that the proxy reads.
//!
//! The file in use is the one at the configured path, if it is usable. With a readable state
//! directory, the newest filter that was in use counts as well. Recent clients are not known here,
//! so that `max_new_hits` is left to the proxy.

use std::path::Path;
use std::sync::Arc;
use std::time::SystemTime;

use super::check::check_filter;
use super::check::needs_operator::ensure_needs_no_operator;
use super::check::new_hits::{Judges, Trial};
use super::check::rollback::Watermark;
use super::error::ListFileError;
use super::rollback_state::{FilterRecord, RollbackState};
use super::source::filter::read as read_filter;
use super::source::list::read as read_list;
use crate::config::{FilterConfig, ListConfig};
use crate::guard::{ExactList, NamedFilter, RecentKeys};
use crate::snapshot::filter_rejection::FilterRejection;

/// How a filter with half of the entries in use or fewer is treated, which the proxy holds for the
/// operator.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ShrunkFilter {
    /// It passes.
    Allow,
    /// It is rejected.
    Refuse,
}

/// Checks the filter at `config.path`, which would replace the one at `current`.
///
/// # Errors
/// Returns the first check that the filter fails.
pub fn check_filter_candidate(
    config: &FilterConfig,
    current: &Path,
    state_dir: Option<&Path>,
    shrunk: ShrunkFilter,
) -> Result<Arc<NamedFilter>, FilterRejection> {
    let now = SystemTime::now();
    // Not an error: the proxy makes the same checks, and its user may be another one.
    let state = RollbackState::read(state_dir).unwrap_or_default();
    let record = state.filter(&config.name);
    let in_use = read_filter(&FilterConfig { path: current.to_owned(), ..config.clone() }).ok();
    let in_use = in_use.map(|read| *read.file.filter.header()); // the filter itself is dropped
    let watermark = in_use.as_ref().map(Watermark::from_header);
    let watermark = watermark.max(record.map(FilterRecord::watermark));
    let update = check_filter(config, read_filter(config)?, watermark, now)?;
    let entries =
        in_use.map_or_else(|| record.map(FilterRecord::entries), |it| Some(it.entry_count));
    match shrunk {
        ShrunkFilter::Allow => {}
        ShrunkFilter::Refuse => {
            let nobody = std::iter::empty();
            let trial = Trial::new(RecentKeys::default(), Judges::default(), now, nobody);
            ensure_needs_no_operator(config, &update.named, entries.unwrap_or(0), None, &trial)
                .map_err(|waits| waits.0)?;
        }
    }
    Ok(update.named)
}

/// Checks the list at `config.path`, which would replace the one at `current`.
///
/// # Errors
/// Returns the first check that the list fails.
pub fn check_list_candidate(
    config: &ListConfig,
    current: &Path,
) -> Result<ExactList, ListFileError> {
    let in_use = ListConfig { path: current.to_owned(), ..config.clone() };
    let in_use = || read_list(&in_use, || None).ok().map(|loaded| loaded.list);
    read_list(config, in_use).map(|loaded| loaded.list)
}

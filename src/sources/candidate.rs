//! Checks a downloaded file as a reload would, before it replaces the file that the proxy reads.
//!
//! The file in use is the one at the configured path, if it is usable. With a readable state
//! directory, the newest filter that was in use counts as well. Recent clients are not known here,
//! so that `max_new_hits` is left to the proxy.

use std::path::Path;
use std::sync::Arc;
use std::time::SystemTime;

use keygate_core::guard::{ExactList, NamedFilter};

use super::check::check_content;
use super::filter::read as read_filter;
use super::gate;
use super::list::{lost, read as read_list};
use crate::config::{FilterConfig, ListConfig, Shrink};
use crate::saved_state::Watermark;
use crate::saved_state::file_record::FileRecord;
use crate::saved_state::rollback_state::RollbackState;
use crate::sources::file_rejection::FileRejection;
use crate::sources::operator_decision::{GuardFile, NeedsOperator, WaitCause};

/// Checks the filter at `config.path`, which would replace the one at `current`.
///
/// # Errors
/// Returns the first check that the filter fails.
pub fn check_filter_candidate(
    config: &FilterConfig,
    current: &Path,
    state_dir: Option<&Path>,
    shrunk: Shrink,
) -> Result<Arc<NamedFilter>, FileRejection> {
    let now = SystemTime::now();
    // Not an error: the proxy makes the same checks, and its user may be another one.
    let state = RollbackState::read(state_dir).unwrap_or_default();
    let record = state.find(GuardFile::Filter, &config.name, current);
    let in_use = read_filter(&FilterConfig { path: current.to_owned(), ..config.clone() }).ok();
    // The filter itself is dropped.
    let in_use = in_use.map(|it| (*it.named.filter.header(), it.named.filter.explained_entries()));
    let watermark = in_use.as_ref().map(|(header, _)| Watermark::from_header(header));
    let watermark = watermark.max(record.map(FileRecord::watermark));
    let update = read_filter(config)?;
    check_content(config, &update.named.filter, watermark, now)?;
    let entries =
        in_use.map(|(_, entries)| entries).or_else(|| record.map(|record| record.entries));
    let cause = gate::shrunk(entries.unwrap_or(0), update.named.filter.explained_entries());
    ensure_allowed(shrunk, GuardFile::Filter, cause)?;
    Ok(update.named)
}

/// Checks the list at `config.path`, which would replace the one at `current`.
///
/// # Errors
/// Returns the first check that the list fails.
pub fn check_list_candidate(
    config: &ListConfig,
    current: &Path,
    shrunk: Shrink,
) -> Result<ExactList, FileRejection> {
    let in_use = ListConfig { path: current.to_owned(), min_records: 0, ..config.clone() };
    let in_use = read_list(&in_use, || None).ok().map(|loaded| loaded.list);
    let update = read_list(config, || in_use.clone())?.list;
    match config.shrink {
        Shrink::Allow => {}
        Shrink::Refuse => {
            let before = in_use.as_ref().map_or(0, ExactList::len) as u64;
            let cause = gate::shrunk(before, update.len() as u64);
            let cause = cause.or_else(|| lost(in_use.as_ref()?, &update));
            ensure_allowed(shrunk, GuardFile::List, cause)?;
        }
    }
    Ok(update)
}

/// Checks that there is no `cause` for which the proxy would hold the file for the operator, or that
/// such a file is allowed.
fn ensure_allowed(
    shrunk: Shrink,
    file: GuardFile,
    cause: Option<WaitCause>,
) -> Result<(), NeedsOperator> {
    match (shrunk, cause) {
        (Shrink::Refuse, Some(cause)) => Err(NeedsOperator::new(file, cause)),
        (Shrink::Allow, Some(_)) | (Shrink::Allow | Shrink::Refuse, None) => Ok(()),
    }
}

//! Whether a filter update needs the decision of an operator before it is used.

use std::sync::Arc;

use data_encoding::HEXLOWER;

use super::new_hits::{NewHits, Trial};
use crate::config::FilterConfig;
use crate::guard::NamedFilter;
use crate::snapshot::filter_rejection::FilterRejection;
use crate::snapshot::report::WaitingReport;

/// An update that waits, and the reason.
pub(crate) type Waits = Box<(FilterRejection, WaitingReport)>;

/// Checks that `update` can be used without an operator.
///
/// `entries` is the number of entries of the filter in use. `waiting` is the update that waits
/// already, if it is the same one. Its new hits count even if the recent clients have changed, so
/// that neither a restart nor the passing of time lets it through.
///
/// # Errors
/// Returns an error if the update has half of the entries in use or fewer, or more new hits than
/// `max_new_hits`.
pub(crate) fn ensure_needs_no_operator(
    config: &FilterConfig,
    update: &Arc<NamedFilter>,
    entries: u32,
    waiting: Option<&WaitingReport>,
    trial: &Trial,
) -> Result<(), Waits> {
    let mut new_hits = trial.new_hits(update);
    if let Some(waiting) = waiting.filter(|waiting| waiting.new_hits > new_hits.count) {
        new_hits = NewHits { count: waiting.new_hits, clients: waiting.clients.clone() };
    }
    let found = update.filter.header().entry_count;
    let rejection = if has_shrunk(entries, found) {
        FilterRejection::Shrunk { entries: found, in_use: entries }
    } else {
        match config.max_new_hits {
            Some(allowed) if new_hits.count > allowed => {
                FilterRejection::NewHits { new_hits: new_hits.count, allowed }
            }
            Some(_) | None => return Ok(()),
        }
    };
    let report = WaitingReport::new(update, new_hits.count, config.max_new_hits, new_hits.clients);
    Err(Box::new((rejection, report)))
}

/// Like [`ensure_needs_no_operator`] at a start, where no recent client is known and `in_use` is
/// the filter of the last run.
///
/// # Errors
/// Returns an error if the update has half of the entries in use or fewer, if it is the one that
/// waited, or if it is another one than the one that waited, because it cannot be tried.
pub(crate) fn ensure_needs_no_operator_at_start(
    config: &FilterConfig,
    update: &Arc<NamedFilter>,
    entries: u32,
    waiting: Option<&WaitingReport>,
    trial: &Trial,
) -> Result<(), Waits> {
    let result = ensure_needs_no_operator(config, update, entries, waiting, trial);
    let is_same = |waiting: &WaitingReport| waiting.sha256 == HEXLOWER.encode(&update.sha256);
    result.map_err(|mut waits| {
        if let (FilterRejection::NewHits { .. }, Some(waiting)) = (&waits.0, waiting)
            && !is_same(waiting)
        {
            waits.0 = FilterRejection::Untried { waiting: waiting.sha256.clone() };
        }
        waits
    })
}

/// Whether an update with `found` entries has half of the entries in use, or fewer.
fn has_shrunk(in_use: u32, found: u32) -> bool {
    in_use > 0 && u64::from(found) * 2 <= u64::from(in_use)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_filter_has_shrunk_if_half_of_its_entries_are_gone() {
        for (in_use, found, expected) in [
            (0, 0, false),
            (1, 0, true),
            (1, 1, false),
            (2, 1, true),
            (3, 2, false),
            (1000, 501, false),
            (1000, 500, true),
            (u32::MAX, u32::MAX, false),
            (u32::MAX, 0, true),
        ] {
            assert_eq!(has_shrunk(in_use, found), expected, "{in_use} {found}");
        }
    }
}

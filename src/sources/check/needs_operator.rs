//! Whether an update needs the decision of an operator before it is used.

use crate::sources::operator_decision::{GuardFile, NeedsOperator, WaitCause};
use crate::sources::report::WaitingReport;

/// An update that waits, and the reason.
pub(crate) type Waits = Box<(NeedsOperator, WaitingReport)>;

/// Checks that `update` can be used without an operator.
///
/// `cause` is a reason that other checks have found. `waiting` is the update that waits already, if
/// it is the same one, or, at a start, any update that waited when the last process ended. Its new
/// hits and the entries before it count even if the recent clients or the file in use have changed,
/// so that neither a restart nor the passing of time lets it through.
///
/// # Errors
/// Returns an error if there is a `cause`, if the update has half of the entries before it or fewer,
/// if its new hits and the new hits of the last seven days are more than `max_new_hits`, or if it
/// cannot be tried and another one waited.
pub(crate) fn ensure_needs_no_operator(
    file: GuardFile,
    mut update: WaitingReport,
    cause: Option<WaitCause>,
    waiting: Option<&WaitingReport>,
) -> Result<(), Waits> {
    if let Some(waiting) = waiting {
        update.entries_before = update.entries_before.max(waiting.entries_before);
        if waiting.new_hits > update.new_hits {
            (update.new_hits, update.clients) = (waiting.new_hits, waiting.clients.clone());
        }
        update.hits_before = update.hits_before.max(waiting.hits_before);
    }
    let too_many = || {
        let (new_hits, before, allowed) =
            (update.new_hits, update.hits_before, update.max_new_hits?);
        let is_over = new_hits > 0 && new_hits.saturating_add(before) > allowed;
        let other = waiting.filter(|waiting| waiting.sha256 != update.sha256);
        is_over.then(|| match other {
            Some(other) => WaitCause::Untried { waiting: other.sha256.clone() },
            None => WaitCause::NewHits { new_hits, before, allowed },
        })
    };
    let cause = cause.or_else(|| shrunk(update.entries_before, update.entries)).or_else(too_many);
    match cause {
        Some(cause) => Err(Box::new((NeedsOperator::new(file, cause), update))),
        None => Ok(()),
    }
}

/// The shrinking of a file to half of the entries `before` or fewer.
pub(crate) fn shrunk(before: u64, entries: u64) -> Option<WaitCause> {
    let is_shrunk = before > 0 && entries <= before / 2;
    is_shrunk.then_some(WaitCause::Shrunk { entries, before })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_has_shrunk_if_half_of_its_entries_are_gone() {
        for (before, entries, expected) in [
            (0, 0, false),
            (1, 0, true),
            (1, 1, false),
            (2, 1, true),
            (3, 2, false),
            (1000, 501, false),
            (1000, 500, true),
            (u64::MAX, u64::MAX, false),
            (u64::MAX, 0, true),
        ] {
            assert_eq!(shrunk(before, entries).is_some(), expected, "{before} {entries}");
        }
    }
}

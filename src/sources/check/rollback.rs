//! Whether a filter is newer than the last one in use, and not dated in the future.

use std::time::SystemTime;

use keygate_core::pkbf::Header;
use keygate_core::unix_time;

use crate::config::Rollback;
use crate::saved_state::Watermark;
use crate::sources::file_rejection::FileRejection;

/// Maximum time by which the date of a filter may lie in the future: one day, in seconds.
pub(crate) const MAX_CLOCK_SKEW: u64 = 86_400;

/// Checks that a filter is not dated more than [`MAX_CLOCK_SKEW`] after `now`. A forged date would
/// make every later update look older.
///
/// # Errors
/// Returns an error if the date is later.
pub(crate) fn ensure_not_from_the_future(
    header: &Header,
    now: SystemTime,
) -> Result<(), FileRejection> {
    let updated = header.updated_at;
    if updated > unix_time::seconds(now).saturating_add(MAX_CLOCK_SKEW) {
        return Err(FileRejection::Future { updated });
    }
    Ok(())
}

/// Checks that a filter is not older than the `watermark`.
///
/// # Errors
/// Returns an error if the filter is older and `rollback` is `"refuse"`.
pub(crate) fn ensure_not_older(
    rollback: Rollback,
    header: &Header,
    watermark: Option<Watermark>,
) -> Result<(), FileRejection> {
    match (rollback, watermark) {
        (Rollback::Refuse, Some(known)) if Watermark::from_header(header) < known => {
            Err(FileRejection::OlderFilter {
                revision: header.revision,
                updated: header.updated_at,
                known_revision: known.revision,
                known_updated: known.updated,
            })
        }
        (Rollback::Allow | Rollback::Refuse, _) => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_of_the_last_change_is_compared_before_the_revision() {
        let watermark = |updated, revision| Watermark { updated, revision };
        assert!(watermark(1, 9) < watermark(2, 1));
        assert!(watermark(2, 1) < watermark(2, 2));
    }
}

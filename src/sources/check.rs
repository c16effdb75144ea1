//! Checks a filter that was read, before it is put in use.

pub(crate) mod canary;
pub(crate) mod dry_run;

use std::time::SystemTime;

use keygate_core::pkbf::{Filter, Header};
use keygate_core::unix_time;
use tracing::warn;

use crate::config::{FilterConfig, Implausible, Rollback};
use crate::saved_state::Watermark;
use crate::sources::file_rejection::FileRejection;

/// Maximum time by which the date of a filter may lie in the future: one day, in seconds.
pub(crate) const MAX_CLOCK_SKEW: u64 = 86_400;

/// Checks `filter` against its own header, the `watermark` and the canaries.
///
/// # Errors
/// Returns the first check that the filter fails: time, rollback, plausibility, canaries, random
/// keys.
pub(crate) fn check_content(
    config: &FilterConfig,
    filter: &Filter,
    watermark: Option<Watermark>,
    now: SystemTime,
) -> Result<(), FileRejection> {
    let header = filter.header();
    ensure_not_from_the_future(header, now)?;
    ensure_not_older(config.rollback, header, watermark)?;
    ensure_plausible(config, filter)?;
    canary::ensure_canaries_hit(filter, &config.canaries)?;
    canary::ensure_random_keys_miss(filter)
}

/// Checks that a filter is not dated more than [`MAX_CLOCK_SKEW`] after `now`. A forged date would
/// make every later update look older.
fn ensure_not_from_the_future(header: &Header, now: SystemTime) -> Result<(), FileRejection> {
    let updated = header.updated_at;
    if updated > unix_time::seconds(now).saturating_add(MAX_CLOCK_SKEW) {
        return Err(FileRejection::Future { updated });
    }
    Ok(())
}

/// Checks that a filter is not older than the `watermark`, unless `rollback` is `"allow"`.
fn ensure_not_older(
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

/// Checks that the header of `filter` explains its bits, or logs a warning if `implausible` is
/// `"warn"`.
fn ensure_plausible(config: &FilterConfig, filter: &Filter) -> Result<(), FileRejection> {
    let plausibility = filter.plausibility();
    if plausibility.is_plausible() {
        return Ok(());
    }
    match config.implausible {
        Implausible::Refuse => Err(FileRejection::Plausibility(plausibility)),
        Implausible::Warn => {
            warn!(filter = %config.name, %plausibility, "the filter is implausible");
            Ok(())
        }
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

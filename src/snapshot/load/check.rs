//! Whether a filter that was read is to be believed, by all that can be known of it alone.

use std::sync::Arc;
use std::time::SystemTime;

use tracing::warn;

use super::mark::Watermark;
use super::{FilterRejection, canary, unix_seconds};
use crate::config::{FilterConfig, Implausible, Rollback};
use crate::guard::NamedFilter;
use crate::pkbf::{Filter, FilterFile, Header};

/// A date further ahead than this is not a clock that is a little wrong. In seconds.
pub(super) const AHEAD_AT_MOST: u64 = 86_400;

/// The filter in `file`, if nothing speaks against it.
pub(super) fn checked(
    config: &FilterConfig,
    file: FilterFile,
    mark: Option<Watermark>,
    now: SystemTime,
) -> Result<Arc<NamedFilter>, FilterRejection> {
    not_from_the_future(file.filter.header(), now)?;
    not_older(config.rollback, file.filter.header(), mark)?;
    plausible(config, &file.filter)?;
    canary::must_hit(&file.filter, &config.canaries)?;
    canary::random_must_miss(&file.filter)?;
    let sha256 = *file.sha256();
    Ok(Arc::new(NamedFilter { name: config.name.as_str().into(), filter: file.filter, sha256 }))
}

/// A forged date would make every honest update that follows look older.
fn not_from_the_future(header: &Header, now: SystemTime) -> Result<(), FilterRejection> {
    let updated = header.updated_at;
    if updated > unix_seconds(now).saturating_add(AHEAD_AT_MOST) {
        return Err(FilterRejection::Future { updated });
    }
    Ok(())
}

fn not_older(
    rollback: Rollback,
    header: &Header,
    mark: Option<Watermark>,
) -> Result<(), FilterRejection> {
    match (rollback, mark) {
        (Rollback::Refuse, Some(known)) if Watermark::of(header) < known => {
            Err(FilterRejection::Rollback {
                revision: header.revision,
                updated: header.updated_at,
                known_revision: known.revision,
                known_updated: known.updated,
            })
        }
        (Rollback::Allow | Rollback::Refuse, _) => Ok(()),
    }
}

fn plausible(config: &FilterConfig, filter: &Filter) -> Result<(), FilterRejection> {
    let plausibility = filter.plausibility();
    if plausibility.is_plausible() {
        return Ok(());
    }
    match config.implausible {
        Implausible::Refuse => Err(FilterRejection::Plausibility(plausibility)),
        Implausible::Warn => {
            warn!(filter = %config.name, %plausibility, "the filter is implausible");
            Ok(())
        }
    }
}

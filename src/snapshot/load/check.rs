//! Checks a filter that was read, before it is put in use.

pub(crate) mod canary;
pub(crate) mod new_hits;
pub(crate) mod plausibility;
pub(crate) mod rollback;

use std::sync::Arc;
use std::time::SystemTime;

use self::rollback::Watermark;
use crate::config::FilterConfig;
use crate::guard::NamedFilter;
use crate::pkbf::FilterFile;
use crate::snapshot::filter_rejection::FilterRejection;

/// Checks the filter in `file` against its own header, the `watermark` and the canaries.
///
/// # Errors
/// Returns the first check that the filter fails: time, rollback, plausibility, canaries, random
/// keys.
pub(crate) fn check_filter(
    config: &FilterConfig,
    file: FilterFile,
    watermark: Option<Watermark>,
    now: SystemTime,
) -> Result<Arc<NamedFilter>, FilterRejection> {
    let header = file.filter.header();
    rollback::ensure_not_from_the_future(header, now)?;
    rollback::ensure_not_older(config.rollback, header, watermark)?;
    plausibility::ensure_plausible(config, &file.filter)?;
    canary::ensure_canaries_hit(&file.filter, &config.canaries)?;
    canary::ensure_random_keys_miss(&file.filter)?;
    let sha256 = *file.sha256();
    Ok(Arc::new(NamedFilter { name: config.name.as_str().into(), filter: file.filter, sha256 }))
}

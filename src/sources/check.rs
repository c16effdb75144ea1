//! Checks a filter that was read, before it is put in use.

pub(crate) mod canary;
pub(crate) mod dry_run;
pub(crate) mod needs_operator;
pub(crate) mod plausibility;
pub(crate) mod rollback;

use std::sync::Arc;
use std::time::SystemTime;

use keygate_core::guard::NamedFilter;
use keygate_core::pkbf::Filter;

use crate::config::FilterConfig;
use crate::saved_state::Watermark;
use crate::sources::file_rejection::FileRejection;
use crate::sources::signed::{LoadedFilter, ReadFilter};

/// Checks a filter that was `read` as [`check_content`] does.
///
/// # Errors
/// Returns the first check that the filter fails.
pub(crate) fn check_filter(
    config: &FilterConfig,
    read: ReadFilter,
    watermark: Option<Watermark>,
    now: SystemTime,
) -> Result<LoadedFilter, FileRejection> {
    let ReadFilter { file, signature } = read;
    check_content(config, &file.filter, watermark, now)?;
    let (name, sha256) = (config.name.as_str().into(), *file.sha256());
    Ok(LoadedFilter {
        named: Arc::new(NamedFilter { name, filter: file.filter, sha256 }),
        signature,
    })
}

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
    rollback::ensure_not_from_the_future(header, now)?;
    rollback::ensure_not_older(config.rollback, header, watermark)?;
    plausibility::ensure_plausible(config, filter)?;
    canary::ensure_canaries_hit(filter, &config.canaries)?;
    canary::ensure_random_keys_miss(filter)
}

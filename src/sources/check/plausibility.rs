//! Whether the number of bits set in a filter fits its header.

use keygate_core::pkbf::Filter;
use tracing::warn;

use crate::config::{FilterConfig, Implausible};
use crate::sources::filter_rejection::FilterRejection;

/// Checks that the header of `filter` explains its bits, or logs a warning if `implausible` is
/// `"warn"`.
///
/// # Errors
/// Returns an error if the filter is implausible and `implausible` is `"refuse"`.
pub(crate) fn ensure_plausible(
    config: &FilterConfig,
    filter: &Filter,
) -> Result<(), FilterRejection> {
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

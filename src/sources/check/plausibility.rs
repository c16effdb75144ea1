//! Whether the number of bits set in a filter fits its header.

use keygate_core::pkbf::Filter;
use tracing::warn;

use crate::config::{FilterConfig, Implausible};
use crate::sources::file_rejection::FileRejection;

/// Checks that the header of `filter` explains its bits, or logs a warning if `implausible` is
/// `"warn"`.
///
/// # Errors
/// Returns an error if the filter is implausible and `implausible` is `"refuse"`.
pub(crate) fn ensure_plausible(
    config: &FilterConfig,
    filter: &Filter,
) -> Result<(), FileRejection> {
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

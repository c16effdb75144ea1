//! The table of the source of proofs as it is written.

use std::path::PathBuf;
use std::time::Duration;

use serde::Deserialize;

use super::super::number::Bounded;
use super::super::units::DurationText;

/// Number of questions a second.
pub(in crate::config) type QuestionRate = Bounded<u32, 1, 1000>;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(in crate::config) struct RawConfirm {
    pub(in crate::config) filters: Vec<String>,
    pub(in crate::config) url: Option<String>,
    pub(in crate::config) trust_anchors: Option<PathBuf>,
    pub(in crate::config) api_key: Option<PathBuf>,
    pub(in crate::config) proofs: Option<PathBuf>,
    pub(in crate::config) directory_is_complete: bool,
    pub(in crate::config) canary: PathBuf,
    pub(in crate::config) wait: DurationText,
    pub(in crate::config) timeout: DurationText,
    pub(in crate::config) cleared_ttl: DurationText,
    pub(in crate::config) stale_for: DurationText,
    pub(in crate::config) rate: QuestionRate,
}

impl Default for RawConfirm {
    fn default() -> Self {
        const DAY: Duration = Duration::from_secs(86_400);
        Self {
            filters: Vec::new(),
            url: None,
            trust_anchors: None,
            api_key: None,
            proofs: None,
            directory_is_complete: false,
            canary: PathBuf::from("published"),
            wait: DurationText(Duration::from_secs(2)),
            timeout: DurationText(Duration::from_secs(5)),
            cleared_ttl: DurationText(DAY),
            stale_for: DurationText(7 * DAY),
            rate: Bounded(1),
        }
    }
}

//! The table of the traces as it is written.

use std::path::PathBuf;
use std::time::Duration;

use serde::Deserialize;

use super::super::units::DurationText;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, expecting = "a table")]
pub(in crate::config) struct RawTraces {
    pub(in crate::config) endpoint: String,
    pub(in crate::config) trust_anchors: Option<PathBuf>,
    pub(in crate::config) headers: Option<PathBuf>,
    #[serde(default = "keygate")]
    pub(in crate::config) service_name: String,
    #[serde(default = "all")]
    pub(in crate::config) sample_one_in: u32,
    #[serde(default = "super::enabled")]
    pub(in crate::config) parent_based: bool,
    #[serde(default = "a_thousand")]
    pub(in crate::config) max_spans_per_second: u32,
    #[serde(default = "two_thousand")]
    pub(in crate::config) max_queue: usize,
    #[serde(default = "five_seconds")]
    pub(in crate::config) interval: DurationText,
    #[serde(default = "ten_seconds")]
    pub(in crate::config) timeout: DurationText,
}

fn keygate() -> String {
    "keygate".to_owned()
}

fn all() -> u32 {
    1
}

fn a_thousand() -> u32 {
    1000
}

fn two_thousand() -> usize {
    2048
}

fn five_seconds() -> DurationText {
    DurationText(Duration::from_secs(5))
}

fn ten_seconds() -> DurationText {
    DurationText(Duration::from_secs(10))
}

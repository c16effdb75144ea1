//! The table of the source of a file as it is written.

use std::path::PathBuf;
use std::time::Duration;

use serde::Deserialize;

use super::super::units::DurationText;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, expecting = "a table")]
pub(in crate::config) struct RawFetch {
    pub(in crate::config) url: String,
    pub(in crate::config) trust_anchors: Option<PathBuf>,
    pub(in crate::config) headers: Option<PathBuf>,
    pub(in crate::config) certificate: Option<PathBuf>,
    pub(in crate::config) private_key: Option<PathBuf>,
    pub(in crate::config) proxy: Option<String>,
    #[serde(default)]
    pub(in crate::config) redirect_hosts: Vec<String>,
    #[serde(default)]
    pub(in crate::config) checksum: bool,
    #[serde(default = "ten_seconds")]
    pub(in crate::config) connect_timeout: DurationText,
    #[serde(default = "half_a_minute")]
    pub(in crate::config) stall_timeout: DurationText,
    #[serde(default = "an_hour")]
    pub(in crate::config) timeout: DurationText,
}

fn ten_seconds() -> DurationText {
    DurationText(Duration::from_secs(10))
}

fn half_a_minute() -> DurationText {
    DurationText(Duration::from_secs(30))
}

fn an_hour() -> DurationText {
    DurationText(Duration::from_secs(60 * 60))
}

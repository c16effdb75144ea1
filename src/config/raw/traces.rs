//! The table of the traces as it is written.

use std::path::PathBuf;
use std::time::Duration;

use serde::Deserialize;

use super::super::number::Bounded;
use super::super::units::DurationText;

/// One of this many traces.
pub(in crate::config) type SampleRatio = Bounded<u32, 0, 1_000_000>;
/// Number of spans a second: the control thread encodes each.
pub(in crate::config) type SpanRate = Bounded<u32, 1, 100_000>;
/// Number of waiting requests: each takes at most 8 KiB, all of them 128 MiB.
pub(in crate::config) type QueueLength = Bounded<usize, 1, 16_384>;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, expecting = "a table")]
pub(in crate::config) struct RawTraces {
    pub(in crate::config) endpoint: String,
    pub(in crate::config) trust_anchors: Option<PathBuf>,
    pub(in crate::config) headers: Option<PathBuf>,
    #[serde(default = "keygate")]
    pub(in crate::config) service_name: String,
    #[serde(default = "all")]
    pub(in crate::config) sample_one_in: SampleRatio,
    #[serde(default = "super::enabled")]
    pub(in crate::config) parent_based: bool,
    #[serde(default = "a_thousand")]
    pub(in crate::config) max_spans_per_second: SpanRate,
    #[serde(default = "two_thousand")]
    pub(in crate::config) max_queue: QueueLength,
    #[serde(default = "five_seconds")]
    pub(in crate::config) interval: DurationText,
    #[serde(default = "ten_seconds")]
    pub(in crate::config) timeout: DurationText,
}

fn keygate() -> String {
    "keygate".to_owned()
}

fn all() -> SampleRatio {
    Bounded(1)
}

fn a_thousand() -> SpanRate {
    Bounded(1000)
}

fn two_thousand() -> QueueLength {
    Bounded(2048)
}

fn five_seconds() -> DurationText {
    DurationText(Duration::from_secs(5))
}

fn ten_seconds() -> DurationText {
    DurationText(Duration::from_secs(10))
}

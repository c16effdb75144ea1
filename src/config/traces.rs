//! The model of the traces.

use std::path::{Path, PathBuf};
use std::time::Duration;

use super::SourceUrl;

/// The export of traces to a collector of OpenTelemetry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TracesConfig {
    /// URL that batches are sent to, over OTLP/HTTP. The default of its path is `/v1/traces`.
    pub endpoint: SourceUrl,
    /// PEM file of the CAs that may issue the certificate of the collector. Required with
    /// `https://`.
    pub trust_anchors: Option<PathBuf>,
    /// File with header fields of each request to the collector.
    pub headers: Option<PathBuf>,
    /// `service.name` of this process. Default: keygate.
    pub service_name: String,
    /// One of this many traces is sampled; 0 samples none. Default: 1, all.
    pub sample_one_in: u32,
    /// Whether a client's `traceparent` decides about its trace. Default: true.
    pub parent_based: bool,
    /// Maximum number of spans a second of the process; requests above it are not sampled. Default:
    /// 1000.
    pub max_spans_per_second: u32,
    /// Maximum number of requests whose spans wait for the exporter; the spans of further ones are
    /// dropped. Default: 2048.
    pub max_queue: usize,
    /// Maximum time until the spans of a request are exported. Default: 5 s.
    pub interval: Duration,
    /// Maximum time for one export. Default: 10 s.
    pub timeout: Duration,
}

impl TracesConfig {
    /// The files that the table names.
    pub(super) fn files(&self) -> impl Iterator<Item = &Path> {
        let files = [self.trust_anchors.as_ref(), self.headers.as_ref()];
        files.into_iter().flatten().map(PathBuf::as_path)
    }
}

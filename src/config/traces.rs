//! The model of the traces.

use std::path::{Path, PathBuf};
use std::time::Duration;

use super::SourceUrl;
use super::keys::table;
use super::texts::ResourceName;
use super::units::{Bounded, Positive};
use super::urls::Endpoint;

/// One of this many traces.
type SampleRatio = Bounded<u32, 0, 1_000_000>;
/// Number of spans a second: the control thread encodes each.
type SpanRate = Bounded<u32, 1, 100_000>;
/// Number of waiting requests: each takes at most 8 KiB, all of them 128 MiB.
type QueueLength = Bounded<usize, 1, 16_384>;

table! {
    /// The export of traces to a collector of OpenTelemetry.
    #[derive(Clone, PartialEq, Eq)]
    pub struct TracesConfig "Spans for OpenTelemetry, sent over OTLP/HTTP ([traces](traces.md)). Without the table, nothing is traced. Packages and images can export traces; a build without the cargo feature `opentelemetry` rejects the table.", check {
        pub endpoint: SourceUrl as Endpoint => Restart
            "URL of the collector: `https://HOST:4318`, or `http://`, which sends spans in clear text. Without a path: `/v1/traces`. A user, a password and a query are errors, and no message shows them; credentials belong in `headers`.",
        pub trust_anchors: Option<PathBuf> => Restart
            "PEM file of the CAs that may issue the certificate of the collector. Required with `https://`.",
        pub headers: Option<PathBuf> => Restart
            "File with header fields for the collector, such as `Authorization: Bearer KEY`, one a line. The same permissions are expected as for a private key. Needs `https://`, or `http://` to this machine.",
        pub service_name: String as ResourceName = "keygate" => Restart
            "The attribute `service.name` of the process. 1 to 255 bytes.",
        pub sample_one_in: u32 as SampleRatio = 1 => Restart
            "One of this many traces that begin at keygate is sampled. 1: all. 0: none.",
        pub parent_based: bool = true => Restart
            "`true`: a request with a valid `traceparent` is sampled if its client has sampled it. `false`: `sample_one_in` decides about these requests, too.",
        pub max_spans_per_second: u32 as SpanRate = 1000 => Restart
            "Maximum number of spans a second, in equal parts for the workers. A request above it is not sampled. Each request counts as two spans.",
        pub max_queue: usize as QueueLength = 2048 => Restart
            "Maximum number of requests whose spans wait for the export, at most 8 KiB each. The spans of further requests are dropped.",
        pub interval: Duration as Positive = "5s" => Restart
            "Maximum time until a span is sent. 512 requests are sent at once.",
        pub timeout: Duration as Positive = "10s" => Restart
            "Maximum time for one export, from the look-up of the name to the last byte.",
    }
}

impl TracesConfig {
    /// The files that the table names.
    pub(super) fn files(&self) -> impl Iterator<Item = &Path> {
        let files = [self.trust_anchors.as_ref(), self.headers.as_ref()];
        files.into_iter().flatten().map(PathBuf::as_path)
    }
}

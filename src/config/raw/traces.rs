//! The table of the traces as it is written.

use std::path::PathBuf;

/// One of this many traces.
pub(in crate::config) type SampleRatio = Bounded<u32, 0, 1_000_000>;
/// Number of spans a second: the control thread encodes each.
pub(in crate::config) type SpanRate = Bounded<u32, 1, 100_000>;
/// Number of waiting requests: each takes at most 8 KiB, all of them 128 MiB.
pub(in crate::config) type QueueLength = Bounded<usize, 1, 16_384>;

use super::super::keys::table;
use super::super::units::{Bounded, Positive};

table! {
    pub(in crate::config) struct RawTraces "Spans for OpenTelemetry, sent over OTLP/HTTP ([traces](traces.md)). Without the table, nothing is traced. Packages and images can export traces; a build without the cargo feature `opentelemetry` rejects the table." {
        pub(in crate::config) endpoint: String => Restart
            "URL of the collector: `https://HOST:4318`, or `http://`, which sends spans in clear text. Without a path: `/v1/traces`. A user, a password and a query are errors, and no message shows them; credentials belong in `headers`.",
        pub(in crate::config) trust_anchors: Option<PathBuf> => Restart
            "PEM file of the CAs that may issue the certificate of the collector. Required with `https://`.",
        pub(in crate::config) headers: Option<PathBuf> => Restart
            "File with header fields for the collector, such as `Authorization: Bearer KEY`, one a line. The same permissions are expected as for a private key. Needs `https://`, or `http://` to this machine.",
        pub(in crate::config) service_name: String = "keygate" => Restart
            "The attribute `service.name` of the process. 1 to 255 bytes.",
        pub(in crate::config) sample_one_in: SampleRatio = 1 => Restart
            "One of this many traces that begin at keygate is sampled. 1: all. 0: none.",
        pub(in crate::config) parent_based: bool = true => Restart
            "`true`: a request with a valid `traceparent` is sampled if its client has sampled it. `false`: `sample_one_in` decides about these requests, too.",
        pub(in crate::config) max_spans_per_second: SpanRate = 1000 => Restart
            "Maximum number of spans a second, in equal parts for the workers. A request above it is not sampled. Each request counts as two spans.",
        pub(in crate::config) max_queue: QueueLength = 2048 => Restart
            "Maximum number of requests whose spans wait for the export, at most 8 KiB each. The spans of further requests are dropped.",
        pub(in crate::config) interval: Positive = "5s" => Restart
            "Maximum time until a span is sent. 512 requests are sent at once.",
        pub(in crate::config) timeout: Positive = "10s" => Restart
            "Maximum time for one export, from the look-up of the name to the last byte.",
    }
}

//! The series of the traces: one set for each worker, of which the exporter uses the first.

use prometheus::IntCounter;

use super::labels::{Family, SpanDrop};
use super::series::series;

series! {
    /// The series of the traces.
    pub struct TraceMetrics, TraceSeries {
        pub exported: IntCounter = "trace_spans_exported_total"[]
            "Spans that the collector has taken.",
        pub dropped: Family<SpanDrop, IntCounter> = "trace_spans_dropped_total"["reason"]
            "Spans of sampled requests that were not exported, by reason.",
    }
}

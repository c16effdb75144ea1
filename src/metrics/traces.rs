//! The series of the traces: one set for each worker, of which the exporter uses the first.

use prometheus::{IntCounter, Registry};

use super::labels::{Family, SpanDrop};
use super::{counter, counters};

/// The series of the traces.
#[derive(Debug, Clone)]
pub struct TraceMetrics {
    /// Spans that the collector has taken.
    pub exported: IntCounter,
    /// Spans that are lost.
    pub dropped: Family<SpanDrop, IntCounter>,
}

impl TraceMetrics {
    #[rustfmt::skip] // a table
    pub(super) fn register(registry: &Registry) -> Result<Self, prometheus::Error> {
        let dropped = counters(registry, "trace_spans_dropped_total", "Spans of sampled requests that were not exported, by reason.", &["reason"])?;
        Ok(Self {
            exported: counter(registry, "trace_spans_exported_total", "Spans that the collector has taken.")?,
            dropped: Family::from_vec(&dropped, &[]),
        })
    }
}

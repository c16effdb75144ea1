//! Losses of the process: lines of the logs, spans, writes in the state directory.

use std::collections::BTreeMap;

use super::counters::{growth, value};
use crate::metrics::{Label, Scrape, SpanDrop};

/// Counters of what was lost, since the start or since an earlier moment.
#[derive(Debug, Clone, Default)]
pub(super) struct Losses {
    /// Lines that were dropped, by log.
    pub(super) log_lines: BTreeMap<String, f64>,
    /// Spans that were not exported, by reason. Spans above `max_spans_per_second` are left out,
    /// because that limit is configured.
    pub(super) spans: BTreeMap<String, f64>,
    /// Failed writes in the state directory.
    pub(super) state_writes: f64,
}

impl Losses {
    /// The losses since the start.
    pub(super) fn new(scrape: &Scrape) -> Self {
        let mut spans = scrape.sums("keygate_trace_spans_dropped_total", "reason");
        spans.remove(SpanDrop::Rate.as_str());
        Self {
            log_lines: scrape.sums("keygate_log_lines_dropped_total", "log"),
            spans,
            state_writes: value(scrape, "keygate_state_write_failures_total"),
        }
    }

    /// The losses since they were `before`.
    pub(super) fn since(&self, before: &Self) -> Self {
        Self {
            log_lines: growth(&self.log_lines, &before.log_lines),
            spans: growth(&self.spans, &before.spans),
            state_writes: self.state_writes - before.state_writes,
        }
    }
}

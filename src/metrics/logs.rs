//! The series of the logs, which start before the rest of the process.

use prometheus::{IntCounter, IntCounterVec};

use super::labels::{Family, LogName};
use super::series::{Handle, Series};
use crate::log_writer::DroppedLines;

/// The series of the logs.
#[derive(Debug, Clone)]
pub struct LogMetrics {
    pub(super) collector: IntCounterVec,
    dropped: Family<LogName, IntCounter>,
}

impl LogMetrics {
    /// Makes the series, at zero. They become part of an exposition by
    /// [`ControlMetrics::with_logs`](super::ControlMetrics::with_logs).
    ///
    /// # Errors
    /// Returns an error if the name or the labels are invalid.
    pub fn new() -> Result<Self, prometheus::Error> {
        let collector = IntCounterVec::collector(&Series {
            name: "log_lines_dropped_total",
            labels: &["log"],
            buckets: &[],
            help: "Lines that were dropped because the reader of the log stalled or was gone.",
        })?;
        Ok(Self { dropped: Handle::resolve(&collector, &[]), collector })
    }

    /// The counters of the log on standard error.
    #[must_use]
    pub fn main_log(&self) -> DroppedLines {
        DroppedLines {
            ordinary: self.dropped.of(LogName::Main).clone(),
            security: self.dropped.of(LogName::Security).clone(),
        }
    }

    /// The counters of the access log, whose lines are all of one class.
    #[must_use]
    pub fn access_log(&self) -> DroppedLines {
        let access = self.dropped.of(LogName::Access);
        DroppedLines { ordinary: access.clone(), security: access.clone() }
    }
}

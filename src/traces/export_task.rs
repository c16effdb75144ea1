//! The task of the control thread that exports spans in batches.

use std::mem;
use std::time::{Duration, Instant};

use tokio::sync::{mpsc, oneshot};
use tokio::time::timeout;
use tracing::{info, warn};

use super::export_files::{ExportFiles, TracesError};
use super::exporter::{ExportError, Exporter};
use super::finished_request::FinishedRequest;
use super::tracer::SpanQueue;
use super::{TARGET, otlp};
use crate::config::{SourceUrl, TracesConfig};
use crate::metrics::{SpanDrop, TraceMetrics};
use crate::resolver::Resolver;
use crate::sources::{ExposedKeyFile, Warning};

/// Maximum number of requests in a batch.
const MAX_BATCH: usize = 512;
/// Interval in which the queue is emptied into the next batch, 100 ms. A worker that adds spans
/// wakes nobody, because that would be a system call.
const POLL_INTERVAL: Duration = Duration::from_millis(100);
/// Maximum number of attempts to send a batch.
const MAX_ATTEMPTS: u32 = 3;
/// Pause after a failed attempt, 1 s; doubled after the next one.
const BACK_OFF: Duration = Duration::from_secs(1);
/// Minimum interval between two lines about failed exports, 1 min.
const LOG_INTERVAL: Duration = Duration::from_secs(60);
/// Maximum time for the rest of the spans at the end of the process, 2 s.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(2);

/// Exports the spans of all workers.
#[derive(Debug)]
pub struct ExportTask {
    exporter: Exporter,
    interval: Duration,
    resource: otlp::Resource,
    queue: mpsc::Receiver<FinishedRequest>,
    /// The requests that were taken from the queue, and were not exported yet.
    batch: Vec<FinishedRequest>,
    metrics: TraceMetrics,
    log: FailureLog,
    flush: (mpsc::Sender<oneshot::Sender<()>>, mpsc::Receiver<oneshot::Sender<()>>),
    /// Gets a value when nothing waits any more; set at the end of the process.
    ending: Option<oneshot::Sender<()>>,
}

/// Exports the rest of the spans at the end of the process.
#[derive(Debug)]
pub struct TraceFlusher {
    requests: mpsc::Sender<oneshot::Sender<()>>,
    /// URL of the collector, for the log.
    endpoint: String,
}

impl ExportTask {
    /// Reads the files that `config` names. Returns the queue for the workers as well. Blocks.
    ///
    /// # Errors
    /// Returns an error if a file cannot be used.
    pub fn new(
        config: &TracesConfig,
        metrics: TraceMetrics,
        resolver: Resolver,
    ) -> Result<(Self, SpanQueue), TracesError> {
        let files = ExportFiles::read(config)?;
        if let Some(exposed) = &files.exposed {
            Warning::unsafe_permissions(exposed).log();
        }
        let (sender, queue) = SpanQueue::new(config);
        let task = Self {
            exporter: Exporter::new(config.clone(), files, resolver),
            interval: config.interval,
            resource: otlp::resource(&config.service_name),
            queue,
            batch: Vec::new(),
            metrics,
            log: FailureLog::new(&config.endpoint),
            flush: mpsc::channel(1),
            ending: None,
        };
        Ok((task, sender))
    }

    /// Checks the files that `config` names. Returns one with unsafe permissions. Blocks.
    ///
    /// # Errors
    /// Returns an error if a file cannot be used.
    pub fn check(config: &TracesConfig) -> Result<Option<ExposedKeyFile>, TracesError> {
        Ok(ExportFiles::read(config)?.exposed)
    }

    /// Exports the rest of the spans at the end of the process.
    #[must_use]
    pub fn flusher(&self) -> TraceFlusher {
        TraceFlusher { requests: self.flush.0.clone(), endpoint: self.log.endpoint.clone() }
    }

    /// Exports until the process ends.
    pub async fn run(mut self) {
        let mut exported_at = Instant::now();
        loop {
            self.fill();
            let is_due = self.is_ending() || exported_at.elapsed() >= self.interval;
            if self.batch.len() >= MAX_BATCH || (is_due && !self.batch.is_empty()) {
                self.export().await;
                exported_at = Instant::now();
            } else if let Some(flushed) = self.ending.take() {
                let _ = flushed.send(()); // the process may have ended without waiting
            } else {
                self.pause(POLL_INTERVAL).await;
            }
        }
    }

    /// Moves requests from the queue into the batch, as far as it has room.
    fn fill(&mut self) {
        while self.batch.len() < MAX_BATCH
            && let Ok(request) = self.queue.try_recv()
        {
            self.batch.push(request);
        }
    }

    /// Whether the process ends: nothing waits for the interval or for another attempt.
    fn is_ending(&mut self) -> bool {
        if let Ok(ending) = self.flush.1.try_recv() {
            self.ending = Some(ending);
        }
        self.ending.is_some()
    }

    /// Waits for this long, or until the process ends.
    async fn pause(&mut self, time: Duration) {
        if let Ok(ending) = timeout(time, self.flush.1.recv()).await {
            self.ending = ending;
        }
    }

    /// Sends the batch, up to [`MAX_ATTEMPTS`] times. It is dropped if it does not arrive.
    async fn export(&mut self) {
        let encoded = otlp::encode(&self.resource, &self.batch);
        let mut back_off = BACK_OFF;
        for attempt in 1..=MAX_ATTEMPTS {
            match self.exporter.send(encoded.clone()).await {
                Ok(rejected) => return self.end_with(rejected),
                Err(error) => {
                    let is_last = attempt == MAX_ATTEMPTS || !error.is_temporary();
                    if is_last || self.is_ending() {
                        return self.drop_batch(&error);
                    }
                    self.log.failed(&error, 0);
                }
            }
            self.pause(back_off).await;
            back_off *= 2;
        }
    }

    /// Ends a batch of which the collector has taken all spans but these.
    fn end_with(&mut self, rejected: u64) {
        let spans = self.take_batch();
        let rejected = rejected.min(spans);
        self.metrics.exported.inc_by(spans - rejected);
        self.metrics.dropped.of(SpanDrop::Rejected).inc_by(rejected);
        self.log.succeeded(rejected);
    }

    fn drop_batch(&mut self, error: &ExportError) {
        let spans = self.take_batch();
        self.metrics.dropped.of(SpanDrop::Export).inc_by(spans);
        self.log.failed(error, spans);
    }

    /// Empties the batch, and returns its number of spans.
    fn take_batch(&mut self) -> u64 {
        mem::take(&mut self.batch).iter().map(FinishedRequest::spans).sum()
    }
}

impl TraceFlusher {
    /// Exports what waits, for at most `FLUSH_TIMEOUT`.
    pub async fn flush(&self) {
        let (ending, flushed) = oneshot::channel();
        let flush = async {
            if self.requests.send(ending).await.is_ok() {
                let _ = flushed.await; // an error means that the control thread has ended
            }
        };
        if timeout(FLUSH_TIMEOUT, flush).await.is_err() {
            let (endpoint, error) = (&self.endpoint, ExportError::Timeout(FLUSH_TIMEOUT));
            warn!(target: TARGET, %endpoint, %error, "traces cannot be exported");
        }
    }
}

/// Log lines about failed exports, limited in rate.
#[derive(Debug)]
struct FailureLog {
    endpoint: String,
    /// `None` before the first line.
    logged_at: Option<Instant>,
    /// Spans that were dropped since the last line.
    spans: u64,
    /// Whether the last line reports a failure.
    is_failing: bool,
}

impl FailureLog {
    fn new(endpoint: &SourceUrl) -> Self {
        Self { endpoint: endpoint.to_string(), logged_at: None, spans: 0, is_failing: false }
    }

    fn failed(&mut self, error: &dyn std::error::Error, spans: u64) {
        self.spans = self.spans.saturating_add(spans);
        if self.logged_at.is_some_and(|logged_at| logged_at.elapsed() < LOG_INTERVAL) {
            return;
        }
        let (endpoint, dropped) = (&self.endpoint, self.spans);
        warn!(target: TARGET, %endpoint, %error, dropped, "traces cannot be exported");
        (self.logged_at, self.spans, self.is_failing) = (Some(Instant::now()), 0, true);
    }

    fn succeeded(&mut self, rejected: u64) {
        if rejected > 0 {
            return self.failed(&Rejected, rejected);
        }
        if self.is_failing {
            let dropped = std::mem::take(&mut self.spans);
            info!(target: TARGET, dropped, "traces are exported again");
            self.is_failing = false;
        }
    }
}

/// The collector has rejected a part of the spans.
#[derive(Debug, thiserror::Error)]
#[error("the collector has rejected spans")]
struct Rejected;

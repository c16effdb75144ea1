//! The part of tracing on the data path: which requests are sampled, and the queue of their spans.

use std::cell::Cell;
use std::rc::Rc;
use std::time::{Duration, Instant};

use hyper::HeaderMap;
use keygate_wire::permit::ClientKey;
use tokio::sync::mpsc;

use super::context::{RemoteParent, RequestTrace, TraceId};
use super::finished_request::FinishedRequest;
use crate::config::TracesConfig;
use crate::metrics::{SpanDrop, TraceMetrics};

/// Number of spans that `max_spans_per_second` counts for a request: its own, and the upstream's.
const SPANS_OF_REQUEST: u64 = 2;
/// Number of shares of clients. Clients with one hash have one share.
const SHARES: usize = 256;
/// Maximum time for which a worker saves up unused spans of `max_spans_per_second`.
const BURST: Duration = Duration::from_secs(1);

/// The queue of sampled requests between the workers and the exporter.
#[derive(Debug, Clone)]
pub struct SpanQueue(mpsc::Sender<FinishedRequest>);

impl SpanQueue {
    /// A queue for `config`, and its other end.
    pub(super) fn new(config: &TracesConfig) -> (Self, mpsc::Receiver<FinishedRequest>) {
        let (sender, receiver) = mpsc::channel(config.max_queue);
        (Self(sender), receiver)
    }
}

/// Begins the traces of one worker.
#[derive(Debug)]
pub(crate) struct Tracer {
    sample_one_in: u64,
    parent_based: bool,
    budget: SpanBudget,
    /// The parts of the budget that one client may use, by a secret hash of the client.
    shares: Vec<SpanBudget>,
    queue: SpanQueue,
    metrics: TraceMetrics,
}

impl Tracer {
    /// The tracer of one of `workers` workers, each of which has its part of
    /// `max_spans_per_second`.
    pub(crate) fn new(
        config: &TracesConfig,
        queue: SpanQueue,
        metrics: TraceMetrics,
        workers: usize,
    ) -> Rc<Self> {
        let budget = SpanBudget::new(config.max_spans_per_second, workers);
        Rc::new(Self {
            sample_one_in: config.sample_one_in.into(),
            parent_based: config.parent_based,
            shares: (0..SHARES).map(|_| budget.share()).collect(),
            budget,
            queue,
            metrics,
        })
    }

    /// Continues the trace in the header fields of a trusted peer, or begins one, and decides
    /// whether it is sampled.
    pub(crate) fn begin(
        &self,
        trusted: Option<&HeaderMap>,
        client: ClientKey,
        now: Instant,
    ) -> RequestTrace {
        let parent = trusted.and_then(RemoteParent::from_headers);
        RequestTrace::new(parent, |trace| self.samples(parent, trace, client, now))
    }

    fn samples(
        &self,
        parent: Option<RemoteParent>,
        trace: &TraceId,
        client: ClientKey,
        now: Instant,
    ) -> bool {
        let is_chosen = match parent {
            Some(parent) if self.parent_based => parent.is_sampled,
            Some(_) | None => is_in_sample(trace, self.sample_one_in),
        };
        let share = self.shares.get(client.place(self.shares.len()));
        let takes = |budget: &SpanBudget| budget.take(SPANS_OF_REQUEST, now);
        if is_chosen && !(share.is_some_and(takes) && takes(&self.budget)) {
            self.metrics.dropped.of(SpanDrop::Rate).inc_by(SPANS_OF_REQUEST);
            return false;
        }
        is_chosen
    }

    /// Hands the spans of a request to the exporter. Drops them if the queue is full.
    pub(crate) fn finish(&self, mut request: FinishedRequest) {
        request.truncate();
        if let Err(error) = self.queue.0.try_send(request) {
            let spans = error.into_inner().spans();
            self.metrics.dropped.of(SpanDrop::Queue).inc_by(spans);
        }
    }
}

/// Whether one of `one_in` traces includes this one. The first 63 of the last 64 bits of its id
/// decide, as in the sampler `TraceIdRatioBased` of OpenTelemetry, so that other services with the
/// same ratio agree.
fn is_in_sample(trace: &TraceId, one_in: u64) -> bool {
    let [.., a, b, c, d, e, f, g, h] = *trace;
    let random = u64::from_be_bytes([a, b, c, d, e, f, g, h]) >> 1;
    (1_u64 << 63).checked_div(one_in).is_some_and(|bound| random < bound)
}

/// The part of `max_spans_per_second` of one worker.
#[derive(Debug)]
struct SpanBudget {
    /// Time in which one span may begin.
    interval: Duration,
    /// The spans that began use up the time until then.
    used_until: Cell<Option<Instant>>,
}

impl SpanBudget {
    fn new(max_per_second: u32, workers: usize) -> Self {
        let workers = u32::try_from(workers).unwrap_or(u32::MAX).max(1);
        let interval = Duration::from_secs(1).saturating_mul(workers) / max_per_second.max(1);
        Self { interval, used_until: Cell::new(None) }
    }

    /// Three quarters of this budget, for one client.
    fn share(&self) -> Self {
        Self { interval: self.interval * 4 / 3, used_until: Cell::new(None) }
    }

    /// Takes `spans`; returns whether they may begin.
    fn take(&self, spans: u64, now: Instant) -> bool {
        let used_until = self.used_until.get().map_or(now, |until| until.max(now));
        // A span may begin as long as less than a second is used up in advance.
        if used_until.saturating_duration_since(now) >= BURST {
            return false;
        }
        let spans = u32::try_from(spans).unwrap_or(u32::MAX);
        self.used_until.set(Some(used_until + self.interval.saturating_mul(spans)));
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::traces::context::new_trace_id;

    #[test]
    fn one_of_n_traces_is_sampled_and_other_services_choose_the_same() {
        let ids: Vec<_> = (0..100_000).map(|_| new_trace_id()).collect();
        let sampled = |one_in: u64| ids.iter().filter(|id| is_in_sample(id, one_in)).count();
        assert_eq!((sampled(0), sampled(1)), (0, ids.len()));
        // The standard deviation is 95.
        assert!((9_000..11_000).contains(&sampled(10)), "{}", sampled(10));
        // OpenTelemetry: the trace is sampled if the 63 bits are less than ratio * 2^63.
        let id = |low: u64| u128::from(low << 1).to_be_bytes();
        let bound = (1_u64 << 63) / 4;
        assert!(is_in_sample(&id(bound - 1), 4) && !is_in_sample(&id(bound), 4));
    }

    #[test]
    fn a_client_uses_three_quarters_of_the_spans_at_most() {
        let began = Instant::now();
        let budget = SpanBudget::new(40, 1);
        let [share, other] = [budget.share(), budget.share()];
        let taken = |share: &SpanBudget| {
            (0..100).filter(|_| share.take(2, began) && budget.take(2, began)).count()
        };
        assert_eq!((taken(&share), taken(&other)), (16, 4));
    }

    #[test]
    fn spans_above_the_rate_wait_for_no_one() {
        let began = Instant::now();
        // 10 spans a second for each of two workers.
        let budget = SpanBudget::new(20, 2);
        let burst = (0..100).filter(|_| budget.take(2, began)).count();
        assert_eq!(burst, 5, "a second's spans at once");
        assert!(!budget.take(2, began));
        let later = began + Duration::from_millis(200);
        assert!(budget.take(2, later), "two spans a fifth of a second");
        assert!(!budget.take(2, later));
        // Unused spans are saved up for a second only.
        let much_later = began + Duration::from_secs(3600);
        assert_eq!((0..100).filter(|_| budget.take(2, much_later)).count(), 5);
    }
}

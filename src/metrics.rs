//! All metrics of keygate as typed handles, named in this one place.
//!
//! Each worker has its own registry, so that counting is an uncontended addition. A scrape sums the
//! registries ([`Exposition`]). Handles are resolved once, not for each request. Series exist from
//! the start, at zero. Label values come from enums and the configuration, never from a client.
//! [`Label`] is implemented here for enums of rooms that this room uses. A room that uses this one
//! defines its own labels with the macro `labels`.

mod authorizer;
mod confirm;
mod control;
mod exposition;
mod file_checks;
mod filter;
mod gauges;
mod labels;
mod list;
mod logs;
mod scrape;
mod traces;
mod worker;

pub use authorizer::AuthorizerMetrics;
pub use confirm::ConfirmMetrics;
pub use control::ControlMetrics;
pub use exposition::Exposition;
pub use file_checks::{FileChecks, GuardedFileMetrics};
pub use filter::FilterMetrics;
pub(crate) use labels::labels;
pub use labels::{
    CodeClass, ConfirmationResult, ConnectionResult, Family, KeyAction, KeyAlgorithm, Label,
    LogName, NameResult, OwnStatus, QuestionResult, ReloadResult, SpanDrop, UpstreamFailure,
    WaitOutcome,
};
pub use list::ListMetrics;
pub use logs::LogMetrics;
pub use scrape::{Buckets, ByService, Scrape};
pub use traces::TraceMetrics;
pub use worker::{ServiceMetrics, WorkerMetrics};

use prometheus::core::{Collector, GenericCounter, GenericCounterVec};
use prometheus::{IntCounter, IntCounterVec, Opts, Registry};

/// The prefix of all names.
const NAMESPACE: &str = "keygate";

fn opts(name: &str, help: &str) -> Opts {
    Opts::new(name, help).namespace(NAMESPACE)
}

/// Registers a collector unless its name or labels were invalid.
fn register<C: Collector + Clone + 'static>(
    registry: &Registry,
    collector: Result<C, prometheus::Error>,
) -> Result<C, prometheus::Error> {
    let collector = collector?;
    registry.register(Box::new(collector.clone()))?;
    Ok(collector)
}

fn counters(
    registry: &Registry,
    name: &str,
    help: &str,
    labels: &[&str],
) -> Result<IntCounterVec, prometheus::Error> {
    register(registry, GenericCounterVec::new(opts(name, help), labels))
}

fn counter(registry: &Registry, name: &str, help: &str) -> Result<IntCounter, prometheus::Error> {
    register(registry, GenericCounter::with_opts(opts(name, help)))
}

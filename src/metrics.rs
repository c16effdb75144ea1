//! Every series that keygate exposes, as typed handles, named in this one place.
//!
//! Workers share nothing hot: each has a registry of its own, with the same series, and a scrape
//! adds them up ([`Exposition`]). Handles are resolved once; counting on the data path is an
//! uncontended addition. Every series is there from the start, at zero, and no label comes from a
//! client.

mod control;
mod exposition;
mod labels;
mod worker;

pub use control::{ControlMetrics, FilterMetrics, ListMetrics};
pub use exposition::Exposition;
pub use labels::{
    CodeClass, ConnectionResult, Family, KeyAction, Label, ReloadResult, UpstreamFailure,
};
pub use worker::{ServiceMetrics, WorkerMetrics};

use prometheus::core::{Collector, GenericCounter, GenericCounterVec};
use prometheus::{IntCounter, IntCounterVec, Opts, Registry};

/// The prefix of every name.
const NAMESPACE: &str = "keygate";

fn opts(name: &str, help: &str) -> Opts {
    Opts::new(name, help).namespace(NAMESPACE)
}

/// Registers a collector that was made from constant names.
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

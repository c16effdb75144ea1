//! A scrape: the series of the control plane, and the sums of all workers' series.

use prometheus::proto::{Bucket, Counter, Gauge, Histogram, Metric, MetricFamily, MetricType};
use prometheus::{Registry, TextEncoder};

use super::{ControlMetrics, Scrape, WorkerMetrics};

/// All registries of the process.
#[derive(Debug, Clone)]
pub struct Exposition {
    control: Registry,
    workers: Vec<Registry>,
}

impl Exposition {
    /// The registries of the control plane and of its workers.
    #[must_use]
    pub fn new(control: &ControlMetrics, workers: &[WorkerMetrics]) -> Self {
        Self {
            control: control.registry.clone(),
            workers: workers.iter().map(|worker| worker.registry.clone()).collect(),
        }
    }

    /// The current values.
    #[must_use]
    pub fn scrape(&self) -> Scrape {
        let workers = self.workers.iter().map(Registry::gather).reduce(add_families);
        let mut families = self.control.gather();
        families.extend(workers.unwrap_or_default());
        Scrape(families)
    }

    /// The current values in Prometheus' text format 0.0.4.
    ///
    /// # Errors
    /// Returns an error if the format cannot express a series, which no series of this room causes.
    pub fn render(&self) -> Result<String, prometheus::Error> {
        let Scrape(mut families) = self.scrape();
        families.sort_by(|one, other| one.name().cmp(other.name()));
        TextEncoder::new().encode_to_string(&families)
    }
}

/// Adds up two scrapes. One may have series that the other does not have yet, because workers do
/// not apply a new service at the same moment.
fn add_families(mut sum: Vec<MetricFamily>, more: Vec<MetricFamily>) -> Vec<MetricFamily> {
    for mut family in more {
        let Some(known) = sum.iter_mut().find(|known| known.name() == family.name()) else {
            sum.push(family);
            continue;
        };
        let kind = known.get_field_type();
        let mut next: usize = 0; // both are sorted, and mostly have the same series
        for metric in family.take_metric() {
            let metrics = known.mut_metric();
            let count = metrics.len();
            let (before, behind) = metrics.split_at_mut(next);
            let mut rest = behind.iter_mut().chain(before).enumerate();
            match rest.find(|(_, it)| it.get_label() == metric.get_label()) {
                Some((skipped, same)) => {
                    add_metric(kind, same, &metric);
                    next = (next + skipped + 1) % count;
                }
                None => metrics.push(metric),
            }
        }
    }
    sum
}

fn add_metric(kind: MetricType, sum: &mut Metric, more: &Metric) {
    match kind {
        MetricType::COUNTER => {
            let mut counter = Counter::default();
            counter.set_value(sum.get_counter().get_value() + more.get_counter().get_value());
            sum.set_counter(counter);
        }
        MetricType::GAUGE => {
            let mut gauge = Gauge::default();
            gauge.set_value(sum.get_gauge().get_value() + more.get_gauge().get_value());
            sum.set_gauge(gauge);
        }
        MetricType::HISTOGRAM => {
            sum.set_histogram(add_histograms(sum.get_histogram(), more.get_histogram()));
        }
        MetricType::SUMMARY | MetricType::UNTYPED => {} // workers have none
    }
}

fn add_histograms(one: &Histogram, other: &Histogram) -> Histogram {
    let buckets = one.get_bucket().iter().zip(other.get_bucket()).map(|(one, other)| {
        let mut bucket = Bucket::default();
        bucket.set_upper_bound(one.upper_bound());
        bucket.set_cumulative_count(one.cumulative_count() + other.cumulative_count());
        bucket
    });
    let mut sum = Histogram::default();
    sum.set_bucket(buckets.collect());
    sum.set_sample_count(one.get_sample_count() + other.get_sample_count());
    sum.set_sample_sum(one.get_sample_sum() + other.get_sample_sum());
    sum
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::{CodeClass, ConnectionResult};

    #[test]
    fn a_scrape_sums_the_series_of_all_workers() {
        let control = ControlMetrics::new().unwrap();
        let workers = [(); 2].map(|()| WorkerMetrics::new(&["orders"], &[]).unwrap());
        for (count, worker) in (1..).zip(&workers) {
            let orders = worker.service("orders");
            orders.requests.of(CodeClass::Success).inc_by(count);
            orders.connections_active.set(10);
            orders.request_duration.observe(0.003);
        }
        let scrape = Exposition::new(&control, &workers).render().unwrap();
        for line in [
            r#"keygate_requests_total{code="2xx",service="orders"} 3"#,
            r#"keygate_requests_total{code="5xx",service="orders"} 0"#,
            r#"keygate_connections_active{service="orders"} 20"#,
            r#"keygate_request_duration_seconds_bucket{service="orders",le="0.0025"} 0"#,
            r#"keygate_request_duration_seconds_bucket{service="orders",le="0.005"} 2"#,
            r#"keygate_request_duration_seconds_count{service="orders"} 2"#,
            r#"keygate_connections_total{result="failed",service=""} 0"#,
        ] {
            assert!(scrape.lines().any(|found| found == line), "no {line} in\n{scrape}");
        }
        workers[0].unrouted.of(ConnectionResult::Failed).inc();
    }
}

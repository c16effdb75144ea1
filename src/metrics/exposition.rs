//! A scrape: the series of the control plane, and the sums of all workers' series.

use std::collections::BTreeMap;

use prometheus::proto::{
    Bucket, Counter, Gauge, Histogram, LabelPair, Metric, MetricFamily, MetricType,
};
use prometheus::{Registry, TextEncoder};

use super::{ControlMetrics, WorkerMetrics};

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

    /// The sums of a counter over all workers, by the values of one label.
    #[must_use]
    pub fn sums(&self, series: &str, label: &str) -> BTreeMap<String, f64> {
        let families = self.workers.iter().flat_map(Registry::gather);
        let mut sums = BTreeMap::new();
        for family in families.filter(|family| family.name() == series) {
            for metric in family.get_metric() {
                let value = metric.get_label().iter().find(|pair| pair.name() == label);
                let sum = sums.entry(value.map_or("", LabelPair::value).to_owned()).or_default();
                *sum += metric.get_counter().get_value();
            }
        }
        sums
    }

    /// The labels and values of a counter or gauge of the control plane.
    #[must_use]
    pub fn control_values(&self, series: &str) -> Vec<(BTreeMap<String, String>, f64)> {
        let families = self.control.gather().into_iter().filter(|it| it.name() == series);
        let values = families.flat_map(|mut family| {
            family.take_metric().into_iter().map(|metric| {
                let labels = metric.get_label().iter();
                let labels = labels.map(|it| (it.name().to_owned(), it.value().to_owned()));
                let value = metric.get_counter().get_value() + metric.get_gauge().get_value();
                (labels.collect(), value)
            })
        });
        values.collect()
    }

    /// The sums of a counter or gauge of one service or authorizer over all workers, by the values of
    /// another label.
    #[must_use]
    pub fn sums_of(&self, series: &str, service: &str, label: &str) -> BTreeMap<String, f64> {
        let families = self.workers.iter().flat_map(Registry::gather);
        let mut sums = BTreeMap::new();
        for family in families.filter(|family| family.name() == series) {
            for metric in family.get_metric() {
                let value = |name: &str| {
                    let pair = metric.get_label().iter().find(|pair| pair.name() == name);
                    pair.map_or("", LabelPair::value)
                };
                if value("service") == service {
                    let sum = sums.entry(value(label).to_owned()).or_default();
                    *sum += metric.get_counter().get_value() + metric.get_gauge().get_value();
                }
            }
        }
        sums
    }

    /// The current values in Prometheus' text format 0.0.4.
    ///
    /// # Errors
    /// Returns an error if the format cannot express a series, which no series of this room causes.
    pub fn render(&self) -> Result<String, prometheus::Error> {
        let mut families = self.control.gather();
        let workers = self.workers.iter().map(Registry::gather);
        families.extend(workers.reduce(add_families).unwrap_or_default());
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
        for metric in family.take_metric() {
            let same =
                known.mut_metric().iter_mut().find(|it| it.get_label() == metric.get_label());
            match same {
                Some(same) => add_metric(kind, same, &metric),
                None => known.mut_metric().push(metric),
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

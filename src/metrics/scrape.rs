//! The values of all series at one moment.

use std::collections::{BTreeMap, HashMap};

use prometheus::IntGaugeVec;
use prometheus::core::Collector;
use prometheus::proto::{LabelPair, Metric, MetricFamily};

/// The values of all series at one moment, summed over the workers.
#[derive(Debug, Default)]
pub struct Scrape(pub(super) Vec<MetricFamily>);

/// Values by the name of a service or authorizer.
pub type ByService<T> = BTreeMap<String, T>;

/// The values of a histogram: the upper bound of each bucket, ascending, and the number of
/// observations up to it. The last bound is infinite.
pub type Buckets = Vec<(f64, u64)>;

impl Scrape {
    /// The sums of a counter or gauge, by the values of one label.
    #[must_use]
    pub fn sums(&self, series: &str, label: &str) -> BTreeMap<String, f64> {
        let mut sums = BTreeMap::new();
        for metric in self.metrics(series) {
            *sums.entry(label_of(metric, label).to_owned()).or_default() += value_of(metric);
        }
        sums
    }

    /// The sums of a counter or gauge, by service or authorizer, then by the values of `label`.
    #[must_use]
    pub fn sums_by_service(&self, series: &str, label: &str) -> ByService<BTreeMap<String, f64>> {
        let mut services: ByService<BTreeMap<String, f64>> = BTreeMap::new();
        for metric in self.metrics(series) {
            let sums = services.entry(label_of(metric, "service").to_owned()).or_default();
            *sums.entry(label_of(metric, label).to_owned()).or_default() += value_of(metric);
        }
        services
    }

    /// The histograms of a series with no label but `service`.
    #[must_use]
    pub fn buckets_by_service(&self, series: &str) -> ByService<Buckets> {
        let histograms = self.metrics(series).map(|metric| {
            let histogram = metric.get_histogram();
            let buckets = histogram.get_bucket().iter();
            let finite = buckets.map(|bucket| (bucket.upper_bound(), bucket.cumulative_count()));
            let finite = finite.filter(|(bound, _)| bound.is_finite());
            let buckets = finite.chain([(f64::INFINITY, histogram.get_sample_count())]).collect();
            (label_of(metric, "service").to_owned(), buckets)
        });
        histograms.collect()
    }

    /// The labels and values of a counter or gauge.
    pub fn values(&self, series: &str) -> impl Iterator<Item = (BTreeMap<&str, &str>, f64)> {
        self.metrics(series).map(|metric| {
            let labels = metric.get_label().iter().map(|pair| (pair.name(), pair.value()));
            (labels.collect(), value_of(metric))
        })
    }

    fn metrics(&self, series: &str) -> impl Iterator<Item = &Metric> {
        let families = self.0.iter().filter(move |family| family.name() == series);
        families.flat_map(MetricFamily::get_metric)
    }
}

/// The value of a counter or gauge.
fn value_of(metric: &Metric) -> f64 {
    // One of the two is zero.
    metric.get_counter().get_value() + metric.get_gauge().get_value()
}

/// The value of a label; empty if the metric does not have it.
pub(super) fn label_of<'a>(metric: &'a Metric, label: &str) -> &'a str {
    let pair = metric.get_label().iter().find(|pair| pair.name() == label);
    pair.map_or("", LabelPair::value)
}

/// Removes the series of an info metric whose `label` is `name`: the file that was in use.
pub(super) fn remove_info(info: &IntGaugeVec, label: &str, name: &str) {
    let families = info.collect();
    let metrics = families.iter().flat_map(|family| family.get_metric());
    for metric in metrics.filter(|it| label_of(it, label) == name) {
        let labels = metric.get_label().iter().map(|it| (it.name(), it.value()));
        let _ = info.remove(&labels.collect::<HashMap<_, _>>()); // fails only if there is none
    }
}

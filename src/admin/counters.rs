//! Counters by their labels: their growth and their text.

use std::collections::BTreeMap;

use crate::metrics::Scrape;

/// The counters that have grown since they were `before`, each with its growth.
pub(super) fn growth(
    counters: &BTreeMap<String, f64>,
    before: &BTreeMap<String, f64>,
) -> BTreeMap<String, f64> {
    let grown = counters.iter().map(|(label, count)| {
        (label.clone(), count - before.get(label).copied().unwrap_or_default())
    });
    grown.filter(|(_, growth)| *growth > 0.0).collect()
}

/// The counters that are not zero, with their numbers.
pub(super) fn listed(counters: &BTreeMap<String, f64>) -> String {
    let counters = counters.iter().filter(|(_, count)| **count > 0.0);
    counters.map(|(label, count)| format!("{label}: {count}")).collect::<Vec<_>>().join(", ")
}

/// The value of a series without labels; 0 without the series.
pub(super) fn value(scrape: &Scrape, series: &str) -> f64 {
    scrape.values(series).next().map_or(0.0, |(_, value)| value)
}

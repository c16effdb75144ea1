//! Several gauges with the same label, described by one table.

use prometheus::{Gauge, GaugeVec, Registry};

use super::{opts, register};

/// A row of a table of gauges.
pub(super) struct Row<K> {
    /// The name of the gauge in the code.
    pub(super) key: K,
    /// The name of the series, without the prefix.
    pub(super) name: &'static str,
    pub(super) help: &'static str,
}

/// The gauges of a table, for all values of their label.
#[derive(Debug, Clone)]
pub(super) struct GaugeTable<K>(Vec<(K, GaugeVec)>);

/// The gauges of a table, for one value of their label.
#[derive(Debug, Clone)]
pub(super) struct Gauges<K>(Vec<(K, Gauge)>);

impl<K: Copy + PartialEq> GaugeTable<K> {
    /// Registers every row of `table`.
    pub(super) fn register(
        registry: &Registry,
        label: &str,
        table: &[Row<K>],
    ) -> Result<Self, prometheus::Error> {
        let gauges = table.iter().map(|row| {
            let gauge = register(registry, GaugeVec::new(opts(row.name, row.help), &[label]))?;
            Ok((row.key, gauge))
        });
        gauges.collect::<Result<_, _>>().map(Self)
    }

    /// The gauges whose label is `value`; at zero if they are new.
    pub(super) fn with_label(&self, value: &str) -> Gauges<K> {
        let gauges = self.0.iter().map(|(key, gauge)| (*key, gauge.with_label_values(&[value])));
        Gauges(gauges.collect())
    }

    /// Removes the gauges whose label is `value`.
    pub(super) fn remove(&self, value: &str) {
        for (_, gauge) in &self.0 {
            let _ = gauge.remove_label_values(&[value]); // fails only if there is none
        }
    }
}

impl<K: PartialEq> Gauges<K> {
    pub(super) fn set(&self, key: K, value: f64) {
        if let Some((_, gauge)) = self.0.iter().find(|(known, _)| *known == key) {
            gauge.set(value);
        }
    }
}

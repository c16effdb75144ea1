//! Stacked bar chart of the verdicts other than clean, one column per hour.

use super::history::HourCounts;
use crate::unix_time::rfc3339;

/// Geometry of the chart, in SVG user units.
pub(super) struct Chart {
    pub(super) width: u64,
    pub(super) height: u64,
    /// Verdicts in the hour with the highest column.
    pub(super) maximum: f64,
    pub(super) bars: Vec<Bar>,
}

/// One verdict in one hour; the origin is the top left corner.
pub(super) struct Bar {
    pub(super) verdict: String,
    pub(super) x: u64,
    pub(super) y: f64,
    pub(super) height: f64,
    /// Tooltip.
    pub(super) text: String,
}

/// Number of columns.
const HOURS: u64 = 7 * 24;
const HEIGHT: u64 = 100;
/// Width of a column and the gap after it.
const STEP: u64 = 4;
/// Minimum height of a bar, so that a single verdict is visible.
const MIN_BAR_HEIGHT: f64 = 2.0;

impl Chart {
    /// Creates the chart of the week that ends at `now`, in seconds since the Unix epoch.
    pub(super) fn new(hours: &[HourCounts], now: u64) -> Self {
        let hits = |hour: &HourCounts| -> Vec<(String, f64)> {
            let verdicts = hour.verdicts.iter().filter(|(verdict, _)| *verdict != "clean");
            verdicts.map(|(verdict, count)| (verdict.clone(), *count)).collect()
        };
        let sum = |hour: &HourCounts| hits(hour).iter().map(|(_, count)| count).sum::<f64>();
        let maximum = hours.iter().map(sum).fold(0.0, f64::max);
        let first = (now / 3600).saturating_sub(HOURS - 1);
        let mut bars = Vec::new();
        for hour in hours {
            let Some(column) = (hour.start / 3600).checked_sub(first) else { continue };
            let mut top = HEIGHT as f64;
            for (verdict, count) in hits(hour) {
                let height = (count / maximum * HEIGHT as f64).clamp(MIN_BAR_HEIGHT, HEIGHT as f64);
                top -= height;
                let at = rfc3339(hour.start);
                let text = format!("{count} {verdict} in the hour from {at}");
                bars.push(Bar { verdict, x: column * STEP, y: top.max(0.0), height, text });
            }
        }
        Self { width: HOURS * STEP, height: HEIGHT, maximum, bars }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[test]
    fn bars_of_an_hour_are_stacked_and_clean_has_none() {
        let counted = |counts: &[(&str, f64)]| -> BTreeMap<String, f64> {
            counts.iter().map(|(name, count)| ((*name).to_owned(), *count)).collect()
        };
        let hour = |start, counts: &[(&str, f64)]| HourCounts {
            start,
            verdicts: counted(counts),
            actions: BTreeMap::new(),
        };
        let now = 1000 * 3600;
        let hours = [
            hour(0, &[("probable", 9.0)]),
            hour(now - 3600, &[("clean", 5000.0), ("listed", 1.0), ("probable", 3.0)]),
            hour(now, &[("unchecked", 1.0)]),
        ];
        let chart = Chart::new(&hours[1..], now);
        let bars: Vec<_> =
            chart.bars.iter().map(|bar| (&*bar.verdict, bar.x, bar.y, bar.height)).collect();
        assert_eq!(
            bars,
            [
                ("listed", 166 * 4, 75.0, 25.0),
                ("probable", 166 * 4, 0.0, 75.0),
                ("unchecked", 167 * 4, 75.0, 25.0)
            ]
        );
        assert_eq!(chart.maximum, 4.0);
        assert_eq!(Chart::new(&hours, now).bars.len(), 3, "hours older than a week are not shown");
        assert!(Chart::new(&[], now).bars.is_empty());
    }
}

//! Bars that stand on one another, one place for each hour: the verdicts that are not clean.

use super::history::Hour;

/// A chart as SVG has it, in units of its own.
pub(super) struct Chart {
    pub(super) width: u64,
    pub(super) height: u64,
    /// What the highest bar stands for.
    pub(super) most: f64,
    pub(super) bars: Vec<Bar>,
}

/// One verdict in one hour.
pub(super) struct Bar {
    pub(super) verdict: String,
    pub(super) x: u64,
    pub(super) y: f64,
    pub(super) height: f64,
    pub(super) text: String,
}

const HOURS: u64 = 7 * 24;
const HEIGHT: u64 = 100;
/// From one hour to the next.
const STEP: u64 = 4;
/// A single one is seen, too.
const LEAST: f64 = 2.0;

impl Chart {
    /// The hours up to `now`, in seconds since the Unix epoch.
    pub(super) fn of(hours: &[Hour], now: u64) -> Self {
        let hits = |hour: &Hour| -> Vec<(String, f64)> {
            let verdicts = hour.verdicts.iter().filter(|(verdict, _)| *verdict != "clean");
            verdicts.map(|(verdict, count)| (verdict.clone(), *count)).collect()
        };
        let sum = |hour: &Hour| hits(hour).iter().map(|(_, count)| count).sum::<f64>();
        let most = hours.iter().map(sum).fold(0.0, f64::max);
        let first = (now / 3600).saturating_sub(HOURS - 1);
        let mut bars = Vec::new();
        for hour in hours {
            let Some(place) = (hour.start / 3600).checked_sub(first) else { continue };
            let mut top = HEIGHT as f64;
            for (verdict, count) in hits(hour) {
                let height = (count / most * HEIGHT as f64).clamp(LEAST, HEIGHT as f64);
                top -= height;
                let at = humantime::format_rfc3339_seconds(
                    std::time::UNIX_EPOCH + std::time::Duration::from_secs(hour.start),
                );
                let text = format!("{count} {verdict} in the hour from {at}");
                bars.push(Bar { verdict, x: place * STEP, y: top.max(0.0), height, text });
            }
        }
        Self { width: HOURS * STEP, height: HEIGHT, most, bars }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[test]
    fn bars_stand_on_one_another_at_their_hour_and_clean_is_none() {
        let counted = |counts: &[(&str, f64)]| -> BTreeMap<String, f64> {
            counts.iter().map(|(name, count)| ((*name).to_owned(), *count)).collect()
        };
        let hour = |start, counts: &[(&str, f64)]| Hour {
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
        let chart = Chart::of(&hours[1..], now);
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
        assert_eq!(chart.most, 4.0);
        assert_eq!(Chart::of(&hours, now).bars.len(), 3, "what is older than a week is not shown");
        assert!(Chart::of(&[], now).bars.is_empty());
    }
}

//! Stacked bar chart of the verdicts other than clean, and of the clients that no rule names, one
//! column per hour.

use keygate_core::unix_time::rfc3339;

use super::history::HourCounts;

/// Geometry of the chart, in SVG user units. The origin is the top left corner.
pub(super) struct Chart {
    pub(super) width: u64,
    pub(super) height: u64,
    /// Start of the hours, after the numbers of the axis.
    pub(super) left: u64,
    /// The zero line.
    pub(super) bottom: u64,
    /// Horizontal lines with their values.
    pub(super) lines: Vec<ValueLine>,
    /// Vertical lines at the start of each day.
    pub(super) days: Vec<DayLine>,
    pub(super) bars: Vec<Bar>,
}

/// A value on the vertical axis.
pub(super) struct ValueLine {
    pub(super) y: f64,
    pub(super) text: String,
}

/// The start of a day (UTC) on the horizontal axis.
pub(super) struct DayLine {
    pub(super) x: u64,
    /// Whether the text ends at the line, because there is no room behind it.
    pub(super) is_last: bool,
    /// Such as `11-20`.
    pub(super) text: String,
}

/// One verdict in one hour.
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
/// Height of the highest column.
const HEIGHT: u64 = 100;
/// Room above the highest column, for half of a number.
const TOP: u64 = 8;
/// Room for the numbers of the vertical axis.
const LEFT: u64 = 44;
/// Room for the dates below the zero line.
const DATES: u64 = 24;
/// Width of a column and the gap after it.
const STEP: u64 = 4;
/// Columns below which a date fits, 12: 48 units, also in the larger type of narrow screens.
const DATE_HOURS: u64 = 12;
/// Minimum height of a bar, so that a single verdict is visible.
const MIN_BAR_HEIGHT: f64 = 2.0;

impl Chart {
    /// Creates the chart of the week that ends at `now`, in seconds since the Unix epoch.
    pub(super) fn new(hours: &[HourCounts], now: u64) -> Self {
        let first = (now / 3600).saturating_sub(HOURS - 1);
        let shown = || hours.iter().filter(|hour| hour.start / 3600 >= first);
        let maximum = axis_maximum(shown().map(sum).fold(0.0, f64::max));
        let bottom = TOP + HEIGHT;
        let mut bars = Vec::new();
        for hour in shown() {
            let column = (hour.start / 3600).saturating_sub(first);
            let mut top = bottom as f64;
            for (verdict, count) in hits(hour) {
                let height = (count / maximum * HEIGHT as f64).clamp(MIN_BAR_HEIGHT, HEIGHT as f64);
                top -= height;
                let at = rfc3339(hour.start);
                let (verdict, text) =
                    (verdict.to_owned(), format!("{count} {verdict} in the hour from {at}"));
                bars.push(Bar { verdict, x: LEFT + column * STEP, y: top.max(0.0), height, text });
            }
        }
        let line = |share: f64| ValueLine {
            y: bottom as f64 - share * HEIGHT as f64,
            text: format!("{}", maximum * share),
        };
        let days = (first..first + HOURS).filter(|hour| hour % 24 == 0).map(|hour| DayLine {
            x: LEFT + (hour - first) * STEP,
            is_last: hour + DATE_HOURS > first + HOURS,
            text: rfc3339(hour * 3600).get(5..10).unwrap_or_default().to_owned(),
        });
        Self {
            width: LEFT + HOURS * STEP,
            height: bottom + DATES,
            left: LEFT,
            bottom,
            lines: [0.0, 0.5, 1.0].map(line).into(),
            days: days.collect(),
            bars,
        }
    }
}

/// The verdicts of an hour other than clean, and the clients that no rule names.
fn hits(hour: &HourCounts) -> impl Iterator<Item = (&str, f64)> {
    let verdicts = hour.verdicts.iter().filter(|(verdict, _)| *verdict != "clean");
    verdicts.map(|(verdict, count)| (verdict.as_str(), *count))
}

fn sum(hour: &HourCounts) -> f64 {
    hits(hour).map(|(_, count)| count).sum()
}

/// The end of the vertical axis: the next of 2, 4, 10, 20, 40, 100 and so on.
fn axis_maximum(maximum: f64) -> f64 {
    let mut power = 1.0;
    loop {
        for factor in [2.0, 4.0, 10.0] {
            if factor * power >= maximum {
                return factor * power;
            }
        }
        power *= 10.0;
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
                ("listed", LEFT + 166 * 4, 83.0, 25.0),
                ("probable", LEFT + 166 * 4, 8.0, 75.0),
                ("unchecked", LEFT + 167 * 4, 83.0, 25.0)
            ]
        );
        let values: Vec<_> = chart.lines.iter().map(|line| (line.y, line.text.as_str())).collect();
        assert_eq!(values, [(108.0, "0"), (58.0, "2"), (8.0, "4")]);
        // 1,000 hours after the epoch it is 16:00 on February 11.
        let days: Vec<_> = chart.days.iter().map(|day| (day.x, day.text.as_str())).collect();
        assert_eq!(days.len(), 7);
        assert_eq!(days.last(), Some(&(LEFT + (167 - 16) * 4, "02-11")));
        assert!(chart.days.iter().all(|day| !day.is_last), "the date fits");
        // An hour after midnight.
        let night = Chart::new(&[], now - 15 * 3600);
        assert_eq!(night.days.iter().map(|day| day.is_last).filter(|it| *it).count(), 1);
        assert!(night.days.last().is_some_and(|day| day.is_last));
        assert_eq!(Chart::new(&hours, now).bars.len(), 3, "hours older than a week are not shown");
        assert!(Chart::new(&[], now).bars.is_empty());
    }

    #[test]
    fn the_axis_ends_at_a_round_number() {
        for (maximum, end) in [(0.0, 2.0), (2.0, 2.0), (3.0, 4.0), (5.0, 10.0), (2001.0, 4000.0)] {
            assert_eq!(axis_maximum(maximum), end);
        }
    }
}

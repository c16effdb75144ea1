//! Verdicts and actions in each hour of the last week, for the status page.
//!
//! The counts are the growth of the counters in `/metrics`. A restart clears them.

use std::collections::{BTreeMap, VecDeque};

use super::counters::growth;
use super::rejections;
use crate::metrics::{Label, NameResult, Scrape};

/// Maximum number of hours, one week. A further hour replaces the oldest.
const HOURS: usize = 7 * 24;
/// Seconds in an hour.
const HOUR: u64 = 3600;

/// Counts of each hour, oldest first, and the last value of each counter.
#[derive(Debug, Default)]
pub(super) struct HourlyCounts {
    hours: VecDeque<HourCounts>,
    verdicts: BTreeMap<String, f64>,
    actions: BTreeMap<String, f64>,
}

/// Counts of one hour, without zeros.
#[derive(Debug, Clone, Default)]
pub(super) struct HourCounts {
    /// Start of the hour, in seconds since the Unix epoch.
    pub(super) start: u64,
    /// Verdicts on keys, and `not_allowed` for clients that no rule names.
    pub(super) verdicts: BTreeMap<String, f64>,
    pub(super) actions: BTreeMap<String, f64>,
}

impl HourlyCounts {
    /// Adds the growth of the counters to the hour of `now`, in seconds since the Unix epoch.
    pub(super) fn update(&mut self, scrape: &Scrape, now: u64) {
        let mut verdicts = scrape.sums("keygate_key_checks_total", "verdict");
        let not_allowed = NameResult::NotAllowed.as_str();
        let names = scrape.sums("keygate_name_checks_total", "result");
        verdicts.extend(names.into_iter().filter(|(result, _)| result == not_allowed));
        let mut actions: BTreeMap<String, f64> = BTreeMap::new();
        for (action, count) in rejections::actions(scrape).into_values().flatten() {
            *actions.entry(action).or_default() += count;
        }
        self.add(verdicts, actions, now);
    }

    /// Adds the growth since the last call. `verdicts` and `actions` are values of the counters.
    fn add(&mut self, verdicts: BTreeMap<String, f64>, actions: BTreeMap<String, f64>, now: u64) {
        let start = now - now % HOUR;
        // Counts go to the last hour if the clock was set back, because hours must be in order.
        if self.hours.back().is_none_or(|last| last.start < start) {
            if self.hours.len() >= HOURS {
                self.hours.pop_front();
            }
            self.hours.push_back(HourCounts { start, ..HourCounts::default() });
        }
        if let Some(hour) = self.hours.back_mut() {
            add_growth(&mut hour.verdicts, &verdicts, &self.verdicts);
            add_growth(&mut hour.actions, &actions, &self.actions);
        }
        (self.verdicts, self.actions) = (verdicts, actions);
    }

    /// The hours, oldest first.
    pub(super) fn hours(&self) -> impl DoubleEndedIterator<Item = &HourCounts> {
        self.hours.iter()
    }
}

fn add_growth(
    sums: &mut BTreeMap<String, f64>,
    now: &BTreeMap<String, f64>,
    before: &BTreeMap<String, f64>,
) {
    for (name, growth) in growth(now, before) {
        *sums.entry(name).or_default() += growth;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counted(clean: f64) -> BTreeMap<String, f64> {
        BTreeMap::from([("clean".to_owned(), clean), ("probable".to_owned(), 0.0)])
    }

    fn clean_by_hour(history: &HourlyCounts) -> Vec<(u64, f64)> {
        let hours = history.hours();
        hours.map(|hour| (hour.start, hour.verdicts.get("clean").copied().unwrap_or(0.0))).collect()
    }

    #[test]
    fn each_hour_has_the_growth_of_the_counters() {
        let mut history = HourlyCounts::default();
        for (now, clean) in [(7200, 5.0), (7300, 7.0), (10_800, 8.0), (10_900, 8.0), (21_600, 9.0)]
        {
            history.add(counted(clean), BTreeMap::new(), now);
        }
        assert_eq!(clean_by_hour(&history), [(7200, 7.0), (10_800, 1.0), (21_600, 1.0)]);
        assert!(history.hours().all(|hour| !hour.verdicts.contains_key("probable")));
    }

    #[test]
    fn a_week_is_kept_and_a_clock_set_back_adds_no_hour() {
        let mut history = HourlyCounts::default();
        for hour in 0..1000 {
            history.add(counted(0.0), BTreeMap::new(), hour * HOUR);
        }
        assert_eq!(history.hours().count(), HOURS);
        history.add(counted(3.0), BTreeMap::new(), 5 * HOUR);
        assert_eq!(clean_by_hour(&history).last(), Some(&(999 * HOUR, 3.0)));
    }
}

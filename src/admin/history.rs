//! Verdicts and actions by the hour, for a week: what the counters have grown by.

use std::collections::{BTreeMap, VecDeque};

use serde::Serialize;

use crate::metrics::Exposition;

/// How many hours are kept.
const HOURS: usize = 7 * 24;
const HOUR: u64 = 3600;

/// What happened in each hour, the last one last.
#[derive(Debug, Default)]
pub(super) struct History {
    hours: VecDeque<Hour>,
    verdicts: BTreeMap<String, f64>,
    actions: BTreeMap<String, f64>,
}

/// One hour. What did not happen is not in it.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Hour {
    /// When it began, in seconds since the Unix epoch.
    pub(super) start: u64,
    pub(super) verdicts: BTreeMap<String, f64>,
    pub(super) actions: BTreeMap<String, f64>,
}

impl History {
    /// Notes what has happened since the last time, at `now` in seconds since the Unix epoch.
    pub(super) fn note(&mut self, exposition: &Exposition, now: u64) {
        let verdicts = exposition.sums("keygate_key_checks_total", "verdict");
        let actions = exposition.sums("keygate_key_actions_total", "action");
        self.add(verdicts, actions, now);
    }

    fn add(&mut self, verdicts: BTreeMap<String, f64>, actions: BTreeMap<String, f64>, now: u64) {
        let start = now - now % HOUR;
        // A clock that is set back does not make a second hour of the same name.
        if self.hours.back().is_none_or(|last| last.start < start) {
            if self.hours.len() >= HOURS {
                self.hours.pop_front();
            }
            let (verdicts, actions) = (BTreeMap::new(), BTreeMap::new());
            self.hours.push_back(Hour { start, verdicts, actions });
        }
        if let Some(hour) = self.hours.back_mut() {
            grow(&mut hour.verdicts, &verdicts, &self.verdicts);
            grow(&mut hour.actions, &actions, &self.actions);
        }
        (self.verdicts, self.actions) = (verdicts, actions);
    }

    pub(super) fn hours(&self) -> impl DoubleEndedIterator<Item = &Hour> {
        self.hours.iter()
    }
}

fn grow(
    sums: &mut BTreeMap<String, f64>,
    now: &BTreeMap<String, f64>,
    before: &BTreeMap<String, f64>,
) {
    for (name, value) in now {
        let more = value - before.get(name).copied().unwrap_or_default();
        if more > 0.0 {
            *sums.entry(name.clone()).or_default() += more;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counted(clean: f64) -> BTreeMap<String, f64> {
        BTreeMap::from([("clean".to_owned(), clean), ("probable".to_owned(), 0.0)])
    }

    fn clean_by_hour(history: &History) -> Vec<(u64, f64)> {
        let hours = history.hours();
        hours.map(|hour| (hour.start, hour.verdicts.get("clean").copied().unwrap_or(0.0))).collect()
    }

    #[test]
    fn each_hour_has_what_was_counted_in_it() {
        let mut history = History::default();
        for (now, clean) in [(7200, 5.0), (7300, 7.0), (10_800, 8.0), (10_900, 8.0), (21_600, 9.0)]
        {
            history.add(counted(clean), BTreeMap::new(), now);
        }
        assert_eq!(clean_by_hour(&history), [(7200, 7.0), (10_800, 1.0), (21_600, 1.0)]);
        assert!(history.hours().all(|hour| !hour.verdicts.contains_key("probable")));
    }

    #[test]
    fn a_week_is_kept_and_a_clock_that_goes_back_harms_nothing() {
        let mut history = History::default();
        for hour in 0..1000 {
            history.add(counted(0.0), BTreeMap::new(), hour * HOUR);
        }
        assert_eq!(history.hours().count(), HOURS);
        history.add(counted(3.0), BTreeMap::new(), 5 * HOUR);
        assert_eq!(clean_by_hour(&history).last(), Some(&(999 * HOUR, 3.0)));
    }
}

//! The traffic of each service in the last five minutes, for `/status` and the status page.

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

use serde::Serialize;

use crate::metrics::{Buckets, ByService, Scrape};
use crate::snapshot::ServiceReport;

/// Time over which rates and quantiles are computed.
const WINDOW: Duration = Duration::from_secs(300);
/// Minimum time between two samples. Six samples are kept.
const STEP: Duration = Duration::from_secs(60);
/// Minimum time that a rate refers to. Otherwise the first request after a start would count as
/// hundreds in a minute.
const MIN_PERIOD: Duration = Duration::from_secs(60);

/// The counters of the last minutes, oldest first.
#[derive(Debug, Default)]
pub(super) struct TrafficSamples(VecDeque<Sample>);

#[derive(Debug)]
struct Sample {
    at: Instant,
    services: ByService<Totals>,
}

/// Counters of one service since the start.
#[derive(Debug, Clone, Default)]
struct Totals {
    requests: f64,
    errors: f64,
    durations: Buckets,
    /// Handshakes by result.
    handshakes: BTreeMap<String, f64>,
}

/// The traffic of one service.
#[derive(Debug, Default, Serialize)]
pub(super) struct ServiceTraffic {
    /// Open client connections.
    pub(super) connections: f64,
    /// Maximum number of open client connections.
    pub(super) max_connections: usize,
    pub(super) requests_per_minute: f64,
    /// Responses with 500 to 599 in a minute.
    pub(super) errors_per_minute: f64,
    /// Median of the time from the request head to the end of the response, in seconds; `null`
    /// without requests.
    pub(super) p50: Option<f64>,
    /// 99th percentile of the same time.
    pub(super) p99: Option<f64>,
    /// Failed handshakes in the last five minutes, by result.
    pub(super) failed_handshakes: BTreeMap<String, f64>,
}

impl TrafficSamples {
    /// The traffic of each of `services` up to `now`.
    pub(super) fn update(
        &mut self,
        scrape: &Scrape,
        services: &[ServiceReport],
        now: Instant,
    ) -> ByService<ServiceTraffic> {
        let connections = scrape.sums("keygate_connections_active", "service");
        let totals = Totals::of_services(scrape);
        let base = self.base(now);
        let traffic = services.iter().map(|service| {
            let before = base.and_then(|sample| sample.services.get(&service.name));
            let period = base.map_or(MIN_PERIOD, |sample| now.duration_since(sample.at));
            let totals = totals.get(&service.name).cloned().unwrap_or_default();
            let traffic = ServiceTraffic {
                connections: connections.get(&service.name).copied().unwrap_or_default(),
                max_connections: service.max_connections,
                ..totals.since(before.cloned().unwrap_or_default(), period)
            };
            (service.name.clone(), traffic)
        });
        let traffic = traffic.collect();
        self.add(Sample { at: now, services: totals });
        traffic
    }

    /// The sample that rates refer to: the newest one that is as old as the window, else the oldest.
    fn base(&self, now: Instant) -> Option<&Sample> {
        let old = |sample: &&Sample| now.duration_since(sample.at) >= WINDOW;
        self.0.iter().rev().find(old).or_else(|| self.0.front())
    }

    fn add(&mut self, sample: Sample) {
        if self.0.back().is_some_and(|last| sample.at.duration_since(last.at) < STEP) {
            return;
        }
        // The second one is old enough to take the place of the first.
        while self.0.get(1).is_some_and(|it| sample.at.duration_since(it.at) >= WINDOW) {
            self.0.pop_front();
        }
        self.0.push_back(sample);
    }
}

impl Totals {
    fn of_services(scrape: &Scrape) -> ByService<Self> {
        let mut durations = scrape.buckets_by_service("keygate_request_duration_seconds");
        let mut handshakes = scrape.sums_by_service("keygate_handshakes_total", "result");
        let requests = scrape.sums_by_service("keygate_requests_total", "code").into_iter();
        let totals = requests.map(|(service, codes)| {
            let totals = Self {
                requests: codes.values().sum(),
                errors: codes.get("5xx").copied().unwrap_or_default(),
                durations: durations.remove(&service).unwrap_or_default(),
                handshakes: handshakes.remove(&service).unwrap_or_default(),
            };
            (service, totals)
        });
        totals.collect()
    }

    /// The traffic since the totals were `before`, a `period` ago.
    fn since(&self, before: Self, period: Duration) -> ServiceTraffic {
        let minutes = period.max(MIN_PERIOD).as_secs_f64() / 60.0;
        let counts = |(bound, count): &(f64, u64)| {
            let earlier = before.durations.iter().find(|(it, _)| it == bound);
            (*bound, count.saturating_sub(earlier.map_or(0, |(_, count)| *count)))
        };
        let durations: Buckets = self.durations.iter().map(counts).collect();
        let failed = self.handshakes.iter().filter(|(result, _)| *result != "ok");
        let failed = failed.map(|(result, count)| {
            (result.clone(), count - before.handshakes.get(result).copied().unwrap_or_default())
        });
        ServiceTraffic {
            requests_per_minute: (self.requests - before.requests) / minutes,
            errors_per_minute: (self.errors - before.errors) / minutes,
            p50: quantile(&durations, 0.5),
            p99: quantile(&durations, 0.99),
            failed_handshakes: failed.filter(|(_, count)| *count > 0.0).collect(),
            ..ServiceTraffic::default()
        }
    }
}

/// A quantile by linear interpolation in its bucket, as `histogram_quantile` of Prometheus. In the
/// last bucket, which has no end, it is the start of the bucket.
fn quantile(buckets: &Buckets, share: f64) -> Option<f64> {
    let all = buckets.last().map(|(_, count)| *count).filter(|count| *count > 0)?;
    let rank = share * all as f64;
    let (mut start, mut below) = (0.0, 0.0);
    for (bound, count) in buckets {
        let count = *count as f64;
        if count >= rank && bound.is_finite() {
            let inside = count - below;
            return Some(start + (bound - start) * ((rank - below) / inside.max(1.0)));
        }
        if bound.is_finite() {
            (start, below) = (*bound, count);
        }
    }
    Some(start)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn totals(requests: f64, fast: u64, slow: u64) -> Totals {
        let durations = vec![(0.1, fast), (1.0, fast + slow), (f64::INFINITY, fast + slow)];
        let handshakes = [("ok", 7.0), ("expired", requests), ("timeout", 1.0)];
        let handshakes = handshakes.map(|(result, count)| (result.to_owned(), count)).into();
        Totals { requests, errors: requests / 10.0, durations, handshakes }
    }

    #[test]
    fn rates_are_for_a_minute_and_quantiles_for_the_period() {
        let before = totals(100.0, 50, 50);
        let traffic = totals(400.0, 250, 150).since(before, WINDOW);
        assert_eq!((traffic.requests_per_minute, traffic.errors_per_minute), (60.0, 6.0));
        // 200 fast and 100 slow requests: the median is three quarters into the first bucket.
        assert!((traffic.p50.unwrap() - 0.075).abs() < 1e-9, "{traffic:?}");
        assert!((traffic.p99.unwrap() - 0.973).abs() < 1e-9, "{traffic:?}");
        assert_eq!(traffic.failed_handshakes, [("expired".to_owned(), 300.0)].into());
        let first = totals(1.0, 1, 0).since(Totals::default(), Duration::from_millis(1));
        assert_eq!(first.requests_per_minute, 1.0, "not 60,000");
    }

    #[test]
    fn a_quantile_needs_an_observation_and_ends_at_the_last_bound() {
        assert_eq!(quantile(&vec![(0.1, 0), (f64::INFINITY, 0)], 0.5), None);
        assert_eq!(quantile(&Buckets::new(), 0.5), None);
        assert_eq!(quantile(&vec![(0.1, 0), (f64::INFINITY, 9)], 0.5), Some(0.1));
    }

    #[test]
    fn the_samples_reach_back_for_the_window_and_no_longer() {
        let (mut samples, start) = (TrafficSamples::default(), Instant::now());
        for second in 0..4000 {
            let at = start + Duration::from_secs(second);
            let age = samples.base(at).map(|sample| at.duration_since(sample.at));
            assert!(age.is_none_or(|age| age < WINDOW + STEP), "{age:?} at {second}");
            assert!(second < 400 || age >= Some(WINDOW), "{age:?} at {second}");
            samples.add(Sample { at, services: BTreeMap::new() });
            assert!(samples.0.len() <= 7);
        }
    }
}

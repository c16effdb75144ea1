//! The traffic of each service in the last five minutes, for `/status` and the status page.

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

use serde::Serialize;

use super::admissions::update::{Rejections, Update, Updates};
use super::admissions::{Admission, Admissions, ClientCounts, UNROUTED};
use super::counters::growth;
use super::losses::Losses;
use super::rejections;
use crate::metrics::{Buckets, ByService, ConnectionResult, Label, Scrape, UpstreamFailure};
use crate::snapshot::Report;

/// Time over which rates and quantiles are computed.
pub(super) const WINDOW: Duration = Duration::from_secs(300);
/// Minimum time between two samples. Less than the interval of the memory, so that a timer that is
/// early skips no sample.
const STEP: Duration = Duration::from_secs(20);
/// Minimum time that a rate refers to. Otherwise the first request after a start would count as
/// hundreds in a minute.
const MIN_PERIOD: Duration = Duration::from_secs(60);

/// The counters of the last minutes, oldest first.
#[derive(Debug, Default)]
pub(super) struct TrafficSamples {
    samples: VecDeque<Sample>,
    admissions: Admissions,
    updates: Updates,
    /// When a request was seen to succeed last, and the totals then.
    successes: ByService<(Instant, Totals)>,
}

#[derive(Debug)]
struct Sample {
    at: Instant,
    services: ByService<Totals>,
    /// Handshakes that ended before a service was selected, by result.
    unrouted_handshakes: BTreeMap<String, f64>,
    clients: ByService<ClientCounts>,
    rejections: Rejections,
    losses: Losses,
}

impl Sample {
    fn new(scrape: &Scrape, at: Instant) -> Self {
        Self {
            at,
            clients: ClientCounts::all(scrape),
            rejections: Rejections::new(scrape, at),
            services: Totals::by_service(scrape),
            unrouted_handshakes: (scrape.sums_by_service("keygate_handshakes_total", "result"))
                .remove(UNROUTED)
                .unwrap_or_default(),
            losses: Losses::new(scrape),
        }
    }
}

/// The traffic of the last minutes.
#[derive(Debug, Default)]
pub(super) struct RecentTraffic {
    /// By service.
    pub(super) services: ByService<ServiceTraffic>,
    /// By service and authorizer.
    pub(super) admissions: ByService<Admission>,
    /// Handshakes that failed before a service was selected in the last five minutes, by result.
    pub(super) unrouted_handshakes: BTreeMap<String, f64>,
    /// In the last five minutes.
    pub(super) losses: Losses,
    /// The updates of files within an hour: the last one, after the earlier one that causes
    /// rejections, if there is one.
    pub(super) updates: Vec<Update>,
}

/// Counters of one service since the start.
#[derive(Debug, Clone, Default)]
struct Totals {
    requests: f64,
    errors: f64,
    /// Requests, or connections of a TCP service, that a server should have responded to.
    exchanges: f64,
    /// Exchanges without a response of a server, by reason.
    failed_exchanges: BTreeMap<String, f64>,
    durations: Buckets,
    /// Handshakes by result.
    handshakes: BTreeMap<String, f64>,
    /// Handshakes by group of the key exchange.
    key_exchanges: BTreeMap<String, f64>,
    client_rejections: f64,
    /// Requests that got a response with 1xx, 2xx or 3xx.
    succeeded: f64,
    /// Responses of keygate because of the request, by status.
    own_responses: BTreeMap<String, f64>,
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
    /// Exchanges with the upstream in the last minute.
    pub(super) last_minute: Exchanges,
    /// Responses of keygate because of the request, by status: since a request succeeded, in the last
    /// minute at most.
    pub(super) own_responses: BTreeMap<String, f64>,
    /// Requests in that time.
    #[serde(skip)]
    pub(super) requests_without_success: f64,
    /// Time since a request succeeded, or since the service is known.
    #[serde(skip)]
    pub(super) silence: Duration,
    /// Failed handshakes in the last five minutes, by result.
    pub(super) failed_handshakes: BTreeMap<String, f64>,
    /// Handshakes in the last five minutes, by group of the key exchange.
    pub(super) key_exchanges: BTreeMap<String, f64>,
    /// Clients that connected in the last five minutes, by algorithm of their key.
    pub(super) client_keys: BTreeMap<String, f64>,
    /// Rejections of clients in the last five minutes, for their keys or by rules by name: in the
    /// handshake, with a response, or on an open connection.
    pub(super) client_rejections: f64,
}

/// The exchanges of a service with its upstream: requests, or connections of a TCP service.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub(super) struct Exchanges {
    pub(super) all: f64,
    /// Exchanges without a response of a server, by reason. The client got 502, 503 or 504, or its
    /// connection was closed.
    pub(super) failed: BTreeMap<String, f64>,
}

impl Exchanges {
    /// Number of failed exchanges.
    pub(super) fn failures(&self) -> f64 {
        self.failed.values().sum()
    }
}

impl TrafficSamples {
    /// The traffic of the services of `report` up to now.
    pub(super) fn update(
        &mut self,
        scrape: &Scrape,
        report: &Report,
        now: Instant,
    ) -> RecentTraffic {
        let connections = scrape.sums("keygate_connections_active", "service");
        let sample = Sample::new(scrape, now);
        if self.samples.is_empty() {
            // The process has just started, with zeros.
            self.add(Sample::new(&Scrape::default(), now));
        }
        self.successes.retain(|name, _| sample.services.contains_key(name));
        let (base, recent) =
            (base(&self.samples, now, WINDOW), base(&self.samples, now, MIN_PERIOD));
        let traffic = report.services.iter().map(|service| {
            let totals_at = |sample: Option<&Sample>| sample?.services.get(&service.name).cloned();
            let before = totals_at(base);
            let period = base.map_or(MIN_PERIOD, |sample| now.duration_since(sample.at));
            let totals = sample.services.get(&service.name).cloned().unwrap_or_default();
            let minute_ago = totals_at(recent).unwrap_or_default();
            let success = self.successes.entry(service.name.clone());
            let success = success.or_insert_with(|| (now, Totals::default()));
            if totals.succeeded > success.1.succeeded {
                *success = (now, totals.clone());
            }
            let (succeeded_at, at_success) = &*success;
            let later =
                if at_success.requests > minute_ago.requests { at_success } else { &minute_ago };
            let traffic = ServiceTraffic {
                last_minute: totals.exchanges_since(&minute_ago),
                own_responses: growth(&totals.own_responses, &later.own_responses),
                requests_without_success: totals.requests - later.requests,
                silence: now.duration_since(*succeeded_at),
                connections: connections.get(&service.name).copied().unwrap_or_default(),
                max_connections: service.max_connections,
                ..totals.since(before.unwrap_or_default(), period)
            };
            (service.name.clone(), traffic)
        });
        let none = BTreeMap::new();
        let unrouted = base.map_or(&none, |sample| &sample.unrouted_handshakes);
        let lost = base.map(|sample| sample.losses.clone()).unwrap_or_default();
        let services = traffic.collect();
        let clients_before = [base, recent].map(|sample| sample.map(|it| &it.clients));
        let rejections_before = base.zip(recent).map(|it| [it.0.rejections, it.1.rejections]);
        let traffic = RecentTraffic {
            services,
            admissions: self.admissions.all(&sample.clients, clients_before, now),
            updates: self.updates.all(report, sample.rejections, rejections_before),
            unrouted_handshakes: growth(&sample.unrouted_handshakes, unrouted),
            losses: sample.losses.since(&lost),
        };
        self.add(sample);
        traffic
    }

    fn add(&mut self, sample: Sample) {
        if self.samples.back().is_some_and(|last| sample.at.duration_since(last.at) < STEP) {
            return;
        }
        // The second one is old enough to take the place of the first.
        while self.samples.get(1).is_some_and(|it| sample.at.duration_since(it.at) >= WINDOW) {
            self.samples.pop_front();
        }
        self.samples.push_back(sample);
    }
}

/// The sample that rates over `period` refer to: the newest one of that age, else the oldest.
fn base(samples: &VecDeque<Sample>, now: Instant, period: Duration) -> Option<&Sample> {
    let old = |sample: &&Sample| now.duration_since(sample.at) >= period;
    samples.iter().rev().find(old).or_else(|| samples.front())
}

impl Totals {
    fn by_service(scrape: &Scrape) -> ByService<Self> {
        let mut durations = scrape.buckets_by_service("keygate_request_duration_seconds");
        let mut handshakes = scrape.sums_by_service("keygate_handshakes_total", "result");
        let mut key_exchanges = scrape.sums_by_service("keygate_key_exchanges_total", "group");
        let mut connections = scrape.sums_by_service("keygate_connections_total", "result");
        let mut failures = scrape.sums_by_service("keygate_upstream_failures_total", "reason");
        let mut own_responses = scrape.sums_by_service("keygate_own_responses_total", "status");
        let mut actions = rejections::actions(scrape);
        let requests = scrape.sums_by_service("keygate_requests_total", "code").into_iter();
        let totals = requests.map(|(service, codes)| {
            let requests: f64 = codes.values().sum();
            // keygate itself responds to a client that it rejects, so these are left out.
            let answered = requests - codes.get("4xx").copied().unwrap_or_default();
            let connections = connections.remove(&service).unwrap_or_default();
            let served = connections.get(ConnectionResult::Served.as_str()).copied();
            let mut failed_exchanges = failures.remove(&service).unwrap_or_default();
            // The client got the head of a response, and may be the reason why the rest is missing.
            failed_exchanges.remove(UpstreamFailure::Incomplete.as_str());
            let actions = actions.remove(&service).unwrap_or_default();
            let totals = Self {
                requests,
                exchanges: if requests > 0.0 { answered } else { served.unwrap_or_default() },
                failed_exchanges,
                errors: codes.get("5xx").copied().unwrap_or_default(),
                durations: durations.remove(&service).unwrap_or_default(),
                handshakes: handshakes.remove(&service).unwrap_or_default(),
                key_exchanges: key_exchanges.remove(&service).unwrap_or_default(),
                client_rejections: rejections::rejected(&actions),
                succeeded: ["1xx", "2xx", "3xx"].iter().filter_map(|it| codes.get(*it)).sum(),
                own_responses: own_responses.remove(&service).unwrap_or_default(),
            };
            (service, totals)
        });
        totals.collect()
    }

    /// The exchanges since the totals were `before`.
    fn exchanges_since(&self, before: &Self) -> Exchanges {
        let failed = growth(&self.failed_exchanges, &before.failed_exchanges);
        // A failure is counted before its request ends.
        let all = (self.exchanges - before.exchanges).max(failed.values().sum());
        Exchanges { all, failed }
    }

    /// The traffic since the totals were `before`, a `period` ago.
    fn since(&self, before: Self, period: Duration) -> ServiceTraffic {
        let minutes = period.max(MIN_PERIOD).as_secs_f64() / 60.0;
        let counts = |(bound, count): &(f64, u64)| {
            let earlier = before.durations.iter().find(|(it, _)| it == bound);
            (*bound, count.saturating_sub(earlier.map_or(0, |(_, count)| *count)))
        };
        let durations: Buckets = self.durations.iter().map(counts).collect();
        let mut failed_handshakes = growth(&self.handshakes, &before.handshakes);
        failed_handshakes.remove("ok");
        ServiceTraffic {
            requests_per_minute: (self.requests - before.requests) / minutes,
            errors_per_minute: (self.errors - before.errors) / minutes,
            p50: quantile(&durations, 0.5),
            p99: quantile(&durations, 0.99),
            failed_handshakes,
            key_exchanges: growth(&self.key_exchanges, &before.key_exchanges),
            client_rejections: self.client_rejections - before.client_rejections,
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

    /// The steps of the window, its oldest sample and the newest one.
    const MAX_SAMPLES: usize = 300 / 20 + 2;

    fn totals(requests: f64, fast: u64, slow: u64) -> Totals {
        let durations = vec![(0.1, fast), (1.0, fast + slow), (f64::INFINITY, fast + slow)];
        let handshakes = [("ok", 7.0), ("expired", requests), ("timeout", 1.0)];
        let handshakes = handshakes.map(|(result, count)| (result.to_owned(), count)).into();
        let failed_exchanges = [("connect".to_owned(), requests / 4.0)].into();
        let (errors, exchanges, client_rejections) = (requests / 10.0, requests, 0.0);
        Totals {
            requests,
            errors,
            exchanges,
            failed_exchanges,
            durations,
            handshakes,
            client_rejections,
            ..Totals::default()
        }
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
        let exchanges = totals(400.0, 250, 150).exchanges_since(&totals(100.0, 50, 50));
        assert_eq!((exchanges.all, exchanges.failures()), (300.0, 75.0));
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
        let scrape = Scrape::default();
        for second in 0..4000 {
            let at = start + Duration::from_secs(second);
            let age_of = |period| {
                base(&samples.samples, at, period).map(|sample| at.duration_since(sample.at))
            };
            let minute = age_of(MIN_PERIOD);
            assert!(minute.is_none_or(|age| age < MIN_PERIOD + STEP), "{minute:?} at {second}");
            let age = age_of(WINDOW);
            assert!(age.is_none_or(|age| age < WINDOW + STEP), "{age:?} at {second}");
            assert!(second < 400 || age >= Some(WINDOW), "{age:?} at {second}");
            samples.add(Sample::new(&scrape, at));
            assert!(samples.samples.len() <= MAX_SAMPLES);
        }
    }
}

//! The clients of each service and authorizer that get in, and the clients that do not.
//!
//! The counts are the growth of the counters in `/metrics`.

pub(super) mod update;

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use keygate_core::tls::HandshakeResult;

use super::counters::growth;
use super::rejections;
use crate::metrics::{ByService, ConnectionResult, KeyAction, Label, QuestionResult, Scrape};

/// Name of the service of connections that ended before one was selected.
pub(super) const UNROUTED: &str = "";
/// Handshakes that fail for a reason which a scanner without a certificate cannot cause, and
/// `service_rejected`, which a browser or probe without the CA of the service causes. The alert
/// `KeygateNobodyGetsIn` counts the same.
const OF_CLIENTS: [HandshakeResult; 9] = [
    HandshakeResult::BadSignature,
    HandshakeResult::Compromised,
    HandshakeResult::Expired,
    HandshakeResult::NotAllowed,
    HandshakeResult::NotVouched,
    HandshakeResult::Revoked,
    HandshakeResult::ServiceRejected,
    HandshakeResult::UnknownIssuer,
    HandshakeResult::Unsuitable,
];
/// Questions about a client with a certificate that is not served.
const DENIED: [QuestionResult; 4] = [
    QuestionResult::ClientNotAllowed,
    QuestionResult::Denied,
    QuestionResult::NotVerified,
    QuestionResult::NotVouched,
];
/// Questions without a certificate that can be used. Most often the host is configured wrongly.
const UNUSABLE: [QuestionResult; 3] =
    [QuestionResult::Malformed, QuestionResult::NoCertificate, QuestionResult::Oversize];
/// Label of the clients that are rejected after their handshakes: with 403, or by a resumed session.
const AFTER_HANDSHAKE: &str = "after the handshake";

/// Number of successes that the time without one must usually have, so that it is no coincidence.
const EXPECTED: f64 = 3.0;
/// Growth of the rate of failures that is more than the usual change in the number of scanners.
const UNUSUAL: f64 = 3.0;
/// Minimum time that a usual rate refers to.
const MIN_PERIOD: Duration = Duration::from_secs(60);

/// The clients of one service, or the questions to one authorizer, since the start.
#[derive(Debug, Clone, Default)]
pub(super) struct ClientCounts {
    pub(super) admitted: f64,
    /// The clients that did not get in, by result.
    pub(super) failed: BTreeMap<String, f64>,
    /// The failed handshakes that scanners cause as well, by result. A handshake
    /// that failed before a service was selected counts for every service.
    pub(super) others: BTreeMap<String, f64>,
    /// The connections that were closed, or got 429, at a limit.
    pub(super) limited: f64,
    /// The questions without a certificate that can be used, by result.
    pub(super) unusable: BTreeMap<String, f64>,
}

impl ClientCounts {
    /// The clients of all services and authorizers.
    pub(super) fn all(scrape: &Scrape) -> ByService<Self> {
        let mut actions = rejections::actions(scrape);
        let handshakes = scrape.sums_by_service("keygate_handshakes_total", "result");
        let mut connections = scrape.sums_by_service("keygate_connections_total", "result");
        let unrouted = handshakes.get(UNROUTED).cloned().unwrap_or_default();
        let services = handshakes.into_iter().map(|(name, handshakes)| {
            let rejected =
                actions.remove(&name).and_then(|mut it| it.remove(KeyAction::Reject.as_str()));
            let mut clients = Self::from_handshakes(&handshakes, rejected.unwrap_or_default());
            for (result, count) in handshakes.iter().chain(&unrouted) {
                if result != HandshakeResult::Ok.as_str() && !clients.failed.contains_key(result) {
                    *clients.others.entry(result.clone()).or_default() += count;
                }
            }
            let results = connections.remove(&name).unwrap_or_default();
            let limited = results.get(ConnectionResult::Limited.as_str()).copied();
            clients.limited = limited.unwrap_or_default();
            (name, clients)
        });
        let questions = scrape.sums_by_service("keygate_questions_total", "result");
        let authorizers = questions.into_iter().map(|(name, mut questions)| {
            let admitted = questions.remove(QuestionResult::Allowed.as_str()).unwrap_or_default();
            let unusable = UNUSABLE.map(|it| questions.remove_entry(it.as_str()));
            questions.retain(|result, _| DENIED.iter().any(|it| it.as_str() == result));
            let unusable = unusable.into_iter().flatten().collect();
            (name, Self { admitted, failed: questions, unusable, ..Self::default() })
        });
        services.chain(authorizers).collect()
    }

    /// The clients with these results of `handshakes`, of whom `rejected` were rejected for their
    /// keys or by rules by name.
    fn from_handshakes(handshakes: &BTreeMap<String, f64>, rejected: f64) -> Self {
        let count = |result: HandshakeResult| handshakes.get(result.as_str()).copied();
        let failed = OF_CLIENTS.iter().filter_map(|it| Some((it.as_str().to_owned(), count(*it)?)));
        let mut failed: BTreeMap<String, f64> = failed.collect();
        let in_handshake = [HandshakeResult::Compromised, HandshakeResult::NotAllowed];
        let in_handshake: f64 = in_handshake.into_iter().filter_map(count).sum();
        let later = (rejected - in_handshake).max(0.0);
        failed.insert(AFTER_HANDSHAKE.to_owned(), later);
        let admitted = (count(HandshakeResult::Ok).unwrap_or_default() - later).max(0.0);
        Self { admitted, failed, ..Self::default() }
    }

    pub(super) fn failures(&self) -> f64 {
        self.failed.values().sum()
    }

    /// The clients since the counts were `before`.
    fn since(&self, before: Option<&Self>) -> Self {
        let none = Self::default();
        let before = before.unwrap_or(&none);
        Self {
            admitted: self.admitted - before.admitted,
            failed: growth(&self.failed, &before.failed),
            others: growth(&self.others, &before.others),
            limited: self.limited - before.limited,
            unusable: growth(&self.unusable, &before.unusable),
        }
    }
}

/// The clients of one service or authorizer, recently and since one got in.
#[derive(Debug, Clone, Default)]
pub(super) struct Admission {
    /// In the last five minutes.
    pub(super) recent: ClientCounts,
    /// In the last minute.
    pub(super) last_minute: ClientCounts,
    /// Time since a client got in, or since the service is known.
    pub(super) silence: Duration,
    /// Clients in that time.
    pub(super) since_success: ClientCounts,
    /// Whether a client got in since the start.
    pub(super) has_succeeded: bool,
    /// The handshakes in that time that scanners cause as well, by result, if they are more than
    /// usual and some clients usually get in.
    pub(super) unusual: BTreeMap<String, f64>,
}

/// Earlier values of the counters, for [`Admission`].
#[derive(Debug, Default)]
pub(super) struct Admissions {
    /// When the service was seen first and when a client got in last, and the counts then.
    successes: ByService<[(Instant, ClientCounts); 2]>,
}

/// The other results since the last success that are more frequent than between `first` and that.
fn unusual(
    [(first, known), (last, success)]: &[(Instant, ClientCounts); 2],
    since_success: &ClientCounts,
    now: Instant,
) -> BTreeMap<String, f64> {
    let before = last.duration_since(*first).max(MIN_PERIOD);
    let periods = now.duration_since(*last).div_duration_f64(before);
    let usual = growth(&success.others, &known.others);
    let clients = success.admitted * periods;
    let mut unusual = since_success.others.clone();
    unusual.retain(|result, count| {
        let usual = usual.get(result).copied().unwrap_or_default() * periods;
        clients >= EXPECTED && *count > UNUSUAL * usual
    });
    unusual
}

impl Admissions {
    /// The clients up to `now`; `before` are their counts five minutes and a minute ago. Forgets
    /// what was removed.
    pub(super) fn all(
        &mut self,
        clients: &ByService<ClientCounts>,
        before: [Option<&ByService<ClientCounts>>; 2],
        now: Instant,
    ) -> ByService<Admission> {
        self.successes.retain(|name, _| clients.contains_key(name));
        let admissions = clients.iter().map(|(name, counts)| {
            let successes = self.successes.entry(name.clone());
            let successes = successes.or_insert_with(|| [(); 2].map(|()| (now, counts.clone())));
            let [_, last] = successes;
            if counts.admitted > last.1.admitted {
                *last = (now, counts.clone());
            }
            let silence = now.duration_since(last.0);
            let since_success = counts.since(Some(&last.1));
            let [recent, last_minute] =
                before.map(|before| counts.since(before.and_then(|before| before.get(name))));
            let admission = Admission {
                recent,
                last_minute,
                silence,
                unusual: unusual(successes, &since_success, now),
                since_success,
                has_succeeded: counts.admitted > 0.0,
            };
            (name.clone(), admission)
        });
        admissions.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn handshakes<const N: usize>(counts: [(&str, f64); N]) -> BTreeMap<String, f64> {
        counts.map(|(result, count)| (result.to_owned(), count)).into()
    }

    #[test]
    fn clients_that_are_rejected_with_403_do_not_get_in() {
        let counts = handshakes([("ok", 10.0), ("compromised", 3.0), ("no_certificate", 99.0)]);
        let counts = ClientCounts::from_handshakes(&counts, 7.0);
        assert_eq!((counts.admitted, counts.failures()), (6.0, 7.0));
        assert_eq!(counts.failed[AFTER_HANDSHAKE], 4.0);
    }

    #[test]
    fn failures_are_unusual_in_a_long_silence_and_above_three_times_the_rate_before_it() {
        let (mut admissions, start) = (Admissions::default(), Instant::now());
        let mut at = |second, admitted, unsupported| {
            let now = start + Duration::from_secs(second);
            let others = handshakes([("unsupported", unsupported), ("timeout", 9.0)]);
            let counts = ClientCounts { admitted, others, ..ClientCounts::default() };
            let it = admissions.all(&[("orders".to_owned(), counts)].into(), [None; 2], now);
            it["orders"].unusual.get("unsupported").copied()
        };
        assert_eq!(at(0, 0.0, 0.0), None);
        assert_eq!(at(10, 0.0, 50.0), None, "no client got in yet");
        assert_eq!(at(100, 10.0, 100.0), None);
        assert_eq!(at(129, 10.0, 300.0), None, "three clients get in in 30 seconds");
        assert_eq!(at(130, 10.0, 190.0), None, "three times as many in that time are usual");
        assert_eq!(at(130, 10.0, 191.0), Some(91.0));
        assert_eq!(at(1100, 10.0, 3101.0), Some(3001.0), "after ten times as long");
        assert_eq!(at(1101, 11.0, 3101.0), None, "a client gets in");
    }

    #[test]
    fn the_silence_begins_with_the_last_client_that_gets_in() {
        let (mut admissions, start) = (Admissions::default(), Instant::now());
        let mut at = |second, ok, failed| {
            let now = start + Duration::from_secs(second);
            let counts = [("ok", ok), ("unknown_issuer", failed), ("client_gone", 1000.0)];
            let counts = ClientCounts::from_handshakes(&handshakes(counts), 0.0);
            let it =
                &admissions.all(&[("orders".to_owned(), counts)].into(), [None; 2], now)["orders"];
            (it.silence.as_secs(), it.since_success.failures(), it.has_succeeded)
        };
        assert_eq!(at(0, 0.0, 0.0), (0, 0.0, false));
        assert_eq!(at(30, 0.0, 4.0), (30, 4.0, false));
        assert_eq!(at(60, 5.0, 6.0), (0, 0.0, true));
        assert_eq!(at(90, 5.0, 6.0), (30, 0.0, true));
        assert_eq!(at(200, 5.0, 66.0), (140, 60.0, true));
        assert_eq!(at(230, 6.0, 67.0), (0, 0.0, true));
    }
}

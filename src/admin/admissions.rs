//! The clients of each service that get in and those that do not, and the rejections since the last
//! update of a file.
//!
//! The counts are the growth of the counters in `/metrics`.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use super::losses::growth;
use crate::metrics::ByService;
use crate::snapshot::{ReloadReport, Report};
use crate::tls::HandshakeResult;

/// Rejections in [`Update::recent`] from which an update needs attention, if they have also become
/// more than [`JUMP`] times as frequent.
const MIN_REJECTIONS: f64 = 5.0;
const JUMP: f64 = 3.0;
/// Time for which rejections are attributed to an update: one hour.
const ATTRIBUTED: Duration = Duration::from_secs(3600);

/// Handshakes that fail for a reason which a scanner without a certificate cannot cause. Those
/// without a certificate, of other protocols and of clients that leave without an alert are left
/// out. The alert `KeygateNobodyGetsIn` counts the same.
const OF_CLIENTS: [HandshakeResult; 7] = [
    HandshakeResult::BadSignature,
    HandshakeResult::Compromised,
    HandshakeResult::Expired,
    HandshakeResult::NotAllowed,
    HandshakeResult::Revoked,
    HandshakeResult::ServiceRejected,
    HandshakeResult::UnknownIssuer,
];
/// Label of the clients that are rejected after their handshakes: with 403, or by a resumed session.
const AFTER_HANDSHAKE: &str = "after the handshake";

/// The clients of one service since the start.
#[derive(Debug, Clone, Default)]
pub(super) struct ClientCounts {
    pub(super) admitted: f64,
    /// Those that did not get in, by result.
    pub(super) failed: BTreeMap<String, f64>,
}

impl ClientCounts {
    /// The clients with these results of `handshakes`, of whom `rejected` were rejected for their
    /// keys or by rules by name.
    pub(super) fn new(handshakes: &BTreeMap<String, f64>, rejected: f64) -> Self {
        let count = |result: HandshakeResult| handshakes.get(result.as_str()).copied();
        let failed = OF_CLIENTS.iter().filter_map(|it| Some((it.as_str().to_owned(), count(*it)?)));
        let mut failed: BTreeMap<String, f64> = failed.collect();
        let in_handshake = [HandshakeResult::Compromised, HandshakeResult::NotAllowed];
        let in_handshake: f64 = in_handshake.into_iter().filter_map(count).sum();
        let later = (rejected - in_handshake).max(0.0);
        failed.insert(AFTER_HANDSHAKE.to_owned(), later);
        Self { admitted: (count(HandshakeResult::Ok).unwrap_or_default() - later).max(0.0), failed }
    }

    pub(super) fn failures(&self) -> f64 {
        self.failed.values().sum()
    }

    /// The clients since the counts were `before`.
    fn since(&self, before: &Self) -> Self {
        let failed = growth(&self.failed, &before.failed);
        Self { admitted: self.admitted - before.admitted, failed }
    }
}

/// The clients of one service, recently and since one got in.
#[derive(Debug, Clone, Default)]
pub(super) struct Admission {
    /// In the last five minutes.
    pub(super) recent: ClientCounts,
    /// Time since a client got in, or since the service is known.
    pub(super) silence: Duration,
    /// Clients in that time that did not get in.
    pub(super) failures: f64,
    /// Whether a client got in since the start.
    pub(super) has_succeeded: bool,
}

/// Rejections of all clients since the start, at a moment.
pub(super) type Rejections = (Instant, f64);

/// An update of files that is in use, and the rejections of clients since.
#[derive(Debug, Clone)]
pub(super) struct Update {
    /// The files, such as `filter pwnedkeys, revision 7`, each with the id of its row.
    pub(super) files: Vec<(String, String)>,
    /// Rejections in a minute before the update.
    before: f64,
    /// The last rejections before the update.
    base: Rejections,
    pub(super) age: Duration,
    /// Rejections since the update, in the last five minutes at most.
    pub(super) recent: f64,
    /// The rejections in as many minutes before the update.
    pub(super) expected: f64,
}

impl Update {
    /// Whether clients are rejected that were not before.
    pub(super) fn is_jump(&self) -> bool {
        self.recent >= MIN_REJECTIONS && self.recent > JUMP * self.expected
    }
}

/// Earlier values of the counters, for [`Admission`] and [`Update`].
#[derive(Debug, Default)]
pub(super) struct Admissions {
    /// When a client got in last, and the counts then.
    successes: ByService<(Instant, ClientCounts)>,
    generation: u64,
    /// When the generation was compared, in seconds since the Unix epoch.
    compared: u64,
    update: Option<Update>,
}

impl Admissions {
    /// The clients of `service` up to `now`; `before` are their counts five minutes ago.
    pub(super) fn of_service(
        &mut self,
        service: &str,
        counts: &ClientCounts,
        before: &ClientCounts,
        now: Instant,
    ) -> Admission {
        let last = self.successes.entry(service.to_owned());
        let (at, last) = last.or_insert_with(|| (now, counts.clone()));
        if counts.admitted > last.admitted {
            (*at, *last) = (now, counts.clone());
        }
        Admission {
            recent: counts.since(before),
            silence: now.duration_since(*at),
            failures: counts.failures() - last.failures(),
            has_succeeded: counts.admitted > 0.0,
        }
    }

    /// The last update within an hour. `window` are the rejections five minutes ago, `last` those
    /// when this was called last, and `unix_now` is in seconds since the Unix epoch.
    pub(super) fn update(
        &mut self,
        report: &Report,
        unix_now: u64,
        now: Rejections,
        [window, last]: [Option<Rejections>; 2],
    ) -> Option<Update> {
        let is_new = self.generation > 0 && self.generation != report.generation;
        // An update that causes rejections stays for an hour, although others follow.
        if let (true, Some(base), Some(window)) = (is_new, last, window)
            && !self.update.as_ref().is_some_and(|it| it.age < ATTRIBUTED && it.is_jump())
        {
            let (files, before) =
                (loaded_files(report, self.compared), (base.1 - window.1) / minutes(window, base));
            let (age, recent, expected) = (Duration::ZERO, 0.0, 0.0);
            self.update = Some(Update { files, before, base, age, recent, expected });
        }
        (self.generation, self.compared) = (report.generation, unix_now);
        let update = self.update.as_mut()?;
        update.age = now.0.duration_since(update.base.0);
        let since = window.filter(|window| window.0 > update.base.0).unwrap_or(update.base);
        update.recent = now.1 - since.1;
        update.expected = update.before * minutes(since, now);
        self.update.clone().filter(|update| update.age < ATTRIBUTED)
    }
}

/// The minutes between two moments, one at least.
fn minutes(from: Rejections, to: Rejections) -> f64 {
    (to.0.duration_since(from.0).as_secs_f64() / 60.0).max(1.0)
}

/// The files that were loaded at `since` or later, in seconds since the Unix epoch; the snapshot if
/// there is none.
fn loaded_files(report: &Report, since: u64) -> Vec<(String, String)> {
    let is_loaded = |it: &ReloadReport| it.result == "loaded" && it.at >= since;
    let file = |kind, name: &str, more| (format!("{kind} {name}{more}"), format!("{kind}-{name}"));
    let filters = report
        .filters
        .iter()
        .filter(|it| it.loaded >= since)
        .map(|it| file("filter", &it.name, format!(", revision {}", it.summary.revision)));
    let lists = report.lists.iter().filter(|it| is_loaded(&it.last_reload));
    let lists = lists.map(|it| file("list", &it.name, String::new()));
    let services = report.services.iter().filter(|it| is_loaded(&it.last_reload)).map(|it| {
        let numbers = it.crls.iter().filter_map(|crl| crl.number.as_ref());
        let numbers = numbers.map(|number| format!(", CRL number {number}")).collect();
        file("service", &it.name, numbers)
    });
    let mut files: Vec<_> = filters.chain(lists).chain(services).collect();
    if files.is_empty() || report.configuration.as_ref().is_some_and(is_loaded) {
        files.push(("configuration".to_owned(), "configuration".to_owned()));
    }
    files
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(ok: f64, failed: f64) -> ClientCounts {
        let handshakes = [("ok", ok), ("unknown_issuer", failed), ("client_gone", 1000.0)];
        let handshakes = handshakes.map(|(result, count)| (result.to_owned(), count)).into();
        ClientCounts::new(&handshakes, 0.0)
    }

    #[test]
    fn clients_that_are_rejected_with_403_do_not_get_in() {
        let handshakes = [("ok", 10.0), ("compromised", 3.0), ("no_certificate", 99.0)];
        let handshakes = handshakes.map(|(result, count)| (result.to_owned(), count)).into();
        let counts = ClientCounts::new(&handshakes, 7.0);
        assert_eq!((counts.admitted, counts.failures()), (6.0, 7.0));
        assert_eq!(counts.failed[AFTER_HANDSHAKE], 4.0);
    }

    #[test]
    fn the_silence_begins_with_the_last_client_that_gets_in() {
        let (mut admissions, start) = (Admissions::default(), Instant::now());
        let none = ClientCounts::default();
        let mut at = |second, ok, failed| {
            let now = start + Duration::from_secs(second);
            let it = admissions.of_service("orders", &counts(ok, failed), &none, now);
            (it.silence.as_secs(), it.failures, it.has_succeeded)
        };
        assert_eq!(at(0, 0.0, 0.0), (0, 0.0, false));
        assert_eq!(at(30, 0.0, 4.0), (30, 4.0, false));
        assert_eq!(at(60, 5.0, 6.0), (0, 0.0, true));
        assert_eq!(at(90, 5.0, 6.0), (30, 0.0, true));
        assert_eq!(at(200, 5.0, 66.0), (140, 60.0, true));
        assert_eq!(at(230, 6.0, 67.0), (0, 0.0, true));
    }

    #[test]
    fn rejections_are_compared_with_those_before_the_update() {
        let (mut admissions, start) = (Admissions::default(), Instant::now());
        let mut report = Report { generation: 1, ..Report::default() };
        let loaded = ReloadReport { result: "loaded", reason: None, error: None, at: 1000 };
        let mut at = |generation, second: u64, all, window, last| {
            let at = |(second, all)| (start + Duration::from_secs(second), all);
            report.generation = generation;
            report.configuration = Some(loaded.clone());
            let earlier = [window, last].map(|it| Some(at(it)));
            let update = admissions.update(&report, 900 + second, at((second, all)), earlier);
            update.map(|update| (update.recent, update.expected, update.is_jump()))
        };
        assert_eq!(at(1, 0, 0.0, (0, 0.0), (0, 0.0)), None, "the start is no update");
        assert_eq!(at(1, 90, 30.0, (0, 0.0), (60, 20.0)), None);
        // Twenty rejections a minute before it.
        assert_eq!(at(2, 120, 40.0, (0, 0.0), (90, 30.0)), Some((10.0, 20.0, false)));
        assert_eq!(at(2, 180, 135.0, (0, 0.0), (150, 60.0)), Some((105.0, 30.0, true)));
        assert_eq!(
            at(3, 185, 136.0, (0, 0.0), (180, 135.0)).map(|it| it.2),
            Some(true),
            "it stays"
        );
        assert_eq!(at(3, 600, 137.0, (300, 136.0), (570, 136.0)).map(|it| it.0), Some(1.0));
        assert_eq!(at(3, 90 + 3600, 137.0, (3400, 137.0), (3660, 137.0)), None);
    }
}

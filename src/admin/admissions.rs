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

/// An update of files that is in use, and the rejections of clients since.
#[derive(Debug, Clone)]
pub(super) struct Update {
    /// The files, such as `filter pwnedkeys, revision 7`, each with the id of its row.
    pub(super) files: Vec<(String, String)>,
    at: Instant,
    /// Rejections in a minute before the update.
    before: f64,
    /// All rejections, at the last moment before the update.
    base: f64,
    /// Time since the update.
    pub(super) age: Duration,
    /// Rejections since the update, and in the last five minutes at most.
    pub(super) recent: f64,
    /// Rejections in the last minutes before the update, as many minutes.
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
    services: ByService<LastSuccess>,
    generation: u64,
    /// The files in use, by their rows.
    files: BTreeMap<String, LoadedFile>,
    /// When they were compared, in seconds since the Unix epoch.
    compared: u64,
    update: Option<Update>,
}

#[derive(Debug)]
struct LastSuccess {
    at: Instant,
    counts: ClientCounts,
}

/// The rejections of all clients at a moment.
#[derive(Debug, Clone, Copy)]
pub(super) struct Rejections {
    pub(super) at: Instant,
    pub(super) all: f64,
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
        let current = || LastSuccess { at: now, counts: counts.clone() };
        let last = self.services.entry(service.to_owned()).or_insert_with(current);
        if counts.admitted > last.counts.admitted {
            *last = current();
        }
        Admission {
            recent: counts.since(before),
            silence: now.duration_since(last.at),
            failures: counts.failures() - last.counts.failures(),
            has_succeeded: counts.admitted > 0.0,
        }
    }

    /// The files that differ from those in use before. If an update was in the second of the last
    /// comparison, those that were loaded then.
    fn changed_files(&self, report: &Report) -> Vec<(String, String)> {
        let names = |is_changed: &dyn Fn(&(String, LoadedFile)) -> bool| -> Vec<_> {
            let files = loaded_files(report).filter(is_changed);
            files.map(|(row, file)| (file.name, row)).collect()
        };
        let changed = names(&|(row, file)| self.files.get(row) != Some(file));
        if changed.is_empty() { names(&|(_, file)| file.at >= self.compared) } else { changed }
    }

    /// The last update within an hour and the rejections since. `window` are the rejections five
    /// minutes ago, `last` those when this was called last.
    pub(super) fn update(
        &mut self,
        report: &Report,
        unix_now: u64,
        now: Rejections,
        window: Option<Rejections>,
        last: Option<Rejections>,
    ) -> Option<Update> {
        let is_new = self.generation != report.generation && self.generation > 0;
        // An update that causes rejections stays until they end, although others follow.
        let files = if is_new { self.changed_files(report) } else { Vec::new() };
        if let Some(last) = last.filter(|_| !files.is_empty())
            && !self.update.as_ref().is_some_and(Update::is_jump)
        {
            let before =
                window.map_or(0.0, |window| (last.all - window.all) / minutes(window, last));
            self.update = Some(Update {
                files,
                at: now.at,
                before,
                base: last.all,
                age: Duration::ZERO,
                recent: 0.0,
                expected: 0.0,
            });
        }
        if self.generation != report.generation {
            self.files.extend(loaded_files(report));
        }
        (self.generation, self.compared) = (report.generation, unix_now);
        let update = self.update.as_mut()?;
        update.age = now.at.duration_since(update.at);
        let since = Rejections { at: update.at, all: update.base };
        let since = window.filter(|window| window.at > update.at).unwrap_or(since);
        update.recent = now.all - since.all;
        update.expected = update.before * minutes(since, now);
        self.update.clone().filter(|update| update.age < ATTRIBUTED)
    }
}

/// The minutes between two moments, one at least.
fn minutes(from: Rejections, to: Rejections) -> f64 {
    (to.at.duration_since(from.at).as_secs_f64() / 60.0).max(1.0)
}

/// A file in use, or the files of a service.
#[derive(Debug, PartialEq)]
struct LoadedFile {
    name: String,
    /// SHA-256, if the report has it.
    digest: Option<String>,
    /// When it was loaded, in seconds since the Unix epoch.
    at: u64,
}

/// The files that the last check of each has loaded, by the ids of their rows.
fn loaded_files(report: &Report) -> impl Iterator<Item = (String, LoadedFile)> {
    let loaded = |row, name, digest, reload: &ReloadReport| {
        (reload.result == "loaded").then(|| (row, LoadedFile { name, digest, at: reload.at }))
    };
    let filters = report.filters.iter().map(|it| {
        let name = format!("filter {}, revision {}", it.name, it.summary.revision);
        let digest = Some(it.summary.sha256.clone());
        (format!("filter-{}", it.name), LoadedFile { name, digest, at: it.loaded })
    });
    let lists = report.lists.iter().filter_map(move |it| {
        let row = format!("list-{}", it.name);
        loaded(row, format!("list {}", it.name), it.sha256.clone(), &it.last_reload)
    });
    let services = report.services.iter().filter_map(move |it| {
        let numbers = it.crls.iter().filter_map(|crl| crl.number.as_ref());
        let numbers: String = numbers.map(|number| format!(", CRL number {number}")).collect();
        let name = format!("certificates and CAs of service {}{numbers}", it.name);
        loaded(format!("service-{}", it.name), name, None, &it.last_reload)
    });
    let configuration = report.configuration.iter().filter_map(move |it| {
        loaded("configuration".to_owned(), "configuration".to_owned(), None, it)
    });
    filters.chain(lists).chain(services).chain(configuration)
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
            let at = |(second, all)| Rejections { at: start + Duration::from_secs(second), all };
            report.generation = generation;
            report.configuration = Some(loaded.clone());
            let unix_now = 900 + second;
            let update = admissions.update(
                &report,
                unix_now,
                at((second, all)),
                Some(at(window)),
                Some(at(last)),
            );
            update.map(|update| (update.recent, update.expected, update.is_jump()))
        };
        assert_eq!(at(1, 0, 0.0, (0, 0.0), (0, 0.0)), None, "the start is no update");
        assert_eq!(at(1, 90, 30.0, (0, 0.0), (60, 20.0)), None);
        // Twenty rejections a minute before it.
        assert_eq!(at(2, 120, 40.0, (0, 0.0), (90, 30.0)), Some((10.0, 20.0, false)));
        assert_eq!(at(2, 180, 95.0, (0, 0.0), (150, 60.0)), Some((65.0, 20.0, true)));
        assert_eq!(at(3, 185, 96.0, (0, 0.0), (180, 95.0)).map(|it| it.2), Some(true), "it stays");
        assert_eq!(at(3, 600, 97.0, (300, 96.0), (570, 96.0)).map(|it| it.0), Some(1.0));
        assert_eq!(at(3, 120 + 3600, 97.0, (3400, 97.0), (3690, 97.0)), None);
    }
}

//! The clients of each service and authorizer that get in and those that do not, and the rejections
//! since the last update of a file.
//!
//! The counts are the growth of the counters in `/metrics`.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use super::losses::growth;
use super::rejections;
use crate::guard::NameCheck;
use crate::metrics::{ByService, KeyAction, Label, QuestionResult, Scrape};
use crate::snapshot::{ReloadReport, Report};
use crate::tls::HandshakeResult;

/// Rejections in [`Update::recent`] from which an update needs attention, if they have also become
/// more than [`JUMP`] times as frequent.
const MIN_REJECTIONS: f64 = 5.0;
const JUMP: f64 = 3.0;
/// Time for which rejections are attributed to an update: one hour.
const ATTRIBUTED: Duration = Duration::from_secs(3600);

/// Handshakes that fail for a reason which a scanner without a certificate cannot cause, and
/// `service_rejected`, which a browser or probe without the CA of the service causes. The alert
/// `KeygateNobodyGetsIn` counts the same.
const OF_CLIENTS: [HandshakeResult; 7] = [
    HandshakeResult::BadSignature,
    HandshakeResult::Compromised,
    HandshakeResult::Expired,
    HandshakeResult::NotAllowed,
    HandshakeResult::Revoked,
    HandshakeResult::ServiceRejected,
    HandshakeResult::UnknownIssuer,
];
/// Questions about a client with a certificate that is not served. Visitors without a certificate
/// cause the other results.
const DENIED: [QuestionResult; 3] =
    [QuestionResult::ClientNotAllowed, QuestionResult::Denied, QuestionResult::NotVerified];
/// Label of the clients that are rejected after their handshakes: with 403, or by a resumed session.
const AFTER_HANDSHAKE: &str = "after the handshake";

/// The clients of one service, or the questions to one authorizer, since the start.
#[derive(Debug, Clone, Default)]
pub(super) struct ClientCounts {
    pub(super) admitted: f64,
    /// Those that did not get in, by result.
    pub(super) failed: BTreeMap<String, f64>,
}

impl ClientCounts {
    /// The clients of all services and authorizers.
    pub(super) fn all(scrape: &Scrape) -> ByService<Self> {
        let mut actions = rejections::actions(scrape);
        let handshakes = scrape.sums_by_service("keygate_handshakes_total", "result");
        let services = handshakes.into_iter().map(|(name, handshakes)| {
            let rejected =
                actions.remove(&name).and_then(|mut it| it.remove(KeyAction::Reject.as_str()));
            let clients = Self::of_service(&handshakes, rejected.unwrap_or_default());
            (name, clients)
        });
        let questions = scrape.sums_by_service("keygate_questions_total", "result");
        let authorizers = questions.into_iter().map(|(name, mut questions)| {
            let admitted = questions.remove(QuestionResult::Allowed.as_str()).unwrap_or_default();
            questions.retain(|result, _| DENIED.iter().any(|it| it.as_str() == result));
            (name, Self { admitted, failed: questions })
        });
        services.chain(authorizers).collect()
    }

    /// The clients with these results of `handshakes`, of whom `rejected` were rejected for their
    /// keys or by rules by name.
    fn of_service(handshakes: &BTreeMap<String, f64>, rejected: f64) -> Self {
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

/// The clients of one service or authorizer, recently and since one got in.
#[derive(Debug, Clone, Default)]
pub(super) struct Admission {
    /// In the last five minutes.
    pub(super) recent: ClientCounts,
    /// Time since a client got in, or since the service is known.
    pub(super) silence: Duration,
    /// Clients in that time.
    pub(super) since_success: ClientCounts,
    /// Whether a client got in since the start.
    pub(super) has_succeeded: bool,
}

/// Rejections of all clients since the start, by the files that cause them.
#[derive(Debug, Clone, Copy)]
pub(super) struct Rejections {
    pub(super) at: Instant,
    /// By trust anchors and revocation lists.
    by_cas: f64,
    /// By filters and lists, in the handshake or later.
    by_keys: f64,
    /// By rules by name.
    by_names: f64,
}

impl Rejections {
    pub(super) fn of(scrape: &Scrape, at: Instant) -> Self {
        let count = |series, label, values: &[&str]| -> f64 {
            let sums = scrape.sums(series, label);
            values.iter().filter_map(|value| sums.get(*value)).sum()
        };
        let by_cas = [HandshakeResult::Revoked, HandshakeResult::UnknownIssuer];
        let by_cas = count("keygate_handshakes_total", "result", &by_cas.map(|it| it.as_str()));
        let not_verified = [QuestionResult::NotVerified.as_str()];
        Self {
            at,
            by_cas: by_cas + count("keygate_questions_total", "result", &not_verified),
            by_keys: rejections::rejected(&scrape.sums("keygate_key_actions_total", "action")),
            by_names: count("keygate_name_checks_total", "result", &[NameCheck::NOT_ALLOWED]),
        }
    }

    /// The rejections that updates of these files cause.
    fn by(&self, files: &[UpdatedFile]) -> f64 {
        let has = |kinds: &[&str]| files.iter().any(|it| kinds.contains(&it.kind));
        let causes = [
            (self.by_cas, has(&["authorizer", CONFIGURATION, "service"])),
            (self.by_keys, has(&BY_KEYS)),
            (self.by_names, has(&[CONFIGURATION])),
        ];
        causes.iter().filter(|(_, is_cause)| *is_cause).map(|(count, _)| count).sum()
    }
}

const CONFIGURATION: &str = "configuration";
/// Kinds of files that reject clients for their keys.
const BY_KEYS: [&str; 3] = [CONFIGURATION, "filter", "list"];

/// A file of an update.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct UpdatedFile {
    kind: &'static str,
    /// When it was loaded, in seconds since the Unix epoch.
    at: u64,
    /// Such as `filter pwnedkeys, revision 7`.
    pub(super) text: String,
    /// Id of its row.
    pub(super) row: String,
}

/// An update of files that is in use, and the rejections of clients since.
#[derive(Debug, Clone)]
pub(super) struct Update {
    pub(super) files: Vec<UpdatedFile>,
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
    /// Whether a file of the update may reject clients for their keys.
    pub(super) fn rejects_keys(&self) -> bool {
        self.files.iter().any(|it| BY_KEYS.contains(&it.kind))
    }

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
    /// The loaded files and the rejections when the generation was compared.
    files: Vec<UpdatedFile>,
    last: Option<Rejections>,
    update: Option<Update>,
}

impl Admissions {
    /// The clients up to `now`; `before` are their counts five minutes ago. Forgets what was
    /// removed.
    pub(super) fn all(
        &mut self,
        clients: &ByService<ClientCounts>,
        before: Option<&ByService<ClientCounts>>,
        now: Instant,
    ) -> ByService<Admission> {
        self.successes.retain(|name, _| clients.contains_key(name));
        let none = ClientCounts::default();
        let admissions = clients.iter().map(|(name, counts)| {
            let last = self.successes.entry(name.clone());
            let (at, last) = last.or_insert_with(|| (now, counts.clone()));
            if counts.admitted > last.admitted {
                (*at, *last) = (now, counts.clone());
            }
            let before = before.and_then(|before| before.get(name)).unwrap_or(&none);
            let admission = Admission {
                recent: counts.since(before),
                silence: now.duration_since(*at),
                since_success: counts.since(last),
                has_succeeded: counts.admitted > 0.0,
            };
            (name.clone(), admission)
        });
        admissions.collect()
    }

    /// The last update within an hour. `window` are the rejections five minutes ago.
    pub(super) fn update(
        &mut self,
        report: &Report,
        now: Rejections,
        window: Option<Rejections>,
    ) -> Option<Update> {
        let is_new = self.generation > 0 && self.generation != report.generation;
        let last = self.last.replace(now);
        let files_before = std::mem::replace(&mut self.files, loaded_files(report));
        // An update that causes rejections stays for an hour, although others follow.
        if let (true, Some(base), Some(window)) = (is_new, last, window)
            && !self.update.as_ref().is_some_and(|it| it.age < ATTRIBUTED && it.is_jump())
        {
            let mut files = self.files.clone();
            files.retain(|it| !files_before.contains(it));
            if files.is_empty() {
                files.push(configuration_at(0));
            }
            let before = (base.by(&files) - window.by(&files)) / minutes(window, base);
            let (age, recent, expected) = (Duration::ZERO, 0.0, 0.0);
            self.update = Some(Update { files, before, base, age, recent, expected });
        }
        self.generation = report.generation;
        let update = self.update.as_mut()?;
        update.age = now.at.duration_since(update.base.at);
        let since = window.filter(|window| window.at > update.base.at).unwrap_or(update.base);
        update.recent = now.by(&update.files) - since.by(&update.files);
        update.expected = update.before * minutes(since, now);
        self.update.clone().filter(|update| update.age < ATTRIBUTED)
    }
}

/// The minutes between two moments, one at least.
fn minutes(from: Rejections, to: Rejections) -> f64 {
    (to.at.duration_since(from.at).as_secs_f64() / 60.0).max(1.0)
}

fn configuration_at(at: u64) -> UpdatedFile {
    let (text, row) = (CONFIGURATION.to_owned(), CONFIGURATION.to_owned());
    UpdatedFile { kind: CONFIGURATION, at, text, row }
}

/// The files whose last check has loaded them.
fn loaded_files(report: &Report) -> Vec<UpdatedFile> {
    let is_loaded = |it: &&ReloadReport| it.result == "loaded";
    let file = |kind, at, name: &str, more| UpdatedFile {
        kind,
        at,
        text: format!("{kind} {name}{more}"),
        row: format!("{kind}-{name}"),
    };
    let filters = report.filters.iter().map(|it| {
        let revision = format!(", revision {}", it.summary.revision);
        file("filter", it.loaded, &it.name, revision)
    });
    let lists = report.lists.iter().map(|it| ("list", &it.name, &[][..], &it.last_reload));
    let services =
        report.services.iter().map(|it| ("service", &it.name, &*it.crls, &it.last_reload));
    let authorizers =
        report.authorizers.iter().map(|it| ("authorizer", &it.name, &*it.crls, &it.last_reload));
    let others = lists.chain(services).chain(authorizers).filter(|(.., it)| is_loaded(it));
    let others = others.map(|(kind, name, crls, reload)| {
        let numbers = crls.iter().filter_map(|crl| crl.number.as_ref());
        let numbers = numbers.map(|number| format!(", CRL number {number}")).collect();
        file(kind, reload.at, name, numbers)
    });
    let configuration = report.configuration.as_ref().filter(is_loaded);
    let configuration = configuration.map(|it| configuration_at(it.at));
    filters.chain(others).chain(configuration).collect()
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
        let counts = ClientCounts::of_service(&counts, 7.0);
        assert_eq!((counts.admitted, counts.failures()), (6.0, 7.0));
        assert_eq!(counts.failed[AFTER_HANDSHAKE], 4.0);
    }

    #[test]
    fn the_silence_begins_with_the_last_client_that_gets_in() {
        let (mut admissions, start) = (Admissions::default(), Instant::now());
        let mut at = |second, ok, failed| {
            let now = start + Duration::from_secs(second);
            let counts = [("ok", ok), ("unknown_issuer", failed), ("client_gone", 1000.0)];
            let counts = ClientCounts::of_service(&handshakes(counts), 0.0);
            let it = &admissions.all(&[("orders".to_owned(), counts)].into(), None, now)["orders"];
            (it.silence.as_secs(), it.since_success.failures(), it.has_succeeded)
        };
        assert_eq!(at(0, 0.0, 0.0), (0, 0.0, false));
        assert_eq!(at(30, 0.0, 4.0), (30, 4.0, false));
        assert_eq!(at(60, 5.0, 6.0), (0, 0.0, true));
        assert_eq!(at(90, 5.0, 6.0), (30, 0.0, true));
        assert_eq!(at(200, 5.0, 66.0), (140, 60.0, true));
        assert_eq!(at(230, 6.0, 67.0), (0, 0.0, true));
    }

    #[test]
    fn an_update_causes_the_rejections_of_its_kind_only() {
        let (at, by_cas, by_keys, by_names) = (Instant::now(), 1.0, 10.0, 100.0);
        let rejections = Rejections { at, by_cas, by_keys, by_names };
        for (kind, expected) in [
            ("authorizer", 1.0),
            ("configuration", 111.0),
            ("filter", 10.0),
            ("list", 10.0),
            ("service", 1.0),
        ] {
            let file = UpdatedFile { kind, ..configuration_at(0) };
            assert_eq!(rejections.by(&[file]), expected, "{kind}");
        }
    }

    #[test]
    fn rejections_are_compared_with_those_before_the_update() {
        let (mut admissions, start) = (Admissions::default(), Instant::now());
        let mut report = Report { generation: 1, ..Report::default() };
        let loaded = ReloadReport { result: "loaded", reason: None, error: None, at: 1000 };
        let mut at = |generation, second: u64, all, window| {
            let at = |(second, by_cas)| {
                let at = start + Duration::from_secs(second);
                Rejections { at, by_cas, by_keys: 0.0, by_names: 0.0 }
            };
            report.generation = generation;
            report.configuration = Some(loaded.clone());
            let (now, window) = (at((second, all)), Some(at(window)));
            let update = admissions.update(&report, now, window);
            update.map(|update| (update.recent, update.expected, update.is_jump()))
        };
        assert_eq!(at(1, 0, 0.0, (0, 0.0)), None, "the start is no update");
        assert_eq!(at(1, 90, 30.0, (0, 0.0)), None);
        // Twenty rejections a minute before it.
        assert_eq!(at(2, 120, 40.0, (0, 0.0)), Some((10.0, 20.0, false)));
        assert_eq!(at(2, 180, 135.0, (0, 0.0)), Some((105.0, 30.0, true)));
        assert_eq!(at(3, 185, 136.0, (0, 0.0)).map(|it| it.2), Some(true), "it stays");
        assert_eq!(at(3, 600, 137.0, (300, 136.0)).map(|it| it.0), Some(1.0));
        assert_eq!(at(3, 90 + 3600, 137.0, (3400, 137.0)), None);
    }
}

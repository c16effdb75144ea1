//! Updates of files, and the rejections of clients since.

use std::time::{Duration, Instant};

use keygate_core::guard::NameCheck;
use keygate_core::tls::HandshakeResult;

use crate::admin::rejections;
use crate::metrics::{Label, QuestionResult, Scrape};
use crate::snapshot::Report;
use crate::sources::ReloadReport;

/// Rejections in [`Update::recent`] from which an update needs attention, if they have also become
/// more than [`JUMP`] times as frequent.
const MIN_REJECTIONS: f64 = 5.0;
const JUMP: f64 = 3.0;
/// Time for which rejections are attributed to an update: one hour.
const ATTRIBUTED: Duration = Duration::from_secs(3600);

/// Rejections of all clients since the start, by the files that cause them.
#[derive(Debug, Clone, Copy)]
pub(in crate::admin) struct Rejections {
    pub(in crate::admin) at: Instant,
    /// By trust anchors and revocation lists.
    by_cas: f64,
    /// By filters and lists, in the handshake or later.
    by_keys: f64,
    /// By rules by name.
    by_names: f64,
}

impl Rejections {
    pub(in crate::admin) fn new(scrape: &Scrape, at: Instant) -> Self {
        let count = |series, label, values: &[&str]| -> f64 {
            let sums = scrape.sums(series, label);
            values.iter().filter_map(|value| sums.get(*value)).sum()
        };
        let by_cas =
            [HandshakeResult::NotVouched, HandshakeResult::Revoked, HandshakeResult::UnknownIssuer];
        let by_cas = count("keygate_handshakes_total", "result", &by_cas.map(|it| it.as_str()));
        let not_verified =
            [QuestionResult::NotVerified, QuestionResult::NotVouched].map(|it| it.as_str());
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
pub(in crate::admin) struct UpdatedFile {
    kind: &'static str,
    /// When it was loaded, in seconds since the Unix epoch.
    at: u64,
    /// Such as `filter pwnedkeys, revision 7`.
    pub(in crate::admin) text: String,
    /// Id of its row.
    pub(in crate::admin) row: String,
}

/// An update of files that is in use, and the rejections of clients since.
#[derive(Debug, Clone)]
pub(in crate::admin) struct Update {
    pub(in crate::admin) files: Vec<UpdatedFile>,
    /// Rejections in a minute before the update.
    before: f64,
    /// The last rejections before the update.
    base: Rejections,
    pub(in crate::admin) age: Duration,
    /// Rejections since the update, in the last five minutes at most.
    pub(in crate::admin) recent: f64,
    /// The beginning of that time.
    counted_from: Instant,
    /// Rejections since the update, in the last minute at most.
    last_minute: f64,
    /// The rejections in as many minutes before the update.
    pub(in crate::admin) expected: f64,
}

impl Update {
    /// Whether a file of the update may reject clients for their keys.
    pub(in crate::admin) fn rejects_keys(&self) -> bool {
        self.files.iter().any(|it| BY_KEYS.contains(&it.kind))
    }

    /// Whether [`Update::recent`] begins after the update.
    pub(in crate::admin) fn is_older_than_counted(&self) -> bool {
        self.counted_from > self.base.at
    }

    /// Whether clients are rejected that were not before, in the last minute too.
    pub(in crate::admin) fn is_jump(&self) -> bool {
        let has_jumped = self.recent >= MIN_REJECTIONS && self.recent > JUMP * self.expected;
        has_jumped && self.last_minute > 0.0
    }

    /// Whether the other update has none of the objects of this one, which it would replace.
    fn is_beside(&self, other: &[UpdatedFile]) -> bool {
        !self.files.iter().any(|it| other.iter().any(|other| other.row == it.row))
    }

    /// Compares the rejections up to `now`; the others are from five minutes and from a minute ago.
    fn compare(&mut self, now: Rejections, window: Rejections, minute: Rejections) {
        let since =
            |earlier: Rejections| if earlier.at > self.base.at { earlier } else { self.base };
        let (window, minute) = (since(window), since(minute));
        self.age = now.at.duration_since(self.base.at);
        self.counted_from = window.at;
        self.recent = now.by(&self.files) - window.by(&self.files);
        self.last_minute = now.by(&self.files) - minute.by(&self.files);
        self.expected = self.before * minutes(window, now);
    }
}

/// The updates of files of the last hour.
#[derive(Debug, Default)]
pub(in crate::admin) struct Updates {
    generation: u64,
    /// The loaded files and the rejections when the generation was compared.
    files: Vec<UpdatedFile>,
    last: Option<Rejections>,
    /// The last update, after the earlier one that causes rejections, if there is one.
    updates: Vec<Update>,
}

impl Updates {
    /// The updates within an hour: the last one, after the earlier one that causes rejections, if
    /// there is one. `before` are the rejections five minutes and a minute ago.
    pub(in crate::admin) fn all(
        &mut self,
        report: &Report,
        now: Rejections,
        before: Option<[Rejections; 2]>,
    ) -> Vec<Update> {
        self.compare(report.generation, loaded_files(report), now, before)
    }

    /// The updates, once `files` belong to the generation.
    fn compare(
        &mut self,
        generation: u64,
        files: Vec<UpdatedFile>,
        now: Rejections,
        before: Option<[Rejections; 2]>,
    ) -> Vec<Update> {
        let is_new = self.generation > 0 && self.generation != generation;
        let last = self.last.replace(now);
        let files_before = std::mem::replace(&mut self.files, files);
        self.generation = generation;
        let Some([window, minute]) = before else { return Vec::new() };
        if let (true, Some(base)) = (is_new, last) {
            let mut files = self.files.clone();
            files.retain(|it| !files_before.contains(it));
            if files.is_empty() {
                files.push(configuration_at(0));
            }
            self.updates.retain(|it| it.is_jump() && it.is_beside(&files));
            self.updates.truncate(1);
            let before = (base.by(&files) - window.by(&files)) / minutes(window, base);
            let (age, recent, last_minute, expected) = (Duration::ZERO, 0.0, 0.0, 0.0);
            self.updates.push(Update {
                files,
                before,
                base,
                age,
                recent,
                counted_from: base.at,
                last_minute,
                expected,
            });
        }
        self.updates.iter_mut().for_each(|update| update.compare(now, window, minute));
        self.updates.retain(|update| update.age < ATTRIBUTED);
        self.updates.clone()
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
    let lists = report.lists.iter().map(|it| ("list", &it.name, &it.last_reload));
    let services = report.services.iter().map(|it| ("service", &it.name, &it.last_reload));
    let authorizers = report.authorizers.iter().map(|it| ("authorizer", &it.name, &it.last_reload));
    let others = lists.chain(services).chain(authorizers).filter(|(.., it)| is_loaded(it));
    let others = others.map(|(kind, name, reload)| {
        let files = reload.files.as_ref().map(|files| format!(": {files}"));
        file(kind, reload.at, name, files.unwrap_or_default())
    });
    let configuration = report.configuration.as_ref().filter(is_loaded);
    let configuration = configuration.map(|it| configuration_at(it.at));
    filters.chain(others).chain(configuration).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

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
    fn rejections_are_compared_with_those_before_the_update_until_they_stop() {
        let (mut updates, start) = (Updates::default(), Instant::now());
        // Each call has the rejections now, five minutes ago and a minute ago.
        let mut at = |generation, names: &[&str], counts: [(u64, f64); 3]| {
            let [now, window, minute] = counts.map(|(second, by_keys)| {
                let at = start + Duration::from_secs(second);
                Rejections { at, by_cas: 0.0, by_keys, by_names: 0.0 }
            });
            let file = |name: &&str| {
                let row = name.split(',').next().unwrap().to_owned();
                UpdatedFile { kind: "filter", at: 0, text: (*name).to_owned(), row }
            };
            let files = names.iter().map(file).collect();
            let updates = updates.compare(generation, files, now, Some([window, minute]));
            let updates = updates.into_iter();
            let text = |it: &Update| it.files[0].text.clone();
            let is_old = |it: &Update| it.is_older_than_counted();
            updates.map(|it| (text(&it), it.recent, it.is_jump(), is_old(&it))).collect::<Vec<_>>()
        };
        let update = |text: &str, recent, is_jump| (text.to_owned(), recent, is_jump, false);
        let zero = (0, 0.0);
        assert_eq!(at(1, &[], [zero; 3]), [], "the start is no update");
        assert_eq!(at(1, &[], [(90, 30.0), zero, zero]), []);
        // Twenty rejections a minute before it.
        let before = (90, 30.0);
        assert_eq!(at(2, &["a, 1"], [(120, 40.0), zero, before]), [update("a, 1", 10.0, false)]);
        let jump = [(180, 1035.0), zero, (120, 40.0)];
        assert_eq!(at(2, &["a, 1"], jump), [update("a, 1", 1005.0, true)]);
        let other = ["a, 1", "b, 1"];
        let both = [update("a, 1", 1006.0, true), update("b, 1", 1.0, false)];
        assert_eq!(at(3, &other, [(185, 1036.0), zero, (120, 40.0)]), both, "it stays");
        let ended = [update("a, 1", 1006.0, false), update("b, 1", 1.0, false)];
        assert_eq!(at(3, &other, [(260, 1036.0), zero, (190, 1036.0)]), ended, "for a minute");
        assert!(at(3, &other, [(265, 1037.0), zero, (190, 1036.0)])[0].2, "it begins again");
        let names = ["a, 2", "b, 1"];
        let replaced = [update("a, 2", 1.0, false)];
        assert_eq!(at(4, &names, [(270, 1038.0), zero, (200, 1036.0)]), replaced, "its successor");
        let later = [(700, 1043.0), (400, 1039.0), (640, 1042.0)];
        let of_five_minutes = [("a, 2".to_owned(), 4.0, false, true)];
        assert_eq!(at(4, &names, later), of_five_minutes);
        assert_eq!(at(4, &names, [(265 + 3600, 1038.0), zero, zero]), [], "an hour");
    }
}

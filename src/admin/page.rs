//! The status page at `/`. It works without JavaScript and loads nothing from other hosts.

pub(super) mod expiries;
pub(super) mod text;
mod time;

use askama::Template;

use self::expiries::{Expiry, expiries};
use self::time::ago;
use super::AdminState;
use super::attention::{Attention, attention};
use super::chart::Chart;
use super::history::HourCounts;
use crate::confirm::{CanaryState, ConfirmReport};
use crate::guard::VerdictKind;
use crate::metrics::{Exposition, KeyAction, Label, QuestionResult};
use crate::recent_hits::{AllHits, RecentHit};
use crate::snapshot::{
    AffectedClient, AuthorizerReport, FilterReport, ListReport, ReloadReport, ServiceReport,
};
use crate::unix_time::rfc3339;

/// Maximum number of clients on the page, most recent first.
const MAX_CLIENTS: usize = 50;
/// Maximum number of answers of the source of proofs on the page, most recent first.
const MAX_ANSWERS: usize = 10;

#[derive(Template)]
#[template(path = "page.html")]
struct StatusPage<'a> {
    version: &'static str,
    is_ready: bool,
    /// The conditions that need attention, worst first.
    attention: Vec<Attention>,
    generation: u64,
    /// Result of the last reload of the configuration.
    configuration: Option<Badge>,
    now: String,
    filters: Vec<FilterRow<'a>>,
    lists: Vec<ListRow<'a>>,
    /// The source of proofs, if one is configured.
    confirm: Option<ConfirmCard<'a>>,
    verdicts: Vec<CountRow>,
    actions: Vec<CountRow>,
    chart: Chart,
    clients: Vec<ClientRow<'a>>,
    shown: usize,
    known: usize,
    forgotten: u64,
    expiries: Vec<Expiry>,
    services: Vec<ServiceRow<'a>>,
    authorizers: Vec<AuthorizerRow<'a>>,
}

/// A highlighted text.
pub(super) struct Badge {
    /// CSS class: `good`, `warn` or `bad`.
    pub(super) kind: &'static str,
    text: String,
}

impl Badge {
    fn new(kind: &'static str, text: impl Into<String>) -> Self {
        Self { kind, text: text.into() }
    }
}

struct FilterRow<'a> {
    name: &'a str,
    path: &'a str,
    sha256: &'a str,
    state: Badge,
    revision: u32,
    updated: String,
    entries: u32,
    fill: String,
    false_positives: String,
    loaded: String,
    last_reload: String,
    last_rejection: String,
    /// Recent clients that the waiting update would reject.
    affected: &'a [AffectedClient],
}

struct ListRow<'a> {
    name: &'a str,
    format: &'static str,
    entries: usize,
    /// Date of the list, and whether it is older than `max_age`.
    updated: String,
    last_reload: String,
}

/// The source of proofs and its last answers.
struct ConfirmCard<'a> {
    source: &'a str,
    filters: String,
    state: Badge,
    pending: usize,
    confirmed: usize,
    cleared: usize,
    questions_per_day: String,
    last_answer: &'a str,
    last_error: &'a str,
    answers: Vec<AnswerRow<'a>>,
}

struct AnswerRow<'a> {
    time: &'a str,
    verdict: &'static str,
    fingerprint: &'a str,
    /// The path of the proof, or the time at which the key is asked about again.
    detail: String,
}

struct CountRow {
    name: &'static str,
    hour: f64,
    day: f64,
    week: f64,
}

struct ClientRow<'a> {
    last_seen: String,
    service: &'a str,
    verdict: &'static str,
    action: &'static str,
    count: u64,
    /// `-` if it is not known.
    address: String,
    subject: &'a str,
    issuer: &'a str,
    serial: &'a str,
    found_in: String,
    /// Name of the proof of a confirmed key; empty without one.
    proof: &'a str,
    /// Subject and fingerprint of the issuer whose key was found; empty if it is the client's own.
    found_subject: &'a str,
    found_fingerprint: &'a str,
    fingerprint: &'a str,
}

struct ServiceRow<'a> {
    name: &'a str,
    listen: &'a str,
    server_names: String,
    upstream: String,
    on_confirmed: &'static str,
    on_probable: &'static str,
    on_cleared: &'static str,
    on_listed: &'static str,
    on_unchecked: &'static str,
    last_reload: String,
}

struct AuthorizerRow<'a> {
    name: &'a str,
    listen: &'a str,
    protocol: &'static str,
    certificate_from: &'a str,
    last_question: String,
    askers: f64,
    allowed: f64,
    denied: f64,
    /// Questions that were denied without a judgement.
    unusable: f64,
    /// Share of the questions that have no certificate that can be used, in percent.
    without_certificate: String,
}

/// Renders the page at `now`, in seconds since the Unix epoch.
pub(super) fn render(state: &AdminState, now: u64) -> Result<String, askama::Error> {
    with_page(state, now, |page| page.render())
}

/// Calls `render` with the page at `now`, in seconds since the Unix epoch.
fn with_page<T>(state: &AdminState, now: u64, render: impl FnOnce(&StatusPage<'_>) -> T) -> T {
    let (report, confirm) = (state.report.load(), state.confirm.load());
    let AllHits { hits, evicted } = state.recent_hits.all();
    let hours = state.update_history(now);
    let clients: Vec<_> = hits.iter().take(MAX_CLIENTS).map(|hit| client(hit, now)).collect();
    let page = StatusPage {
        version: env!("CARGO_PKG_VERSION"),
        is_ready: state.not_ready().is_none(),
        attention: attention(state, now),
        generation: report.generation,
        configuration: report.configuration.as_ref().map(|it| configuration(it, now)),
        now: rfc3339(now),
        filters: report.filters.iter().map(|report| filter(report, now)).collect(),
        lists: report.lists.iter().map(|report| list(report, now)).collect(),
        confirm: confirm.as_ref().map(confirm_card),
        verdicts: counts::<VerdictKind>(&hours, |hour| &hour.verdicts),
        actions: counts::<KeyAction>(&hours, |hour| &hour.actions),
        chart: Chart::new(&hours, now),
        shown: clients.len(),
        known: hits.len(),
        clients,
        forgotten: evicted,
        expiries: expiries(&report, now),
        services: report.services.iter().map(|report| service(report, now)).collect(),
        authorizers: (report.authorizers.iter())
            .map(|report| authorizer(report, &state.exposition, now))
            .collect(),
    };
    render(&page)
}

fn configuration(reload: &ReloadReport, now: u64) -> Badge {
    let kind = if reload.error.is_some() { "bad" } else { "good" };
    Badge::new(kind, outcome(reload, now))
}

fn filter(report: &FilterReport, now: u64) -> FilterRow<'_> {
    let summary = &report.summary;
    let state = if let Some(waiting) = &report.waiting {
        let reason = report.last_reload.reason.map(|reason| format!("{reason}, "));
        let (reason, new_hits) = (reason.unwrap_or_default(), waiting.new_hits);
        Badge::new("warn", format!("an update waits ({reason}new hits: {new_hits})"))
    } else if report.last_good_in_use {
        Badge::new("bad", "last good filter in use, file rejected")
    } else if report.last_reload.error.is_some() {
        Badge::new("bad", "update rejected")
    } else if report.stale {
        Badge::new("warn", "stale")
    } else {
        Badge::new("good", "in use")
    };
    let updated = if summary.updated == 0 { "never".to_owned() } else { ago(summary.updated, now) };
    FilterRow {
        name: &report.name,
        path: &summary.path,
        sha256: &summary.sha256,
        state,
        revision: summary.revision,
        updated,
        entries: summary.entries,
        fill: format!("{:.1} %", summary.fill_ratio * 100.0),
        false_positives: format!("{:.1e}", summary.false_positive_ratio),
        loaded: ago(report.loaded, now),
        last_reload: outcome(&report.last_reload, now),
        last_rejection: report
            .last_rejection
            .as_ref()
            .map_or("none".to_owned(), |it| outcome(it, now)),
        affected: report.waiting.as_ref().map_or(&[], |waiting| &waiting.clients),
    }
}

fn confirm_card(report: &ConfirmReport) -> ConfirmCard<'_> {
    let state = match (&report.blocked_until, report.canary) {
        (_, CanaryState::Failed) => Badge::new("bad", "canary not known: no key is cleared"),
        (Some(until), CanaryState::Off | CanaryState::Ok | CanaryState::Unchecked) => {
            Badge::new("warn", format!("no questions until {until}"))
        }
        (None, CanaryState::Off) => Badge::new("warn", "no canary: no key is cleared"),
        (None, CanaryState::Ok) => Badge::new("good", "canary known"),
        (None, CanaryState::Unchecked) => Badge::new("warn", "canary not checked yet"),
    };
    let answers = report.answers.iter().take(MAX_ANSWERS).map(|answer| {
        let until = answer.until.as_ref().map(|until| format!("asked again {until}"));
        AnswerRow {
            time: &answer.time,
            verdict: answer.verdict,
            fingerprint: &answer.fingerprint,
            detail: answer.proof_file.clone().or(until).unwrap_or_default(),
        }
    });
    ConfirmCard {
        source: &report.source,
        filters: report.filters.join(", "),
        state,
        pending: report.pending,
        confirmed: report.confirmed,
        cleared: report.cleared,
        questions_per_day: format!("{:.1}", report.questions_per_day),
        last_answer: report.last_answer.as_deref().unwrap_or("none"),
        last_error: report.last_error.as_deref().unwrap_or("none"),
        answers: answers.collect(),
    }
}

fn list(report: &ListReport, now: u64) -> ListRow<'_> {
    let last_reload = outcome(&report.last_reload, now);
    let updated = report.updated.map_or_else(|| "-".to_owned(), |updated| ago(updated, now));
    let stale = if report.stale { ", stale" } else { "" };
    ListRow {
        name: &report.name,
        format: report.format,
        entries: report.entries,
        updated: format!("{updated}{stale}"),
        last_reload,
    }
}

fn service(report: &ServiceReport, now: u64) -> ServiceRow<'_> {
    let names = &report.server_names;
    ServiceRow {
        name: &report.name,
        listen: &report.listen,
        server_names: if names.is_empty() { "any other".to_owned() } else { names.join(", ") },
        upstream: report.upstream.join(", "),
        on_confirmed: report.on_confirmed,
        on_probable: report.on_probable,
        on_cleared: report.on_cleared,
        on_listed: report.on_listed,
        on_unchecked: report.on_unchecked,
        last_reload: outcome(&report.last_reload, now),
    }
}

fn authorizer<'a>(
    report: &'a AuthorizerReport,
    exposition: &Exposition,
    now: u64,
) -> AuthorizerRow<'a> {
    let results = exposition.sums_of("keygate_questions_total", &report.name, "result");
    let count = |result: QuestionResult| results.get(result.as_str()).copied().unwrap_or_default();
    let verdicts = exposition.sums_of("keygate_key_checks_total", &report.name, "verdict");
    let unchecked = verdicts.get(VerdictKind::Unchecked.as_str()).copied().unwrap_or_default();
    let (allowed, denied) = (count(QuestionResult::Allowed), count(QuestionResult::Denied));
    let malformed = count(QuestionResult::Malformed);
    let unusable = malformed + count(QuestionResult::NotVerified) + count(QuestionResult::Oversize);
    let all = allowed + denied + unusable;
    let share = if all > 0.0 { (unchecked + malformed) / all * 100.0 } else { 0.0 };
    let askers = exposition.sums_of("keygate_askers_active", &report.name, "service");
    AuthorizerRow {
        name: &report.name,
        listen: &report.listen,
        protocol: report.protocol,
        certificate_from: &report.certificate_from,
        last_question: (report.last_question.seconds())
            .map_or("none".to_owned(), |seconds| ago(seconds, now)),
        askers: askers.values().sum(),
        allowed,
        denied,
        unusable,
        without_certificate: format!("{share:.1} %"),
    }
}

fn client(seen: &RecentHit, now: u64) -> ClientRow<'_> {
    let client = seen.client.as_ref();
    let found_in = seen.source.list.as_ref().or(seen.source.filter.as_ref());
    let finding = seen.source.finding.as_ref().map(|it| format!(": {it}")).unwrap_or_default();
    ClientRow {
        last_seen: ago(seen.last_seen, now),
        service: &seen.service,
        verdict: seen.result.unwrap_or(seen.verdict),
        action: seen.action,
        count: seen.count,
        address: seen.address.map_or("-".to_owned(), |address| address.to_string()),
        subject: client.map_or("no certificate", |client| &client.subject),
        issuer: client.map_or("", |client| &client.issuer),
        serial: client.map_or("", |client| &client.serial),
        found_in: found_in.map_or_else(String::new, |list| format!("{list}{finding}")),
        proof: seen.source.proof.as_deref().unwrap_or_default(),
        found_subject: seen.source.found_subject.as_deref().unwrap_or_default(),
        found_fingerprint: seen.source.found_fingerprint.as_deref().unwrap_or_default(),
        fingerprint: seen.fingerprint(),
    }
}

/// Formats time and result of a reload.
fn outcome(reload: &ReloadReport, now: u64) -> String {
    let result = match (reload.reason, &reload.error) {
        (Some(reason), Some(error)) => format!("{} ({reason}): {error}", reload.result),
        (None, Some(error)) => format!("{}: {error}", reload.result),
        (_, None) => reload.result.to_owned(),
    };
    format!("{}: {result}", ago(reload.at, now))
}

fn counts<L: Label>(
    hours: &[HourCounts],
    counts_of: impl Fn(&HourCounts) -> &std::collections::BTreeMap<String, f64>,
) -> Vec<CountRow> {
    let last = |count: usize, name: &str| {
        let hours = hours.iter().rev().take(count);
        hours.filter_map(|hour| counts_of(hour).get(name)).fold(0.0, |sum, count| sum + count)
    };
    let row = |label: &L| {
        let name = label.as_str();
        CountRow { name, hour: last(1, name), day: last(24, name), week: last(hours.len(), name) }
    };
    L::ALL.iter().map(row).collect()
}

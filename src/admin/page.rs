//! The page at `/`: what an operator looks at first. It needs no JavaScript, and nothing from anywhere
//! else.

use askama::Template;

use super::State;
use super::chart::Chart;
use super::history::Hour;
use crate::guard::VerdictKind;
use crate::metrics::{KeyAction, Label};
use crate::proxy::Stage;
use crate::recent_hits::RecentHit;
use crate::snapshot::{FilterReport, ListReport, ReloadReport, Report, ServiceReport};
use crate::unix_time::rfc3339;

/// So many of the last refused and flagged clients.
const CLIENTS: usize = 50;
/// So many of the certificates, revocation lists and exceptions that end first.
const ENDS: usize = 20;
/// What ends within so many seconds is pointed out.
const SOON: u64 = 14 * 86_400;

#[derive(Template)]
#[template(path = "page.html")]
struct Page<'a> {
    version: &'static str,
    is_ready: bool,
    generation: u64,
    /// What became of the last change of the configuration.
    configuration: Option<Mark>,
    now: String,
    filters: Vec<FilterRow<'a>>,
    lists: Vec<ListRow<'a>>,
    verdicts: Vec<CountRow>,
    actions: Vec<CountRow>,
    chart: Chart,
    clients: Vec<ClientRow<'a>>,
    shown: usize,
    known: usize,
    forgotten: u64,
    ends: Vec<End>,
    services: Vec<ServiceRow<'a>>,
}

/// A word, and whether it is good news.
struct Mark {
    kind: &'static str,
    text: String,
}

impl Mark {
    fn new(kind: &'static str, text: impl Into<String>) -> Self {
        Self { kind, text: text.into() }
    }
}

struct FilterRow<'a> {
    name: &'a str,
    path: &'a str,
    sha256: &'a str,
    state: Mark,
    revision: u32,
    updated: String,
    entries: u32,
    fill: String,
    false_positives: String,
    loaded: String,
    last_reload: String,
    last_refusal: String,
}

struct ListRow<'a> {
    name: &'a str,
    entries: usize,
    last_reload: String,
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
    address: &'a str,
    subject: &'a str,
    issuer: &'a str,
    serial: &'a str,
    found_in: &'a str,
    fingerprint: &'a str,
}

struct End {
    seconds: u64,
    state: Mark,
    at: String,
    what: &'static str,
    of: String,
}

struct ServiceRow<'a> {
    name: &'a str,
    listen: &'a str,
    server_names: String,
    upstream: String,
    on_probable: &'static str,
    on_listed: &'static str,
    on_unchecked: &'static str,
    last_reload: String,
}

/// The page as it is at `now`, in seconds since the Unix epoch.
pub(super) fn render(state: &State, now: u64) -> Result<String, askama::Error> {
    let report = state.report.load();
    let (recent_hits, forgotten) = state.recent_hits.all();
    let hours = state.hours(now);
    let clients: Vec<_> = recent_hits.iter().take(CLIENTS).map(|seen| client(seen, now)).collect();
    let page = Page {
        version: env!("CARGO_PKG_VERSION"),
        is_ready: *state.stage.borrow() == Stage::Serving,
        generation: report.generation,
        configuration: report.configuration.as_ref().map(|it| configuration(it, now)),
        now: rfc3339(now),
        filters: report.filters.iter().map(|report| filter(report, now)).collect(),
        lists: report.lists.iter().map(|report| list(report, now)).collect(),
        verdicts: counts::<VerdictKind>(&hours, |hour| &hour.verdicts),
        actions: counts::<KeyAction>(&hours, |hour| &hour.actions),
        chart: Chart::of(&hours, now),
        shown: clients.len(),
        known: recent_hits.len(),
        clients,
        forgotten,
        ends: ends(&report, now),
        services: report.services.iter().map(|report| service(report, now)).collect(),
    };
    page.render()
}

fn configuration(reload: &ReloadReport, now: u64) -> Mark {
    let kind = if reload.error.is_some() { "bad" } else { "good" };
    Mark::new(kind, look(reload, now))
}

fn filter(report: &FilterReport, now: u64) -> FilterRow<'_> {
    let summary = &report.summary;
    let state = if let Some(waiting) = &report.waiting {
        let text = format!("an update waits: {} clients would be refused", waiting.new_hits);
        Mark::new("warn", text)
    } else if report.last_reload.error.is_some() {
        Mark::new("bad", "update refused")
    } else if report.stale {
        Mark::new("warn", "stale")
    } else {
        Mark::new("good", "in use")
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
        last_reload: look(&report.last_reload, now),
        last_refusal: report.last_refusal.as_ref().map_or("none".to_owned(), |it| look(it, now)),
    }
}

fn list(report: &ListReport, now: u64) -> ListRow<'_> {
    let last_reload = look(&report.last_reload, now);
    ListRow { name: &report.name, entries: report.entries, last_reload }
}

fn service(report: &ServiceReport, now: u64) -> ServiceRow<'_> {
    let names = &report.server_names;
    ServiceRow {
        name: &report.name,
        listen: &report.listen,
        server_names: if names.is_empty() { "any other".to_owned() } else { names.join(", ") },
        upstream: report.upstream.join(", "),
        on_probable: report.on_probable,
        on_listed: report.on_listed,
        on_unchecked: report.on_unchecked,
        last_reload: look(&report.last_reload, now),
    }
}

fn client(seen: &RecentHit, now: u64) -> ClientRow<'_> {
    let client = seen.client.as_ref();
    let found_in = seen.found.list.as_ref().or(seen.found.filter.as_ref());
    ClientRow {
        last_seen: ago(seen.last_seen, now),
        service: &seen.service,
        verdict: seen.verdict,
        action: seen.action,
        count: seen.count,
        address: &seen.address,
        subject: client.map_or("no certificate", |client| &client.subject),
        issuer: client.map_or("", |client| &client.issuer),
        serial: client.map_or("", |client| &client.serial),
        found_in: found_in.map_or("", String::as_str),
        fingerprint: seen.fingerprint(),
    }
}

/// What became of a look at a file, and when.
fn look(reload: &ReloadReport, now: u64) -> String {
    let what = match (reload.reason, &reload.error) {
        (Some(reason), Some(error)) => format!("{} ({reason}): {error}", reload.result),
        (None, Some(error)) => format!("{}: {error}", reload.result),
        (_, None) => reload.result.to_owned(),
    };
    format!("{}: {what}", ago(reload.at, now))
}

fn counts<L: Label>(
    hours: &[Hour],
    of: impl Fn(&Hour) -> &std::collections::BTreeMap<String, f64>,
) -> Vec<CountRow> {
    let last = |count: usize, name: &str| {
        let hours = hours.iter().rev().take(count);
        hours.filter_map(|hour| of(hour).get(name)).fold(0.0, |sum, count| sum + count)
    };
    let row = |label: &L| {
        let name = label.as_str();
        CountRow { name, hour: last(1, name), day: last(24, name), week: last(hours.len(), name) }
    };
    L::ALL.iter().map(row).collect()
}

/// The certificates, revocation lists and exceptions that end first.
fn ends(report: &Report, now: u64) -> Vec<End> {
    let end = |seconds, what, of: &str| {
        let (kind, text) = match seconds {
            seconds if seconds <= now => ("bad", "over"),
            seconds if seconds - now <= SOON => ("warn", "soon"),
            _ => ("good", ""),
        };
        let at = format!("{} ({})", within(seconds, now), rfc3339(seconds));
        End { seconds, state: Mark::new(kind, text), at, what, of: of.to_owned() }
    };
    let services = report.services.iter().flat_map(|service| {
        let own = Some(service.certificate_not_after).filter(|not_after| *not_after > 0);
        [
            (own, "certificate"),
            (service.upstream_certificate_not_after, "certificate shown to the upstream"),
            (service.crl_next_update, "revocation list"),
        ]
        .into_iter()
        .filter_map(move |(seconds, what)| seconds.map(|seconds| end(seconds, what, &service.name)))
    });
    let exceptions = report.exceptions.iter().map(|exception| {
        let of = format!("{} ({})", exception.reason, exception.fingerprint);
        end(exception.until, "exception", &of)
    });
    let mut ends: Vec<End> = services.chain(exceptions).collect();
    ends.sort_by_key(|end| end.seconds);
    ends.truncate(ENDS);
    ends
}

fn ago(seconds: u64, now: u64) -> String {
    match now.checked_sub(seconds) {
        None => within(seconds, now),
        Some(0) => "now".to_owned(),
        Some(past) => format!("{} ago", rounded(past)),
    }
}

fn within(seconds: u64, now: u64) -> String {
    match seconds.checked_sub(now) {
        None => ago(seconds, now),
        Some(left) => format!("in {}", rounded(left)),
    }
}

/// A time in its largest unit.
fn rounded(seconds: u64) -> String {
    let (count, unit) = match seconds {
        0..60 => (seconds, "second"),
        60..3600 => (seconds / 60, "minute"),
        3600..172_800 => (seconds / 3600, "hour"),
        _ => (seconds / 86_400, "day"),
    };
    let plural = if count == 1 { "" } else { "s" };
    format!("{count} {unit}{plural}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_told_in_their_largest_unit() {
        for (seconds, text) in [
            (100, "now"),
            (99, "1 second ago"),
            (0, "1 minute ago"),
            (160, "in 1 minute"),
            (100 + 3 * 86_400, "in 3 days"),
        ] {
            assert_eq!(ago(seconds, 100), text, "{seconds}");
        }
        assert_eq!(ago(0, 100_000), "27 hours ago");
    }
}

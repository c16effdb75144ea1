//! The status page at `/`. It works without JavaScript and loads nothing from other hosts.

mod clients;
mod confirm;
mod expiries;
mod files;
pub(super) mod search;
mod services;
pub(super) mod text;

use askama::Template;
use keygate_core::guard::VerdictKind;
use keygate_core::unix_time::{duration, rfc3339};

use self::clients::Clients;
use self::confirm::ConfirmCard;
use self::expiries::ExpiryRow;
use self::files::{ConfigurationRow, FilterRow, ListRow};
use self::search::parameter;
use self::services::{AuthorizerCounters, AuthorizerRow, ServerRow, ServiceRow};
use super::attention::{Attention, AttentionLevel, attention};
use super::chart::Chart;
use super::counters::value;
use super::history::HourCounts;
use super::remedy;
use super::traffic::ServiceTraffic;
use super::view::View;
use super::{AdminState, COMMIT};
use crate::metrics::{KeyAction, Label, NameResult, Scrape};
use crate::process::memory_limit::memory_limit;
use crate::shell;

/// Number of characters of a commit that are shown, 12.
const COMMIT_LENGTH: usize = 12;

#[derive(Template)]
#[template(path = "page.html")]
struct StatusPage<'a> {
    state: &'a AdminState,
    view: &'a View,
    version: &'static str,
    /// The first characters of the commit, or `unknown`.
    commit: &'static str,
    /// Number of the conditions of each level.
    levels: String,
    uptime: String,
    /// Resident memory, and the limit of the cgroup or the machine.
    memory: String,
    now: String,
    /// The conditions that need attention, worst first.
    attention: Vec<Attention>,
    /// CSS class of the line with it.
    attention_kind: &'static str,
    /// Result of the last reload of the configuration.
    configuration: Option<ConfigurationRow>,
    /// The command that checks the configuration and its files; `None` without a file.
    validate_command: Option<String>,
    filters: Vec<FilterRow<'a>>,
    lists: Vec<ListRow<'a>>,
    /// The source of proofs, if one is configured.
    confirm: Option<ConfirmCard<'a>>,
    verdicts: Vec<CountRow>,
    actions: Vec<CountRow>,
    chart: Chart,
    clients: Clients<'a>,
    /// The command that prints all clients.
    report_command: String,
    forgotten: u64,
    expiries: Vec<ExpiryRow<'a>>,
    services: Vec<ServiceRow<'a>>,
    /// Handshakes that failed before a service was selected, by result.
    unrouted_handshakes: String,
    servers: Vec<ServerRow<'a>>,
    authorizers: Vec<AuthorizerRow<'a>>,
}

/// A highlighted text.
struct Badge {
    /// CSS class: `good`, `warn` or `bad`.
    kind: &'static str,
    text: String,
}

impl Badge {
    fn new(kind: &'static str, text: impl Into<String>) -> Self {
        Self { kind, text: text.into() }
    }
}

struct CountRow {
    name: &'static str,
    hour: f64,
    day: f64,
    week: f64,
}

/// Renders the page with `view`. `query` may have a search for clients (`q`).
pub(super) fn render(
    state: &AdminState,
    view: &View,
    query: Option<&str>,
) -> Result<String, askama::Error> {
    with_page(state, view, query, |page| page.render())
}

/// Calls `render` with the page.
fn with_page<T>(
    state: &AdminState,
    view: &View,
    query: Option<&str>,
    render: impl FnOnce(&StatusPage<'_>) -> T,
) -> T {
    let View { now, report, confirm, scrape, hours, .. } = view;
    let (now, servers, attention) = (*now, view.servers(), attention(view));
    let mut all = state.sources.recent_hits.all();
    all.hits.retain(|hit| view.only.as_ref().is_none_or(|only| hit.service == *only));
    let (none, counters) = (ServiceTraffic::default(), AuthorizerCounters::new(scrape));
    let config = report.configuration_path.as_deref();
    let traffic = |name: &str| view.traffic.services.get(name).unwrap_or(&none);
    let page = StatusPage {
        state,
        view,
        version: env!("CARGO_PKG_VERSION"),
        commit: COMMIT.get(..COMMIT_LENGTH).unwrap_or(COMMIT),
        levels: levels(&attention),
        uptime: duration(now.saturating_sub(state.since)),
        memory: memory(&view.scrape),
        now: rfc3339(now),
        attention_kind: match attention.first().map(|attention| attention.level) {
            None => "good",
            Some(AttentionLevel::Amber) => "warn",
            Some(AttentionLevel::Red) => "bad",
        },
        attention,
        configuration: report.configuration.as_ref().map(|it| ConfigurationRow::new(it, now)),
        validate_command: config.map(remedy::validate),
        filters: report.filters.iter().map(|it| FilterRow::new(it, config, now)).collect(),
        lists: report.lists.iter().map(|report| ListRow::new(report, config, now)).collect(),
        confirm: confirm.as_ref().map(ConfirmCard::new),
        verdicts: counts(
            hours,
            |hour| &hour.verdicts,
            names::<VerdictKind>().chain([NameResult::NotAllowed.as_str()]),
        ),
        actions: counts(hours, |hour| &hour.actions, names::<KeyAction>()),
        chart: Chart::new(hours, now),
        clients: Clients::new(&all.hits, &parameter(query, "q"), now),
        report_command: shell::keygate(&["report"], config),
        forgotten: all.evicted,
        expiries: expiries::rows(&report.expiries, &all, (state.since, now)),
        services: (report.services.iter())
            .map(|report| ServiceRow::new(report, traffic(&report.name), config, now))
            .collect(),
        unrouted_handshakes: services::counts(&view.traffic.unrouted_handshakes),
        servers: servers.iter().map(|report| ServerRow::new(report, now)).collect(),
        authorizers: (report.authorizers.iter())
            .map(|report| AuthorizerRow::new(report, &counters, config, now))
            .collect(),
    };
    render(&page)
}

fn memory(scrape: &Scrape) -> String {
    let resident = value(scrape, "process_resident_memory_bytes") / f64::from(1 << 20);
    format!("{resident:.0} of {} MiB", memory_limit() >> 20)
}

/// Numbers of conditions, such as `1 red, 2 amber`.
fn levels(attention: &[Attention]) -> String {
    let levels = [AttentionLevel::Red, AttentionLevel::Amber].map(|level| {
        let count = attention.iter().filter(|it| it.level == level).count();
        (count > 0).then(|| format!("{count} {}", level.as_str()))
    });
    levels.into_iter().flatten().collect::<Vec<_>>().join(", ")
}

fn names<L: Label>() -> impl Iterator<Item = &'static str> {
    L::ALL.iter().map(|label| label.as_str())
}

/// The counts of the last hours, a row for each of `names`.
fn counts(
    hours: &[HourCounts],
    counts_of: impl Fn(&HourCounts) -> &std::collections::BTreeMap<String, f64>,
    names: impl Iterator<Item = &'static str>,
) -> Vec<CountRow> {
    let last = |count: usize, name: &str| {
        let hours = hours.iter().rev().take(count);
        hours.filter_map(|hour| counts_of(hour).get(name)).fold(0.0, |sum, count| sum + count)
    };
    let row = |name| CountRow {
        name,
        hour: last(1, name),
        day: last(24, name),
        week: last(hours.len(), name),
    };
    names.map(row).collect()
}

//! Everything that an operator must look at, worst first: rejected and waiting updates, servers that
//! are down, keys and files that are about to expire.

use std::collections::BTreeSet;

use serde::Serialize;

use super::servers::ServerReport;
use super::view::View;
use crate::confirm::{CanaryState, ConfirmReport};
use crate::metrics::Scrape;
use crate::process::lifecycle::Lifecycle;
use crate::snapshot::{Expiry, ExpiryState, FilterReport, Rejection, Report};
use crate::unix_time::rfc3339;

/// A condition that needs attention.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub(super) struct Attention {
    pub(super) level: AttentionLevel,
    /// What it is about, such as `filter pwnedkeys`.
    pub(super) subject: String,
    /// The whole reason.
    pub(super) problem: String,
    /// The command to run, if one helps.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) command: Option<String>,
    /// Id of the row of the status page that has the details.
    pub(super) row: String,
}

/// The urgency of a condition, in the order in which conditions are shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum AttentionLevel {
    /// Something does not work, or works with old data.
    Red,
    /// Something will stop to work, or waits for the operator.
    Amber,
}

impl AttentionLevel {
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::Amber => "amber",
            Self::Red => "red",
        }
    }
}

/// The conditions that need attention, worst first.
pub(super) fn attention(view: &View) -> Vec<Attention> {
    let report = &view.report;
    let mut all: Vec<Attention> = readiness(view).into_iter().collect();
    all.extend(report.rejections().iter().map(|rejection| rejected(rejection, report)));
    all.extend(report.filters.iter().filter_map(stale_filter));
    let stale = report.lists.iter().filter(|list| list.stale);
    all.extend(stale.map(|list| {
        let row = format!("list-{}", list.name);
        amber(format!("list {}", list.name), "older than max_age", row)
    }));
    if !report.restart_needed.is_empty() {
        let settings = report.restart_needed.join(", ");
        let problem = format!("{settings}: changed, but read at the start only");
        all.push(amber("configuration", problem, "configuration"));
    }
    all.extend(own_keys(view));
    all.extend(servers_down(&view.servers()));
    all.extend(view.confirm.as_ref().and_then(source_of_proofs));
    all.extend(files(&view.scrape));
    let expiries = report.expiries.iter().enumerate();
    all.extend(expiries.filter_map(|(index, expiry)| expiring(index, expiry, view.now)));
    all.sort_by_key(|it| it.level);
    all
}

fn red(
    subject: impl Into<String>,
    problem: impl Into<String>,
    row: impl Into<String>,
) -> Attention {
    let (subject, problem, row) = (subject.into(), problem.into(), row.into());
    Attention { level: AttentionLevel::Red, subject, problem, command: None, row }
}

fn amber(
    subject: impl Into<String>,
    problem: impl Into<String>,
    row: impl Into<String>,
) -> Attention {
    Attention { level: AttentionLevel::Amber, ..red(subject, problem, row) }
}

fn readiness(view: &View) -> Option<Attention> {
    let reason = format!("not ready: {}", view.not_ready.as_ref()?);
    Some(match view.stage {
        Lifecycle::DrainedByOperator => {
            let command = Some(command(&view.report, "drain --undo"));
            Attention { command, ..amber("this instance", reason, "readiness") }
        }
        Lifecycle::Draining | Lifecycle::NotReady | Lifecycle::Serving | Lifecycle::Stopped => {
            red("this instance", reason, "readiness")
        }
    })
}

/// A command to the running process, with its configuration.
fn command(report: &Report, command: &str) -> String {
    match &report.configuration_path {
        Some(path) => format!("keygate {command} --config {path}"),
        None => format!("keygate {command}"),
    }
}

fn rejected(rejection: &Rejection<'_>, report: &Report) -> Attention {
    let Rejection { kind, name, path, reason, error, waiting, at: _ } = rejection;
    let subject = name.map_or_else(|| (*kind).to_owned(), |name| format!("{kind} {name}"));
    let row = name.map_or_else(|| (*kind).to_owned(), |name| format!("{kind}-{name}"));
    let reason = reason.map(|reason| format!(" ({reason})")).unwrap_or_default();
    let error = path.map_or_else(|| (*error).to_owned(), |path| format!("{path}: {error}"));
    if *waiting {
        let command = name.map(|name| command(report, &format!("filter accept {name}")));
        let problem = format!("an update waits{reason}: {error}");
        return Attention { command, ..amber(subject, problem, row) };
    }
    red(subject, format!("rejected{reason}: {error}"), row)
}

fn stale_filter(filter: &FilterReport) -> Option<Attention> {
    let (subject, row) = (format!("filter {}", filter.name), format!("filter-{}", filter.name));
    if filter.last_good_in_use {
        let problem = "the last good filter is in use, because the file was rejected";
        Some(red(subject, problem, row))
    } else {
        let problem = "older than max_age: keys that leaked since are not in it";
        filter.stale.then(|| amber(subject, problem, row))
    }
}

fn own_keys(view: &View) -> Vec<Attention> {
    let series = view.scrape.values("keygate_own_key_compromised");
    let authorizers: BTreeSet<_> =
        view.report.authorizers.iter().map(|authorizer| authorizer.name.as_str()).collect();
    let compromised = series.filter(|(_, count)| *count > 0.0).map(|(labels, _)| {
        let label = |name| labels.get(name).copied().unwrap_or_default();
        let problem = format!("its own key is compromised: {}", label("role"));
        let name = label("service");
        let kind = if authorizers.contains(name) { "authorizer" } else { "service" };
        red(format!("{kind} {name}"), problem, format!("{kind}-{name}"))
    });
    compromised.collect()
}

/// The servers that get no requests. One is amber if another one of its service does.
fn servers_down(servers: &[ServerReport<'_>]) -> Vec<Attention> {
    let (up, down): (Vec<_>, Vec<_>) = servers.iter().partition(|server| server.is_up());
    let serving: BTreeSet<&str> = up.iter().map(|server| server.service).collect();
    let conditions = down.iter().map(|server| {
        let subject = format!("service {}", server.service);
        let problem = format!("upstream server {} is {}", server.server, server.state);
        match serving.contains(server.service) {
            true => amber(subject, problem, server.row()),
            false => red(subject, problem, server.row()),
        }
    });
    conditions.collect()
}

fn source_of_proofs(report: &ConfirmReport) -> Option<Attention> {
    let subject = format!("source of proofs {}", report.source);
    match (report.canary, &report.blocked_until) {
        (CanaryState::Failed, _) => {
            Some(red(subject, "its canary is not known, so that no key is cleared", "confirm"))
        }
        (CanaryState::Off | CanaryState::Ok | CanaryState::Unchecked, Some(until)) => {
            Some(amber(subject, format!("wants no questions until {until}"), "confirm"))
        }
        (CanaryState::Off | CanaryState::Ok | CanaryState::Unchecked, None) => None,
    }
}

/// Files that hang, and a state directory that is not written.
fn files(scrape: &Scrape) -> Vec<Attention> {
    let value = |series: &str| scrape.values(series).next().map_or(0.0, |(_, value)| value);
    let hung = value("keygate_files_hung");
    let problem = format!("{hung} do not respond: see the log");
    let hung = (hung > 0.0).then(|| red("files", problem, "configuration"));
    let locked = (value("keygate_state_lock_waiting") > 0.0).then(|| {
        let problem = "another process uses it, and nothing is saved until it ends";
        amber("state directory", problem, "configuration")
    });
    hung.into_iter().chain(locked).collect()
}

/// Id of the row of the expiry at `index` in the report.
pub(super) fn expiry_row(index: usize) -> String {
    format!("expiry-{index}")
}

fn expiring(index: usize, expiry: &Expiry, now: u64) -> Option<Attention> {
    let subject = format!("{} of {}", expiry.kind, expiry.subject);
    let (at, row) = (rfc3339(expiry.at), expiry_row(index));
    match (expiry.state(now), expiry.kind) {
        // The client of such an exception is rejected, as it was planned.
        (ExpiryState::Expired, Expiry::EXCEPTION) => {
            Some(amber(subject, format!("expired at {at}"), row))
        }
        (ExpiryState::Expired, _) => Some(red(subject, format!("expired at {at}"), row)),
        (ExpiryState::Soon, _) => Some(amber(subject, format!("expires at {at}"), row)),
        (ExpiryState::Valid, _) => None,
    }
}

//! The conditions that need an operator, worst first: rejected and waiting updates, servers that are
//! down, keys and files that expire soon.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;

use super::servers::ServerReport;
use super::traffic::{Exchanges, ServiceTraffic};
use super::view::View;
use crate::confirm::{CanaryState, ConfirmReport};
use crate::metrics::Scrape;
use crate::process::lifecycle::Lifecycle;
use crate::shell;
use crate::snapshot::{
    Expiry, ExpiryState, FilterReport, Rejection, Report, ServiceReport, WarningReport,
};
use crate::unix_time::utc;

/// A condition that needs attention.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub(super) struct Attention {
    pub(super) level: AttentionLevel,
    /// The object, such as `filter pwnedkeys`.
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
    /// An object does not work, or works with old data.
    Red,
    /// An object will stop working, or waits for the operator.
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

/// Share of failed exchanges with the upstream above which a service needs attention, as in the alert
/// `KeygateRequestsUnanswered`.
const AMBER_FAILURES: f64 = 0.05;
/// Share of failed exchanges above which a service does not work, as in the alert
/// `KeygateUpstreamUnreachable`.
const RED_FAILURES: f64 = 0.5;

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
    all.extend(report.warnings.iter().filter(|it| !it.is_elsewhere).map(warned));
    all.extend(own_keys(view));
    all.extend(servers_down(&view.servers(), view));
    all.extend(view.traffic.iter().filter_map(failed_exchanges));
    all.extend(full_addresses(view));
    all.extend(unsaved_state(view));
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
            let config = view.report.configuration_path.as_deref();
            let command = Some(shell::keygate(&["drain", "--undo"], config));
            Attention { command, ..amber("this instance", reason, "readiness") }
        }
        Lifecycle::Draining | Lifecycle::NotReady | Lifecycle::Serving | Lifecycle::Stopped => {
            red("this instance", reason, "readiness")
        }
    })
}

fn rejected(rejection: &Rejection<'_>, report: &Report) -> Attention {
    let Rejection { kind, name, path, reason, error, waiting, at: _ } = rejection;
    let subject = name.map_or_else(|| (*kind).to_owned(), |name| format!("{kind} {name}"));
    let row = name.map_or_else(|| (*kind).to_owned(), |name| format!("{kind}-{name}"));
    let reason = reason.map(|reason| format!(" ({reason})")).unwrap_or_default();
    let error = path.map_or_else(|| (*error).to_owned(), |path| format!("{path}: {error}"));
    if *waiting {
        let config = report.configuration_path.as_deref();
        let command = name.map(|name| shell::keygate(&["filter", "accept", name], config));
        let problem = format!("an update waits{reason}: {error}");
        return Attention { command, ..amber(subject, problem, row) };
    }
    red(subject, format!("rejected{reason}: {error}"), row)
}

/// A warning of `keygate validate` about what is in use.
fn warned(warning: &WarningReport) -> Attention {
    let WarningReport { kind, name, .. } = warning;
    let subject = name.as_ref().map_or_else(|| (*kind).to_owned(), |name| format!("{kind} {name}"));
    let row = name.as_ref().map_or_else(|| (*kind).to_owned(), |name| format!("{kind}-{name}"));
    amber(subject, warning.problem(), row)
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

/// The servers that get no requests, or whose requests fail. One is amber if its service has responses
/// of another server, or if other requests to it succeed.
fn servers_down(servers: &[ServerReport<'_>], view: &View) -> Vec<Attention> {
    let (up, down): (Vec<_>, Vec<_>) = servers.iter().partition(|server| server.is_up());
    let serving: BTreeSet<&str> = up.iter().map(|server| server.service).collect();
    let conditions = down.iter().map(|server| {
        let subject = format!("service {}", server.service);
        let since = server.since.map(|at| format!(" since {}", utc(at)));
        let error = server.error.as_ref().map(|error| format!(": {error}"));
        let problem = format!(
            "upstream server {} is {}{}{}",
            server.server,
            server.state,
            since.unwrap_or_default(),
            error.unwrap_or_default()
        );
        let recent = view.traffic.get(server.service).map(|traffic| &traffic.last_minute);
        let succeeds = server.is_failing() && recent.is_some_and(|it| it.all > it.failures());
        if succeeds || serving.contains(server.service) {
            amber(subject, problem, server.row())
        } else {
            red(subject, problem, server.row())
        }
    });
    conditions.collect()
}

/// A service whose exchanges with its upstream failed in the last minute: red if most did.
fn failed_exchanges((service, traffic): (&String, &ServiceTraffic)) -> Option<Attention> {
    let Exchanges { all, failed } = &traffic.last_minute;
    let failures = traffic.last_minute.failures();
    if failures <= all * AMBER_FAILURES {
        return None;
    }
    let reasons: Vec<_> =
        failed.iter().map(|(reason, count)| format!("{reason}: {count}")).collect();
    let problem = format!(
        "{failures} of {all} requests in the last minute got no response of an upstream server \
         ({}): see \"upstream failed\" in the log",
        reasons.join(", ")
    );
    let (subject, row) = (format!("service {service}"), format!("service-{service}"));
    Some(if failures > all * RED_FAILURES {
        red(subject, problem, row)
    } else {
        amber(subject, problem, row)
    })
}

/// Share of the connections of an address above which it is full. Handshakes take the rest, which
/// no metric counts.
const FULL: f64 = 0.95;

/// Addresses with nearly as many connections as the services on them may have. New ones wait.
fn full_addresses(view: &View) -> Vec<Attention> {
    let mut addresses: BTreeMap<&str, Vec<&ServiceReport>> = BTreeMap::new();
    for service in &view.report.services {
        addresses.entry(&service.listen).or_default().push(service);
    }
    let full = addresses.into_iter().filter_map(|(address, services)| {
        let traffic = services.iter().filter_map(|service| view.traffic.get(&service.name));
        let open: f64 = traffic.map(|traffic| traffic.connections).sum();
        let max = services.iter().fold(0, |sum: usize, it| sum.saturating_add(it.max_connections));
        let row = format!("service-{}", services.first()?.name);
        let problem = format!(
            "{open} of {max} connections are open, so that new ones wait: see limits.max_connections"
        );
        (open >= FULL * max as f64).then(|| red(format!("address {address}"), problem, row))
    });
    full.collect()
}

/// A state directory that cannot be written.
fn unsaved_state(view: &View) -> Option<Attention> {
    let problem = match view.report.unsaved.as_slice() {
        [] if view.failed_state_writes > 0.0 => {
            let failed = view.failed_state_writes;
            format!("{failed} writes failed in the last five minutes: see the log")
        }
        [] => return None,
        errors => format!("cannot be written: {}", errors.join("; ")),
    };
    Some(red("state directory", problem, "configuration"))
}

fn source_of_proofs(report: &ConfirmReport) -> Option<Attention> {
    let subject = format!("source of proofs {}", report.source);
    match (report.canary, &report.blocked_until) {
        (CanaryState::Failed, _) => {
            Some(red(subject, "its canary is not known, so that no key is cleared", "confirm"))
        }
        (CanaryState::Off | CanaryState::Ok | CanaryState::Unchecked, Some(until)) => {
            Some(amber(subject, format!("takes no questions until {until}"), "confirm"))
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
    let path = expiry.path.as_ref().map(|path| format!(": {path}")).unwrap_or_default();
    let (at, row) = (format!("{}{path}", utc(expiry.at)), expiry_row(index));
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

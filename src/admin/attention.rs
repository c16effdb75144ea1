//! Everything that an operator must look at, worst first: rejected and waiting updates, servers that
//! are down, keys and files that are about to expire.

use serde::Serialize;

use super::AdminState;
use super::page::expiries::{Expiry, expiries};
use crate::confirm::{CanaryState, ConfirmReport};
use crate::process::lifecycle::Lifecycle;
use crate::snapshot::{FilterReport, Rejection, Report};

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

/// The conditions that need attention at `now`, in seconds since the Unix epoch.
pub(super) fn attention(state: &AdminState, now: u64) -> Vec<Attention> {
    let (report, confirm) = (state.report.load(), state.confirm.load());
    let mut all: Vec<Attention> = readiness(state).into_iter().collect();
    all.extend(report.rejections().iter().map(rejected));
    all.extend(report.filters.iter().filter_map(stale_filter));
    let stale = report.lists.iter().filter(|list| list.stale);
    all.extend(stale.map(|list| amber(format!("list {}", list.name), "older than max_age")));
    if !report.restart_needed.is_empty() {
        let settings = report.restart_needed.join(", ");
        all.push(amber(
            "configuration",
            format!("{settings}: changed, but read at the start only"),
        ));
    }
    all.extend(own_keys(state));
    all.extend(servers(state, &report));
    all.extend(confirm.as_ref().and_then(source_of_proofs));
    all.extend(files(state));
    all.extend(expiries(&report, now).iter().filter_map(expiring));
    all.sort_by_key(|it| it.level);
    all
}

fn red(subject: impl Into<String>, problem: impl Into<String>) -> Attention {
    let (subject, problem) = (subject.into(), problem.into());
    Attention { level: AttentionLevel::Red, subject, problem, command: None }
}

fn amber(subject: impl Into<String>, problem: impl Into<String>) -> Attention {
    Attention { level: AttentionLevel::Amber, ..red(subject, problem) }
}

fn readiness(state: &AdminState) -> Option<Attention> {
    let reason = format!("not ready: {}", state.not_ready()?);
    Some(match state.drain.stage() {
        Lifecycle::DrainedByOperator => {
            let command = Some("keygate drain --undo".to_owned());
            Attention { command, ..amber("this instance", reason) }
        }
        Lifecycle::Draining | Lifecycle::NotReady | Lifecycle::Serving | Lifecycle::Stopped => {
            red("this instance", reason)
        }
    })
}

fn rejected(rejection: &Rejection<'_>) -> Attention {
    let Rejection { kind, name, reason, error, waiting, at: _ } = rejection;
    let subject = name.map_or_else(|| (*kind).to_owned(), |name| format!("{kind} {name}"));
    let reason = reason.map(|reason| format!(" ({reason})")).unwrap_or_default();
    if *waiting {
        let command = name.map(|name| format!("keygate filter accept {name}"));
        return Attention {
            command,
            ..amber(subject, format!("an update waits{reason}: {error}"))
        };
    }
    red(subject, format!("rejected{reason}: {error}"))
}

fn stale_filter(filter: &FilterReport) -> Option<Attention> {
    let subject = format!("filter {}", filter.name);
    if filter.last_good_in_use {
        Some(red(subject, "the last good filter is in use, because the file was rejected"))
    } else {
        filter
            .stale
            .then(|| amber(subject, "older than max_age: keys that leaked since are not in it"))
    }
}

fn own_keys(state: &AdminState) -> Vec<Attention> {
    let series = state.exposition.control_values("keygate_own_key_compromised");
    let compromised = series.into_iter().filter(|(_, count)| *count > 0.0);
    let problem = |labels: &dyn Fn(&str) -> String| {
        let (service, role) = (labels("service"), labels("role"));
        red(format!("service {service}"), format!("its own key is compromised: {role}"))
    };
    compromised
        .map(|(labels, _)| problem(&|name| labels.get(name).cloned().unwrap_or_default()))
        .collect()
}

/// The upstream servers that health checks find unhealthy.
fn servers(state: &AdminState, report: &Report) -> Vec<Attention> {
    let series = state.exposition.control_values("keygate_upstream_server_up");
    let servers_of = |service: &str| {
        let of_service = series
            .iter()
            .filter(|(labels, _)| labels.get("service").is_some_and(|it| it == service));
        of_service
            .map(|(labels, up)| (labels.get("server").cloned().unwrap_or_default(), *up > 0.0))
            .collect::<Vec<_>>()
    };
    let services = report.services.iter().flat_map(|service| {
        let servers = servers_of(&service.name);
        let is_out = servers.iter().all(|(_, is_up)| !is_up);
        let subject = format!("service {}", service.name);
        servers.into_iter().filter(|(_, is_up)| !is_up).map(move |(server, _)| {
            let problem = format!("upstream server {server} is unhealthy");
            if is_out { red(&subject, problem) } else { amber(&subject, problem) }
        })
    });
    services.collect()
}

fn source_of_proofs(report: &ConfirmReport) -> Option<Attention> {
    let subject = format!("source of proofs {}", report.source);
    match (report.canary, &report.blocked_until) {
        (CanaryState::Failed, _) => {
            Some(red(subject, "its canary is not known, so that no key is cleared"))
        }
        (CanaryState::Off | CanaryState::Ok | CanaryState::Unchecked, Some(until)) => {
            Some(amber(subject, format!("wants no questions until {until}")))
        }
        (CanaryState::Off | CanaryState::Ok | CanaryState::Unchecked, None) => None,
    }
}

/// Files that hang, and a state directory that is not written.
fn files(state: &AdminState) -> Vec<Attention> {
    let value = |series: &str| {
        state.exposition.control_values(series).first().map_or(0.0, |(_, value)| *value)
    };
    let hung = value("keygate_files_hung");
    let hung = (hung > 0.0).then(|| red("files", format!("{hung} do not respond: see the log")));
    let locked = value("keygate_state_lock_waiting") > 0.0;
    let locked = locked.then(|| {
        amber("state directory", "another process uses it, and nothing is saved until it ends")
    });
    hung.into_iter().chain(locked).collect()
}

fn expiring(expiry: &Expiry) -> Option<Attention> {
    let subject = format!("{} of {}", expiry.kind, expiry.subject);
    let problem = format!("expires {}", expiry.at);
    match expiry.state.kind {
        // The client of such an exception is rejected, as it was planned.
        "bad" if expiry.kind == "exception" => {
            Some(amber(subject, format!("expired {}", expiry.at)))
        }
        "bad" => Some(red(subject, format!("expired {}", expiry.at))),
        "warn" => Some(amber(subject, problem)),
        _ => None,
    }
}

//! The conditions that need an operator, worst first: clients that do not get in, rejected and
//! waiting updates, servers that are down, keys and files that expire soon.

mod clients;
mod expiries;
mod files;
mod traffic;

use serde::Serialize;

pub(super) use self::expiries::expiry_row;
use super::view::View;
use crate::confirm::{CanaryState, ConfirmReport};
use crate::process::lifecycle::Lifecycle;
use crate::shell;

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

impl Attention {
    /// The parts of the problem, and whether each is a command, between backticks.
    pub(super) fn parts(&self) -> impl Iterator<Item = (bool, &str)> {
        self.problem.split('`').enumerate().map(|(index, part)| (index % 2 == 1, part))
    }
}

impl AttentionLevel {
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::Amber => "amber",
            Self::Red => "red",
        }
    }
}

/// The conditions that need attention, worst first; of one level, those that stop clients first.
pub(super) fn attention(view: &View) -> Vec<Attention> {
    let mut all: Vec<Attention> = readiness(view).into_iter().collect();
    all.extend(clients::conditions(view));
    all.extend(traffic::conditions(view));
    all.extend(files::conditions(view));
    all.extend(view.confirm.as_ref().and_then(|it| source_of_proofs(it, view)));
    all.extend(expiries::conditions(view));
    all.sort_by_key(|it| it.level);
    all
}

/// A condition of the object with this subject and this id of its row.
fn red<S: Into<String>>((subject, row): (S, S), problem: impl Into<String>) -> Attention {
    let (subject, problem, row) = (subject.into(), problem.into(), row.into());
    Attention { level: AttentionLevel::Red, subject, problem, command: None, row }
}

fn amber<S: Into<String>>(object: (S, S), problem: impl Into<String>) -> Attention {
    Attention { level: AttentionLevel::Amber, ..red(object, problem) }
}

/// The subject and the id of the row of an object: of the kind itself without a name.
fn object(kind: &str, name: Option<&str>) -> (String, String) {
    match name {
        Some(name) => (format!("{kind} {name}"), format!("{kind}-{name}")),
        None => (kind.to_owned(), kind.to_owned()),
    }
}

fn readiness(view: &View) -> Option<Attention> {
    let reason = format!("not ready: {}", view.not_ready.as_ref()?);
    Some(match view.stage {
        Lifecycle::DrainedByOperator => {
            let config = view.report.configuration_path.as_deref();
            let command = Some(shell::keygate(&["drain", "--undo"], config));
            Attention { command, ..amber(("this instance", "readiness"), reason) }
        }
        Lifecycle::Draining | Lifecycle::NotReady | Lifecycle::Serving | Lifecycle::Stopped => {
            red(("this instance", "readiness"), reason)
        }
    })
}

fn source_of_proofs(report: &ConfirmReport, view: &View) -> Option<Attention> {
    let object = (format!("source of proofs {}", report.source), "confirm".to_owned());
    if let Some(failure) = &report.failure {
        let problem = format!(
            "does not answer: {failure}; keys that were cleared stay cleared, new hits stay probable"
        );
        let config = view.report.configuration_path.as_deref();
        let command = Some(shell::keygate(&["validate", "--online"], config));
        return Some(Attention { command, ..red(object, problem) });
    }
    match (report.canary, &report.blocked_until) {
        (CanaryState::Failed, _) => {
            Some(red(object, "its canary is not known, so that no key is cleared"))
        }
        (CanaryState::Off | CanaryState::Ok | CanaryState::Unchecked, Some(until)) => {
            Some(amber(object, format!("takes no questions until {until}")))
        }
        (CanaryState::Off | CanaryState::Ok | CanaryState::Unchecked, None) => None,
    }
}

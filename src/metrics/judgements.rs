//! The series of verdicts on clients, which services and authorizers have.

use keygate_core::guard::{Decision, JudgedAt, Judgement, VerdictKind};
use prometheus::{IntCounter, Registry};

use super::labels::{Family, KeyAction, NameResult};
use super::series::series;

series! {
    /// The series of the verdicts on clients of one service or authorizer.
    pub struct JudgementMetrics, ActionSeries {
        actions: Family<KeyAction, IntCounter> = "key_actions_total"["service", "action"]
            "Actions that followed the verdicts on client keys.",
        pub server_auth_clients: IntCounter = "server_auth_clients_total"["service"]
            "Clients that were admitted with certificates for servers only: one for each connection or question.",
    } with {
        stages: Vec<(JudgedAt, StageChecks)>,
    }
}

series! {
    /// The checks of clients at one stage of their connections.
    pub(super) struct StageChecks, StageSeries {
        keys: Family<VerdictKind, IntCounter> = "key_checks_total"["service", "stage", "verdict"]
            "Verdicts on client keys: one for each connection, and while it is open one more after each reload and after each answer that changes the verdict.",
        names: Family<NameResult, IntCounter> = "name_checks_total"["service", "stage", "result"]
            "Results of the rules by name, for services and authorizers that have any: one for each client whose key the policy accepts, and while its connection is open one more after each reload.",
    }
}

impl JudgementMetrics {
    /// Counts a verdict and the action that followed it, and the result of the rules by name. No
    /// action followed the verdict if these reject the client.
    pub fn count(&self, judged_at: JudgedAt, judgement: &Judgement) {
        let Some((_, checks)) = self.stages.iter().find(|(stage, _)| *stage == judged_at) else {
            return;
        };
        checks.keys.of(judgement.verdict.kind()).inc();
        let names = NameResult::from_name_check(judgement.names);
        if let Some(result) = names {
            checks.names.of(result).inc();
        }
        if names == Some(NameResult::NotAllowed) {
            return;
        }
        let action = match (judgement.decision, judged_at) {
            (Decision::Admit, _) => KeyAction::Admit,
            (Decision::Annotate, _) => KeyAction::Header,
            (Decision::Flag, _) => KeyAction::Flag,
            (Decision::Reject, JudgedAt::Reload) => KeyAction::Evict,
            (
                Decision::Reject,
                JudgedAt::Asked
                | JudgedAt::FullHandshake
                | JudgedAt::Requested
                | JudgedAt::Resumption,
            ) => KeyAction::Reject,
        };
        self.actions.of(action).inc();
    }
}

/// The series of the verdicts on clients of all services and authorizers.
#[derive(Debug, Clone)]
pub(super) struct JudgementSeries {
    actions: ActionSeries,
    checks: StageSeries,
}

impl JudgementSeries {
    pub(super) fn register(registry: &Registry) -> Result<Self, prometheus::Error> {
        Ok(Self {
            actions: ActionSeries::register(registry)?,
            checks: StageSeries::register(registry)?,
        })
    }

    /// The handles of a service or authorizer whose clients are judged at these stages.
    pub(super) fn handles(&self, name: &str, stages: &[JudgedAt]) -> JudgementMetrics {
        let stages = stages.iter().map(|at| (*at, self.checks.handles(&[name, at.as_str()])));
        self.actions.handles(&[name], stages.collect())
    }
}

#[cfg(test)]
mod tests {
    use keygate_core::guard::{NameCheck, Verdict};

    use super::*;
    use crate::metrics::{ControlMetrics, Exposition, WorkerMetrics};

    /// The lines of a scrape about judgements that are not zero, after one of a client.
    fn counted(judged_at: JudgedAt, decision: Decision, names: NameCheck) -> Vec<String> {
        let control = ControlMetrics::new().unwrap();
        let worker = WorkerMetrics::new(&["orders"], &[("edge", JudgedAt::Asked)]).unwrap();
        let verdict = Verdict::Unchecked;
        let judgement = Judgement { reason: verdict.kind(), verdict, decision, names };
        worker.service("orders").judgements.count(judged_at, &judgement);
        worker.authorizer("edge", JudgedAt::Asked).judgements.count(judged_at, &judgement);
        let text = Exposition::new(&control, &[worker]).render().unwrap();
        let is_of_judgement =
            |line: &&str| ["_key_", "_name_"].iter().any(|part| line.contains(part));
        let lines = text.lines().filter(|line| line.ends_with(" 1")).filter(is_of_judgement);
        lines.map(|line| line.trim_start_matches("keygate_").to_owned()).collect()
    }

    #[test]
    fn a_judgement_counts_at_its_stage_with_the_action_that_followed() {
        let action = |stage, decision| {
            let lines = counted(stage, decision, NameCheck::NotChecked);
            let [action, check] = &lines[..] else { panic!("{lines:?}") };
            let owner = if stage == JudgedAt::Asked { "edge" } else { "orders" };
            let stage = stage.as_str();
            assert_eq!(
                *check,
                format!(
                    "key_checks_total{{service=\"{owner}\",stage=\"{stage}\",verdict=\"unchecked\"}} 1"
                )
            );
            let action = action.strip_prefix("key_actions_total{action=\"").unwrap();
            let (action, rest) = action.split_once('"').unwrap();
            assert_eq!(rest, format!(",service=\"{owner}\"}} 1"));
            action.to_owned()
        };
        for (stage, decision, expected) in [
            (JudgedAt::Asked, Decision::Admit, "admit"),
            (JudgedAt::Asked, Decision::Reject, "reject"),
            (JudgedAt::FullHandshake, Decision::Annotate, "header"),
            (JudgedAt::FullHandshake, Decision::Reject, "reject"),
            (JudgedAt::Reload, Decision::Flag, "flag"),
            (JudgedAt::Reload, Decision::Reject, "evict"),
            (JudgedAt::Resumption, Decision::Reject, "reject"),
        ] {
            assert_eq!(action(stage, decision), expected, "{stage:?} {decision:?}");
        }
    }

    #[test]
    fn a_client_that_no_rule_names_has_no_action() {
        let lines = counted(JudgedAt::FullHandshake, Decision::Reject, NameCheck::NotAllowed);
        let series: Vec<_> = lines.iter().filter_map(|line| line.split('{').next()).collect();
        assert_eq!(series, ["key_checks_total", "name_checks_total"]);
        assert!(lines[1].contains("result=\"not_allowed\",service=\"orders\""), "{lines:?}");
    }
}

//! The series of an authorizer: the questions of other proxies.

use keygate_core::guard::{Decision, JudgedAt, Judgement, VerdictKind};
use prometheus::{
    Histogram, HistogramOpts, HistogramVec, IntCounter, IntCounterVec, IntGauge, IntGaugeVec,
    Registry,
};

use super::labels::{Family, KeyAction, NameResult, QuestionResult};
use super::{NAMESPACE, counters, opts, register};

/// Buckets in seconds: a question takes some microseconds, and a verified chain some hundred.
const QUESTION_BUCKETS: &[f64] = &[
    0.000_01, 0.000_025, 0.000_05, 0.000_1, 0.000_25, 0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.05,
    0.1, 1.0,
];

/// The series of one authorizer in one worker.
#[derive(Debug, Clone)]
pub struct AuthorizerMetrics {
    /// Open connections of askers.
    pub askers_active: IntGauge,
    /// Questions by result.
    pub questions: Family<QuestionResult, IntCounter>,
    /// From the complete question to its answer, in seconds.
    pub question_duration: Histogram,
    /// Clients that were allowed with a certificate for servers only.
    pub server_auth_clients: IntCounter,
    key_checks: Family<VerdictKind, IntCounter>,
    key_actions: Family<KeyAction, IntCounter>,
    name_checks: Family<NameResult, IntCounter>,
}

impl AuthorizerMetrics {
    /// Counts the verdict on a client's key and the action that followed it, and the result of the
    /// rules by name. No action followed the verdict if these reject the client.
    pub fn count_judgement(&self, judgement: &Judgement) {
        self.key_checks.of(judgement.verdict.kind()).inc();
        let names = NameResult::from_name_check(judgement.names);
        if let Some(result) = names {
            self.name_checks.of(result).inc();
        }
        if names == Some(NameResult::NotAllowed) {
            return;
        }
        let action = match judgement.decision {
            Decision::Admit => KeyAction::Admit,
            Decision::Annotate => KeyAction::Header,
            Decision::Flag => KeyAction::Flag,
            Decision::Reject => KeyAction::Reject,
        };
        self.key_actions.of(action).inc();
    }
}

/// The series of all authorizers, before their labels are resolved to handles.
#[derive(Debug, Clone)]
pub(super) struct AuthorizerSeries {
    askers_active: IntGaugeVec,
    questions: IntCounterVec,
    question_duration: HistogramVec,
    key_checks: IntCounterVec,
    key_actions: IntCounterVec,
    name_checks: IntCounterVec,
    server_auth_clients: IntCounterVec,
}

impl AuthorizerSeries {
    /// Registers the series of authorizers. The series of services count keys and names.
    #[rustfmt::skip] // a table
    pub(super) fn register(
        registry: &Registry,
        [key_checks, key_actions, name_checks, server_auth_clients]: [&IntCounterVec; 4],
    ) -> Result<Self, prometheus::Error> {
        let duration = HistogramOpts::new("question_duration_seconds", "Time from a complete question of another proxy to its answer.");
        let duration = duration.namespace(NAMESPACE).buckets(QUESTION_BUCKETS.to_vec());
        Ok(Self {
            askers_active: register(registry, IntGaugeVec::new(opts("askers_active", "Open connections of other proxies to an authorizer."), &["service"]))?,
            questions: counters(registry, "questions_total", "Questions of other proxies by result; not_allowed counts connections of peers that may not ask, client_not_allowed clients that no rule names.", &["service", "result"])?,
            question_duration: register(registry, HistogramVec::new(duration, &["service"]))?,
            key_checks: key_checks.clone(),
            key_actions: key_actions.clone(),
            name_checks: name_checks.clone(),
            server_auth_clients: server_auth_clients.clone(),
        })
    }

    pub(super) fn of_authorizer(&self, name: &str) -> AuthorizerMetrics {
        AuthorizerMetrics {
            askers_active: self.askers_active.with_label_values(&[name]),
            questions: Family::from_vec(&self.questions, &[name]),
            question_duration: self.question_duration.with_label_values(&[name]),
            server_auth_clients: self.server_auth_clients.with_label_values(&[name]),
            key_checks: Family::from_vec(&self.key_checks, &[name, JudgedAt::Asked.as_str()]),
            key_actions: Family::from_vec(&self.key_actions, &[name]),
            name_checks: Family::from_vec(&self.name_checks, &[name, JudgedAt::Asked.as_str()]),
        }
    }
}

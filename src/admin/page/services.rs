//! The rows of services, upstream servers and authorizers.

use std::collections::BTreeMap;

use keygate_core::guard::VerdictKind;
use keygate_core::unix_time::{ago, utc};

use super::Badge;
use super::files::{WaitingUpdate, rejection};
use crate::admin::counters::listed;
use crate::admin::servers::ServerReport;
use crate::admin::traffic::ServiceTraffic;
use crate::metrics::{ByService, Label, QuestionResult, Scrape};
use crate::sources::{AuthorizerReport, PolicyReport, ServiceReport};

pub(super) struct ServiceRow<'a> {
    pub(super) report: &'a ServiceReport,
    pub(super) traffic: &'a ServiceTraffic,
    pub(super) server_names: String,
    pub(super) requests: String,
    pub(super) errors: String,
    pub(super) p50: String,
    pub(super) p99: String,
    /// Failed handshakes by result.
    pub(super) failed_handshakes: String,
    /// Actions by verdict.
    pub(super) policy: String,
    /// The rules by name.
    pub(super) rules: String,
    /// Handshakes by group of the key exchange.
    pub(super) key_exchanges: String,
    /// Clients by algorithm of their key.
    pub(super) client_keys: String,
    pub(super) rejection: Option<String>,
    /// The update that waits for the operator.
    pub(super) waiting: Option<WaitingUpdate<'a>>,
}

impl<'a> ServiceRow<'a> {
    /// `config` is the path of the configuration.
    pub(super) fn new(
        report: &'a ServiceReport,
        traffic: &'a ServiceTraffic,
        config: Option<&str>,
        now: u64,
    ) -> Self {
        let names = &report.server_names;
        let policy = &report.policy;
        let actions = [
            ("confirmed", policy.on_confirmed),
            ("probable", policy.on_probable),
            ("cleared", policy.on_cleared),
            ("listed", policy.on_listed),
            ("weak", policy.on_weak),
            ("unchecked", policy.on_unchecked),
        ];
        let actions = actions.map(|(verdict, action)| format!("{verdict}: {action}"));
        Self {
            report,
            traffic,
            server_names: if names.is_empty() { "any other".to_owned() } else { names.join(", ") },
            requests: rate(traffic.requests_per_minute),
            errors: rate(traffic.errors_per_minute),
            p50: duration(traffic.p50),
            p99: duration(traffic.p99),
            failed_handshakes: counts(&traffic.failed_handshakes),
            policy: actions.join(", "),
            rules: rules(policy),
            key_exchanges: counts(&traffic.key_exchanges),
            client_keys: counts(&traffic.client_keys),
            rejection: rejection(&report.last_reload, now),
            waiting: WaitingUpdate::new(&report.dry_run, "service", &report.name, config),
        }
    }
}

/// The rules by name in one line.
fn rules(policy: &PolicyReport) -> String {
    match policy.rules {
        None => "none, every client of the CAs".to_owned(),
        Some(count) => {
            let more = if count > policy.first_rules.len() { ", …" } else { "" };
            format!("{count}: {}{more}", policy.first_rules.join(", "))
        }
    }
}

/// Numbers of events by their labels.
pub(super) fn counts(events: &BTreeMap<String, f64>) -> String {
    Some(listed(events)).filter(|it| !it.is_empty()).unwrap_or_else(|| "none".to_owned())
}

/// Events in a minute.
fn rate(per_minute: f64) -> String {
    if per_minute >= 10.0 { format!("{per_minute:.0}") } else { format!("{per_minute:.1}") }
}

/// A duration in a unit that fits; `-` without one.
fn duration(seconds: Option<f64>) -> String {
    match seconds {
        None => "-".to_owned(),
        Some(seconds) if seconds < 1.0 => format!("{:.1} ms", seconds * 1000.0),
        Some(seconds) => format!("{seconds:.1} s"),
    }
}

pub(super) struct ServerRow<'a> {
    pub(super) report: &'a ServerReport<'a>,
    pub(super) state: Badge,
    /// Since when the server is not healthy; empty if it is.
    pub(super) since: String,
    pub(super) last_check: String,
}

impl<'a> ServerRow<'a> {
    pub(super) fn new(report: &'a ServerReport<'a>, now: u64) -> Self {
        let kind = match report.state {
            "healthy" => "good",
            "unused" => "",
            "ejected" => "warn",
            _ => "bad",
        };
        Self {
            report,
            state: Badge::new(kind, report.state),
            since: report.since.map(utc).unwrap_or_default(),
            last_check: report.last_check.map_or_else(|| "none".to_owned(), |at| ago(at, now)),
        }
    }
}

pub(super) struct AuthorizerRow<'a> {
    pub(super) report: &'a AuthorizerReport,
    pub(super) last_question: String,
    pub(super) askers: f64,
    pub(super) allowed: f64,
    /// Questions about clients that the policy rejects, or that no rule names.
    pub(super) denied: f64,
    /// Questions that were denied without a judgement.
    pub(super) unusable: f64,
    /// Share of the questions without a certificate, or with a key that cannot be checked, in
    /// percent.
    pub(super) without_certificate: String,
    pub(super) rejection: Option<String>,
    /// The update that waits for the operator.
    pub(super) waiting: Option<WaitingUpdate<'a>>,
}

/// The counters of all authorizers.
pub(super) struct AuthorizerCounters {
    askers: ByService<f64>,
    questions: ByService<BTreeMap<String, f64>>,
    verdicts: ByService<BTreeMap<String, f64>>,
}

impl AuthorizerCounters {
    pub(super) fn new(scrape: &Scrape) -> Self {
        Self {
            askers: scrape.sums("keygate_askers_active", "service"),
            questions: scrape.sums_by_service("keygate_questions_total", "result"),
            verdicts: scrape.sums_by_service("keygate_key_checks_total", "verdict"),
        }
    }
}

impl<'a> AuthorizerRow<'a> {
    pub(super) fn new(
        report: &'a AuthorizerReport,
        counters: &AuthorizerCounters,
        config: Option<&str>,
        now: u64,
    ) -> Self {
        let count_of = |counters: &ByService<BTreeMap<String, f64>>, label: &str| {
            let counts = counters.get(&report.name);
            counts.and_then(|counts| counts.get(label)).copied().unwrap_or_default()
        };
        let count = |result: QuestionResult| count_of(&counters.questions, result.as_str());
        let unchecked = count_of(&counters.verdicts, VerdictKind::Unchecked.as_str());
        let allowed = count(QuestionResult::Allowed);
        let denied = count(QuestionResult::Denied) + count(QuestionResult::ClientNotAllowed);
        let absent = count(QuestionResult::NoCertificate);
        let unverified = count(QuestionResult::NotVerified) + count(QuestionResult::NotVouched);
        let unreadable = count(QuestionResult::Malformed) + count(QuestionResult::Oversize);
        let unusable = absent + unverified + unreadable;
        let all = allowed + denied + unusable;
        let share = if all > 0.0 { (unchecked + absent) / all * 100.0 } else { 0.0 };
        let last_question = report.last_question.seconds();
        Self {
            report,
            last_question: last_question
                .map_or_else(|| "none".to_owned(), |seconds| ago(seconds, now)),
            askers: counters.askers.get(&report.name).copied().unwrap_or_default(),
            allowed,
            denied,
            unusable,
            without_certificate: format!("{share:.1} %"),
            rejection: rejection(&report.last_reload, now),
            waiting: WaitingUpdate::new(&report.dry_run, "authorizer", &report.name, config),
        }
    }
}

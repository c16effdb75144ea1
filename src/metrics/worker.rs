//! The series of the data path: one set for each worker.

use keygate_core::guard::{Decision, JudgedAt, Judgement, VerdictKind};
use keygate_core::tls::{HandshakeResult, KeyExchange};
use keygate_wire::permit::BufferClass;
use keygate_wire::permit::ledger::ClassUse;
use prometheus::{
    Histogram, HistogramOpts, HistogramVec, IntCounter, IntGauge, IntGaugeVec, Registry,
};

use super::authorizer::{AuthorizerMetrics, AuthorizerSeries};
use super::labels::{
    CodeClass, ConnectionResult, Family, KeyAction, KeyAlgorithm, NameResult, OwnStatus,
    UpstreamFailure, WaitOutcome,
};
use super::traces::TraceMetrics;
use super::{NAMESPACE, counters, opts, register};

/// The label value of connections that ended before a service was chosen.
const UNROUTED: &str = "";

/// The series of one worker.
#[derive(Debug, Clone)]
pub struct WorkerMetrics {
    pub(super) registry: Registry,
    series: Series,
    authorizers: AuthorizerSeries,
    /// Connections that ended before a service was chosen.
    pub unrouted: Family<ConnectionResult, IntCounter>,
    /// Handshakes that ended before a service was chosen.
    pub unrouted_handshakes: Family<HandshakeResult, IntCounter>,
    /// Connections that were held for an answer about the client's key.
    pub confirmation_waits: Family<WaitOutcome, IntCounter>,
    /// Connections that are held now.
    pub confirmation_waits_active: IntGauge,
    /// For how long they were held, in seconds.
    pub confirmation_wait_duration: Histogram,
    /// Checks of keys for weakness, because the worker lacked a result.
    weak_key_checks: IntCounter,
    /// Bytes that clients hold.
    buffered: Family<BufferClass, IntGauge>,
    /// How often clients had their shares.
    buffer_rejections: Family<BufferClass, IntCounter>,
    /// Maximum bytes that clients may hold.
    pub buffer_limit: IntGauge,
    /// The spans of this worker's requests.
    pub traces: TraceMetrics,
}

/// The series of one service in one worker.
#[derive(Debug, Clone)]
pub struct ServiceMetrics {
    /// Open client connections.
    pub connections_active: IntGauge,
    /// Open client connections that are idle and have given their HTTP state back.
    pub connections_hibernating: IntGauge,
    /// Client connections by result.
    pub connections: Family<ConnectionResult, IntCounter>,
    handshakes: [Family<HandshakeResult, IntCounter>; 2],
    /// From the accepted connection to the finished handshake, in seconds.
    pub handshake_duration: Histogram,
    key_exchanges: Family<KeyExchange, IntCounter>,
    client_keys: Family<KeyAlgorithm, IntCounter>,
    checks: [StageChecks; 3],
    key_actions: Family<KeyAction, IntCounter>,
    /// Clients that were admitted with a certificate for servers only.
    pub server_auth_clients: IntCounter,
    /// Requests by status class.
    pub requests: Family<CodeClass, IntCounter>,
    own_responses: Family<OwnStatus, IntCounter>,
    /// From the request head to the end of the response, in seconds.
    pub request_duration: Histogram,
    /// Client connections that were ended with `ENHANCE_YOUR_CALM`.
    pub http2_misuses: IntCounter,
    /// Open connections to the upstream, pooled ones included.
    pub upstream_connections_active: IntGauge,
    /// Connections opened to the upstream.
    pub upstream_connections: IntCounter,
    /// Clients that got upstream connections of their own, because shared ones ended under them.
    pub upstream_isolations: IntCounter,
    /// Requests that got no complete response from the upstream.
    pub upstream_failures: Family<UpstreamFailure, IntCounter>,
}

/// The checks of clients at one stage of their connections.
#[derive(Debug, Clone)]
struct StageChecks {
    keys: Family<VerdictKind, IntCounter>,
    names: Family<NameResult, IntCounter>,
}

impl WorkerMetrics {
    /// Registers all series of one worker, at zero, for the services and authorizers with these
    /// names.
    ///
    /// # Errors
    /// Returns an error if two series have the same name.
    pub fn new(services: &[&str], authorizers: &[&str]) -> Result<Self, prometheus::Error> {
        let registry = Registry::new();
        let series = Series::register(&registry)?;
        services.iter().for_each(|service| drop(series.of_service(service)));
        let asked = AuthorizerSeries::register(
            &registry,
            [
                &series.key_checks,
                &series.key_actions,
                &series.name_checks,
                &series.server_auth_clients,
            ],
        )?;
        authorizers.iter().for_each(|authorizer| drop(asked.of_authorizer(authorizer)));
        let waits = counters(
            &registry,
            "confirmation_waits_total",
            "Connections that were held for an answer about the key of the client, by how the wait ended.",
            &["outcome"],
        )?;
        let active = IntGauge::with_opts(opts(
            "confirmation_waits_active",
            "Connections that are held for an answer about the key of the client.",
        ));
        let wait_duration = HistogramOpts::new(
            "confirmation_wait_duration_seconds",
            "Time for which connections were held for an answer about the key of the client.",
        )
        .namespace(NAMESPACE)
        .buckets(HANDSHAKE_BUCKETS.to_vec());
        let weak_key_checks = IntCounter::with_opts(opts(
            "weak_key_checks_total",
            "Checks of keys for weakness. A known key is checked again if its result was dropped, or for a check that it has not had.",
        ));
        let buffered = IntGaugeVec::new(
            opts("buffered_bytes", "Memory that clients hold in buffers, by what it is held for."),
            &["class"],
        );
        let buffer_rejections = counters(
            &registry,
            "buffer_rejections_total",
            "Connections, requests and pieces of responses that were rejected or delayed, because the client held its share of the memory.",
            &["class"],
        )?;
        let buffer_limit = IntGauge::with_opts(opts(
            "buffer_limit_bytes",
            "Maximum memory that all clients together may hold in buffers.",
        ));
        Ok(Self {
            buffered: Family::from_vec(&register(&registry, buffered)?, &[]),
            buffer_rejections: Family::from_vec(&buffer_rejections, &[]),
            buffer_limit: register(&registry, buffer_limit)?,
            unrouted: Family::from_vec(&series.connections, &[UNROUTED]),
            unrouted_handshakes: Family::from_vec(&series.handshakes, &[UNROUTED, "false"]),
            confirmation_waits: Family::from_vec(&waits, &[]),
            confirmation_waits_active: register(&registry, active)?,
            confirmation_wait_duration: register(&registry, Histogram::with_opts(wait_duration))?,
            weak_key_checks: register(&registry, weak_key_checks)?,
            traces: TraceMetrics::register(&registry)?,
            series,
            authorizers: asked,
            registry,
        })
    }

    /// Sets the number of keys that the worker has checked since its start.
    pub fn set_weak_key_checks(&self, total: u64) {
        self.weak_key_checks.inc_by(total.saturating_sub(self.weak_key_checks.get()));
    }

    /// Sets the memory that clients of the worker hold.
    pub(crate) fn set_buffers(&self, classes: &[ClassUse]) {
        for (class, used) in BufferClass::ALL.into_iter().zip(classes) {
            self.buffered.of(class).set(i64::try_from(used.bytes).unwrap_or(i64::MAX));
            let rejections = self.buffer_rejections.of(class);
            rejections.inc_by(used.rejections.saturating_sub(rejections.get()));
        }
    }

    /// The series of the service with this name; at zero if they are new.
    #[must_use]
    pub fn service(&self, name: &str) -> ServiceMetrics {
        self.series.of_service(name)
    }

    /// The series of the authorizer with this name; at zero if they are new.
    #[must_use]
    pub fn authorizer(&self, name: &str) -> AuthorizerMetrics {
        self.authorizers.of_authorizer(name)
    }
}

impl ServiceMetrics {
    /// Counts a response of keygate because of the request, and returns why it got the status.
    pub(crate) fn count_own_response(&self, status: u16) -> Option<&'static str> {
        let status = OwnStatus::from_status(status)?;
        self.own_responses.of(status).inc();
        Some(status.cause())
    }

    /// The counter of handshakes with `result`, resumed or full.
    #[must_use]
    pub fn handshakes(&self, result: HandshakeResult, resumed: bool) -> &IntCounter {
        let [full, abbreviated] = &self.handshakes;
        if resumed { abbreviated.of(result) } else { full.of(result) }
    }

    /// Counts a completed handshake by the group of its key exchange and the algorithm of the client's
    /// key.
    pub(crate) fn count_key_use(&self, group: Option<KeyExchange>, key: Option<KeyAlgorithm>) {
        group.iter().for_each(|group| self.key_exchanges.of(*group).inc());
        key.iter().for_each(|key| self.client_keys.of(*key).inc());
    }

    /// Counts a verdict and the action that followed it, and the result of the rules by name. No
    /// action followed the verdict if these reject the client.
    pub fn count_judgement(&self, judged_at: JudgedAt, judgement: &Judgement) {
        let [full_handshake, reload, resumption] = &self.checks;
        let checks = match judged_at {
            JudgedAt::Asked => return, // authorizers have series of their own
            JudgedAt::FullHandshake => full_handshake,
            JudgedAt::Reload => reload,
            JudgedAt::Resumption => resumption,
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
                JudgedAt::Asked | JudgedAt::FullHandshake | JudgedAt::Resumption,
            ) => KeyAction::Reject,
        };
        self.key_actions.of(action).inc();
    }
}

/// The series of all services, before their labels are resolved to handles.
#[derive(Debug, Clone)]
struct Series {
    connections_active: IntGaugeVec,
    connections_hibernating: IntGaugeVec,
    connections: prometheus::IntCounterVec,
    handshakes: prometheus::IntCounterVec,
    handshake_duration: HistogramVec,
    key_exchanges: prometheus::IntCounterVec,
    client_keys: prometheus::IntCounterVec,
    key_checks: prometheus::IntCounterVec,
    key_actions: prometheus::IntCounterVec,
    name_checks: prometheus::IntCounterVec,
    server_auth_clients: prometheus::IntCounterVec,
    requests: prometheus::IntCounterVec,
    own_responses: prometheus::IntCounterVec,
    request_duration: HistogramVec,
    http2_misuses: prometheus::IntCounterVec,
    upstream_connections_active: IntGaugeVec,
    upstream_connections: prometheus::IntCounterVec,
    upstream_isolations: prometheus::IntCounterVec,
    upstream_failures: prometheus::IntCounterVec,
}

impl Series {
    #[rustfmt::skip] // a table
    fn register(registry: &Registry) -> Result<Self, prometheus::Error> {
        let counters = |name, help, labels: &[&str]| counters(registry, name, help, labels);
        let gauges = |name, help| register(registry, IntGaugeVec::new(opts(name, help), &["service"]));
        let seconds = |name, help, buckets: &[f64]| {
            let opts = HistogramOpts::new(name, help).namespace(NAMESPACE).buckets(buckets.to_vec());
            register(registry, HistogramVec::new(opts, &["service"]))
        };
        Ok(Self {
            connections_active: gauges("connections_active", "Open client connections after their handshakes, those that are held for an answer included.")?,
            connections_hibernating: gauges("connections_hibernating", "Open client connections that are idle and have given their HTTP state back.")?,
            connections: counters("connections_total", "Client connections by result; the service is empty if the connection ended before it was routed.", &["service", "result"])?,
            handshakes: counters("handshakes_total", "TLS handshakes by result; the service is empty if the connection ended before it was routed.", &["service", "resumed", "result"])?,
            handshake_duration: seconds("handshake_duration_seconds", "Time from the accepted connection to the finished handshake.", HANDSHAKE_BUCKETS)?,
            key_exchanges: counters("key_exchanges_total", "Completed handshakes by the group of the key exchange. A resumed session of TLS 1.2 has none.", &["service", "group"])?,
            client_keys: counters("client_key_algorithms_total", "Completed handshakes by the algorithm of the client key.", &["service", "algorithm"])?,
            key_checks: counters("key_checks_total", "Verdicts on client keys: one for each connection, and while it is open one more after each reload and after each answer that changes the verdict.", &["service", "stage", "verdict"])?,
            key_actions: counters("key_actions_total", "Actions that followed the verdicts on client keys.", &["service", "action"])?,
            name_checks: counters("name_checks_total", "Results of the rules by name, for services and authorizers that have any: one for each client whose key the policy accepts, and while its connection is open one more after each reload.", &["service", "stage", "result"])?,
            server_auth_clients: counters("server_auth_clients_total", "Clients that were admitted with certificates for servers only: one for each connection or question.", &["service"])?,
            requests: counters("requests_total", "Requests by status class of the response.", &["service", "code"])?,
            own_responses: counters("own_responses_total", "Responses that keygate made itself because of the request or its client, by status.", &["service", "status"])?,
            request_duration: seconds("request_duration_seconds", "Time from the request head to the end of the response.", REQUEST_BUCKETS)?,
            http2_misuses: counters("http2_misuses_total", "Client HTTP/2 connections that were ended with ENHANCE_YOUR_CALM, because of too many reset streams, errors or control frames.", &["service"])?,
            upstream_connections_active: gauges("upstream_connections_active", "Open connections to the upstream, pooled ones included.")?,
            upstream_connections: counters("upstream_connections_total", "Connections opened to the upstream.", &["service"])?,
            upstream_isolations: counters("upstream_isolations_total", "Clients that got upstream connections of their own for a minute, because an HTTP/2 connection that only they used failed after a shared one.", &["service"])?,
            upstream_failures: counters("upstream_failures_total", "Requests that got no complete response from the upstream, by reason.", &["service", "reason"])?,
        })
    }

    fn of_service(&self, service: &str) -> ServiceMetrics {
        let checks = |at: JudgedAt| StageChecks {
            keys: Family::from_vec(&self.key_checks, &[service, at.as_str()]),
            names: Family::from_vec(&self.name_checks, &[service, at.as_str()]),
        };
        ServiceMetrics {
            connections_active: self.connections_active.with_label_values(&[service]),
            connections_hibernating: self.connections_hibernating.with_label_values(&[service]),
            connections: Family::from_vec(&self.connections, &[service]),
            handshakes: [
                Family::from_vec(&self.handshakes, &[service, "false"]),
                Family::from_vec(&self.handshakes, &[service, "true"]),
            ],
            handshake_duration: self.handshake_duration.with_label_values(&[service]),
            key_exchanges: Family::from_vec(&self.key_exchanges, &[service]),
            client_keys: Family::from_vec(&self.client_keys, &[service]),
            checks: [
                checks(JudgedAt::FullHandshake),
                checks(JudgedAt::Reload),
                checks(JudgedAt::Resumption),
            ],
            key_actions: Family::from_vec(&self.key_actions, &[service]),
            server_auth_clients: self.server_auth_clients.with_label_values(&[service]),
            requests: Family::from_vec(&self.requests, &[service]),
            own_responses: Family::from_vec(&self.own_responses, &[service]),
            request_duration: self.request_duration.with_label_values(&[service]),
            http2_misuses: self.http2_misuses.with_label_values(&[service]),
            upstream_connections_active: self
                .upstream_connections_active
                .with_label_values(&[service]),
            upstream_connections: self.upstream_connections.with_label_values(&[service]),
            upstream_isolations: self.upstream_isolations.with_label_values(&[service]),
            upstream_failures: Family::from_vec(&self.upstream_failures, &[service]),
        }
    }
}

/// Buckets in seconds: from a resumed handshake in one data centre to an intercontinental one with
/// packet loss.
const HANDSHAKE_BUCKETS: &[f64] =
    &[0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0];
/// Buckets in seconds: the defaults of the Prometheus clients, with finer steps at the fast end.
const REQUEST_BUCKETS: &[f64] = &[
    0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0,
    60.0,
];

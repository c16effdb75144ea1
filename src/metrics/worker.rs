//! The series of the data path: one set for each worker.

use keygate_core::guard::JudgedAt;
use keygate_core::tls::{HandshakeResult, KeyExchange};
use keygate_wire::permit::BufferClass;
use keygate_wire::permit::ledger::ClassUse;
use prometheus::{Histogram, IntCounter, IntGauge, Registry};

use super::authorizer::{AuthorizerMetrics, AuthorizerSeries};
use super::judgements::{JudgementMetrics, JudgementSeries};
use super::labels::{
    CodeClass, ConnectionResult, Family, KeyAlgorithm, OwnStatus, UpstreamFailure, WaitOutcome,
};
use super::series::{Handle, series, set_count};
use super::traces::{TraceMetrics, TraceSeries};

/// The label value of connections that ended before a service was chosen.
const UNROUTED: &str = "";

/// Buckets in seconds: from a resumed handshake in one data centre to an intercontinental one with
/// packet loss.
const HANDSHAKE_BUCKETS: &[f64] =
    &[0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0];
/// Buckets in seconds: the defaults of the Prometheus clients, with finer steps at the fast end.
const REQUEST_BUCKETS: &[f64] = &[
    0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0,
    60.0,
];

series! {
    /// The series of one worker.
    pub struct WorkerMetrics, WorkerSeries {
        pub confirmation_waits: Family<WaitOutcome, IntCounter> = "confirmation_waits_total"["outcome"]
            "Connections that were held for an answer about the key of the client, by how the wait ended.",
        pub confirmation_waits_active: IntGauge = "confirmation_waits_active"[]
            "Connections that are held for an answer about the key of the client.",
        pub confirmation_wait_duration: Histogram = "confirmation_wait_duration_seconds"[] in HANDSHAKE_BUCKETS
            "Time for which connections were held for an answer about the key of the client.",
        weak_key_checks: IntCounter = "weak_key_checks_total"[]
            "Checks of keys for weakness. A known key is checked again if its result was dropped, or for a check that it has not had.",
        buffered: Family<BufferClass, IntGauge> = "buffered_bytes"["class"]
            "Memory that clients hold in buffers, by what it is held for.",
        buffer_rejections: Family<BufferClass, IntCounter> = "buffer_rejections_total"["class"]
            "Connections, requests and pieces of responses that were rejected or delayed, because the client held its share of the memory.",
        pub buffer_limit: IntGauge = "buffer_limit_bytes"[]
            "Maximum memory that all clients together may hold in buffers.",
    } with {
        pub(super) registry: Registry,
        named: NamedSeries,
        /// Connections that ended before a service was chosen.
        pub unrouted: Family<ConnectionResult, IntCounter>,
        /// Handshakes that ended before a service was chosen.
        pub unrouted_handshakes: Family<HandshakeResult, IntCounter>,
        /// The spans of this worker's requests.
        pub traces: TraceMetrics,
    }
}

series! {
    /// The series of one service in one worker.
    pub struct ServiceMetrics, ServiceSeries {
        pub connections_active: IntGauge = "connections_active"["service"]
            "Open client connections after their handshakes, those that are held for an answer included.",
        pub connections_hibernating: IntGauge = "connections_hibernating"["service"]
            "Open client connections that are idle and have given their HTTP state back.",
        pub connections: Family<ConnectionResult, IntCounter> = "connections_total"["service", "result"]
            "Client connections by result; the service is empty if the connection ended before it was routed.",
        handshakes: [Family<HandshakeResult, IntCounter>; 2] = "handshakes_total"["service", "resumed", "result"]
            "TLS handshakes by result; the service is empty if the connection ended before it was routed.",
        pub handshake_duration: Histogram = "handshake_duration_seconds"["service"] in HANDSHAKE_BUCKETS
            "Time from the accepted connection to the finished handshake.",
        key_exchanges: Family<KeyExchange, IntCounter> = "key_exchanges_total"["service", "group"]
            "Completed handshakes by the group of the key exchange. A resumed session of TLS 1.2 has none.",
        client_keys: Family<KeyAlgorithm, IntCounter> = "client_key_algorithms_total"["service", "algorithm"]
            "Completed handshakes by the algorithm of the client key.",
        pub requests: Family<CodeClass, IntCounter> = "requests_total"["service", "code"]
            "Requests by status class of the response.",
        own_responses: Family<OwnStatus, IntCounter> = "own_responses_total"["service", "status"]
            "Responses that keygate made itself because of the request or its client, by status.",
        pub request_duration: Histogram = "request_duration_seconds"["service"] in REQUEST_BUCKETS
            "Time from the request head to the end of the response.",
        pub http2_misuses: IntCounter = "http2_misuses_total"["service"]
            "Client HTTP/2 connections that were ended with ENHANCE_YOUR_CALM, because of too many reset streams, errors or control frames.",
        pub upstream_connections_active: IntGauge = "upstream_connections_active"["service"]
            "Open connections to the upstream, pooled ones included.",
        pub upstream_connections: IntCounter = "upstream_connections_total"["service"]
            "Connections opened to the upstream.",
        pub upstream_key_exchanges: Family<KeyExchange, IntCounter> = "upstream_key_exchanges_total"["service", "group"]
            "TLS connections opened to the upstream, by the group of the key exchange.",
        pub upstream_isolations: IntCounter = "upstream_isolations_total"["service"]
            "Clients that got upstream connections of their own for a minute, because an HTTP/2 connection that only they used failed after a shared one.",
        pub upstream_failures: Family<UpstreamFailure, IntCounter> = "upstream_failures_total"["service", "reason"]
            "Requests that got no complete response from the upstream, by reason.",
    } with {
        /// The verdicts on clients.
        pub judgements: JudgementMetrics,
    }
}

/// The series of services and authorizers, whose first label is their name.
#[derive(Debug, Clone)]
pub(super) struct NamedSeries {
    services: ServiceSeries,
    authorizers: AuthorizerSeries,
    judgements: JudgementSeries,
}

impl WorkerMetrics {
    /// Registers all series of one worker, at zero, for the services with these names, and for
    /// authorizers with the moment at which they judge.
    ///
    /// # Errors
    /// Returns an error if two series have the same name.
    pub fn new(
        services: &[&str],
        authorizers: &[(&str, JudgedAt)],
    ) -> Result<Self, prometheus::Error> {
        let registry = Registry::new();
        let named = NamedSeries {
            services: ServiceSeries::register(&registry)?,
            authorizers: AuthorizerSeries::register(&registry)?,
            judgements: JudgementSeries::register(&registry)?,
        };
        let unrouted = Handle::resolve(&named.services.connections, &[UNROUTED]);
        let handshakes = Handle::resolve(&named.services.handshakes, &[UNROUTED, "false"]);
        let metrics = WorkerSeries::register(&registry)?.handles(
            &[],
            registry.clone(),
            named,
            unrouted,
            handshakes,
            TraceSeries::register(&registry)?.handles(&[]),
        );
        services.iter().for_each(|service| drop(metrics.service(service)));
        authorizers.iter().for_each(|(name, stage)| drop(metrics.authorizer(name, *stage)));
        Ok(metrics)
    }

    /// Sets the number of keys that the worker has checked since its start.
    pub fn set_weak_key_checks(&self, total: u64) {
        self.weak_key_checks.inc_by(total.saturating_sub(self.weak_key_checks.get()));
    }

    /// Sets the memory that clients of the worker hold.
    pub(crate) fn set_buffers(&self, classes: &[ClassUse]) {
        for (class, used) in BufferClass::ALL.into_iter().zip(classes) {
            set_count(self.buffered.of(class), used.bytes);
            let rejections = self.buffer_rejections.of(class);
            rejections.inc_by(used.rejections.saturating_sub(rejections.get()));
        }
    }

    /// The series of the service with this name; at zero if they are new.
    #[must_use]
    pub fn service(&self, name: &str) -> ServiceMetrics {
        let stages = [JudgedAt::FullHandshake, JudgedAt::Reload, JudgedAt::Resumption];
        let NamedSeries { services, judgements, .. } = &self.named;
        services.handles(&[name], judgements.handles(name, &stages))
    }

    /// The series of the authorizer with this name, which judges keys at this moment; at zero if
    /// they are new.
    #[must_use]
    pub fn authorizer(&self, name: &str, stage: JudgedAt) -> AuthorizerMetrics {
        let NamedSeries { authorizers, judgements, .. } = &self.named;
        authorizers.handles(&[name], judgements.handles(name, &[stage]))
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
}

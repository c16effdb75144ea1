//! The times of one sampled request, and the outcome of its exchange with the upstream.

use std::cell::{OnceCell, RefCell};
use std::rc::Rc;
use std::time::{Instant, SystemTime};

use hyper::{HeaderMap, StatusCode};
use keygate_wire::permit::ClientKey;

use super::request_values::RequestValues;
use crate::config::ServerConfig;
use crate::metrics::{Label, UpstreamFailure};
use crate::proxy::upstream::RequestFailure;
use crate::traces::{FailedAttempts, FinishedExchange, FinishedRequest, RequestTrace, Tracer};

/// The spans of one sampled request.
#[derive(Debug)]
pub(crate) struct RequestSpans {
    tracer: Rc<Tracer>,
    trace: RequestTrace,
    /// `tracestate` of the client; empty if there is none.
    state: String,
    began: Instant,
    began_at: SystemTime,
    /// When the exchange with the upstream began; empty if there was none.
    exchange_began: OnceCell<Instant>,
    failed_attempts: Rc<FailedAttempts>,
    outcome: RefCell<ExchangeEnd>,
}

/// The outcome of the exchange with the upstream.
#[derive(Debug, Default)]
struct ExchangeEnd {
    server: Option<ServerConfig>,
    status: Option<u16>,
    error: Option<&'static str>,
}

/// `error.type` of an exchange whose client reset the stream or closed its connection.
const CLIENT_FAULT: &str = "client";

impl RequestSpans {
    /// Begins the trace of a request that was received at `began`, and its spans if it is sampled.
    /// `trusted` are its header fields, if traces of the peer are continued.
    pub(crate) fn begin(
        tracer: &Rc<Tracer>,
        trusted: Option<&HeaderMap>,
        client: ClientKey,
        began: Instant,
    ) -> (RequestTrace, Option<Box<Self>>) {
        let trace = tracer.begin(trusted, client, began);
        let spans = trace.is_sampled().then(|| {
            Box::new(Self {
                tracer: Rc::clone(tracer),
                trace,
                state: trusted.map(|headers| trace.state_of(headers)).unwrap_or_default(),
                began,
                began_at: SystemTime::now() - began.elapsed(),
                exchange_began: OnceCell::new(),
                failed_attempts: Rc::default(),
                outcome: RefCell::default(),
            })
        });
        (trace, spans)
    }

    pub(super) fn begin_exchange(&self) {
        let _ = self.exchange_began.set(Instant::now()); // a request has one exchange
    }

    pub(super) fn failed_attempts(&self) -> Rc<FailedAttempts> {
        Rc::clone(&self.failed_attempts)
    }

    pub(super) fn record_response(&self, server: &ServerConfig, status: StatusCode) {
        let (server, status) = (Some(server.clone()), Some(status.as_u16()));
        self.outcome.replace(ExchangeEnd { server, status, error: None });
    }

    pub(super) fn record_failure(&self, failure: &RequestFailure) {
        let error = failure.error.kind().map_or(CLIENT_FAULT, |kind| kind.as_str());
        let server = failure.server.clone();
        self.outcome.replace(ExchangeEnd { server, status: None, error: Some(error) });
    }

    /// Records that the response, or the tunnel after it, broke off.
    pub(super) fn record_incomplete(&self) {
        self.outcome.borrow_mut().error = Some(UpstreamFailure::Incomplete.as_str());
    }

    /// Ends the spans, with what the record of the request has.
    pub(super) fn finish(self, values: &mut RequestValues) {
        // The system time may have been set meanwhile, so durations come from the monotonic clock.
        let time_at = |moment: Instant| self.began_at + moment.duration_since(self.began);
        let connection = &values.connection;
        let line = std::mem::take(&mut values.line);
        let target = line.target.unwrap_or_default();
        // The query may hold secrets.
        let path = target.split_once('?').map_or(target.as_str(), |(path, _)| path).to_owned();
        let ended = time_at(Instant::now());
        let mut exchanges = Vec::new();
        if let Some(began) = self.exchange_began.get() {
            let mut began = time_at(*began);
            for (server, error, ended) in self.failed_attempts.take() {
                let (server, ended) = (Some(server), time_at(ended));
                exchanges.push(FinishedExchange { began, ended, server, status: None, error });
                began = ended;
            }
            let ExchangeEnd { server, status, error } = self.outcome.take();
            // No failure and no complete response: the client ended first.
            let is_cut = status.is_none() || !values.is_complete.get();
            let error = error.or_else(|| is_cut.then_some(CLIENT_FAULT));
            exchanges.push(FinishedExchange { began, ended, server, status, error });
        }
        self.tracer.finish(FinishedRequest {
            trace: self.trace,
            began: self.began_at,
            ended,
            method: line.method.unwrap_or_default(),
            path,
            host: line.host.unwrap_or_default(),
            protocol_version: line.protocol.strip_prefix("HTTP/").unwrap_or_default(),
            user_agent: line.user_agent,
            request_id: line.request_id,
            status: values.status.get(),
            is_complete: values.is_complete.get(),
            client: connection.identity.peer().ip().to_canonical(),
            subject: connection.client_summary().map(|client| client.subject.clone()),
            service: connection.service().config.name.clone(),
            verdict: connection.verdict_word(),
            key_use: connection.tls_facts.as_ref().map_or([None; 2], |tls| tls.key_use),
            exchanges,
            trace_state: self.state,
        });
    }
}

//! The record of a request, filled in as its parts become known: for the access log, and for the
//! spans of a sampled request.

use std::fmt::Display;
use std::rc::Rc;
use std::time::Duration;

use hyper::StatusCode;

use super::access_log::AccessLog;
use super::request_spans::RequestSpans;
pub(crate) use super::request_values::RequestLine;
use super::request_values::{RequestBytes, RequestValues, truncated};
use crate::config::ServerConfig;
use crate::proxy::message::body::RequestUpload;
use crate::proxy::open_connection::OpenConnection;
use crate::proxy::open_connection::state::TunnelBytes;
use crate::proxy::tunnel::TunnelEnd;
use crate::proxy::upstream::RequestFailure;
use crate::traces::FailedAttempts;

/// The record of one request, filled in as its parts become known and used when it is dropped.
#[derive(Debug)]
pub(crate) struct RequestRecord {
    /// `None` if the access log is off.
    log: Option<Rc<AccessLog>>,
    /// `None` if the request is not sampled.
    spans: Option<Box<RequestSpans>>,
    values: RequestValues,
}

impl RequestRecord {
    /// The record of a request, or of a tunnel, that begins now with `line`; `None` if nothing needs
    /// it.
    pub(crate) fn begin(
        log: Option<&Rc<AccessLog>>,
        spans: Option<Box<RequestSpans>>,
        connection: &Rc<OpenConnection>,
        line: impl FnOnce() -> RequestLine,
    ) -> Option<Box<Self>> {
        if log.is_none() && spans.is_none() {
            return None;
        }
        let values = RequestValues::new(connection, line());
        Some(Box::new(Self { log: log.cloned(), spans, values }))
    }

    /// Sets the server that the request was sent to; the first one stays.
    pub(crate) fn set_upstream(&self, server: &impl Display) {
        self.values.upstream.get_or_init(|| server.to_string());
    }

    /// Records that the exchange with the upstream begins.
    pub(crate) fn begin_exchange(&self) {
        if let Some(spans) = &self.spans {
            spans.begin_exchange();
        }
    }

    /// The attempts of a sampled request that another one follows.
    pub(crate) fn failed_attempts(&self) -> Option<Rc<FailedAttempts>> {
        self.spans.as_ref().map(|spans| spans.failed_attempts())
    }

    /// Records the head of the upstream's response, which `server` has sent.
    pub(crate) fn record_response(&self, server: &ServerConfig, status: StatusCode) {
        self.set_upstream(server);
        if let Some(spans) = &self.spans {
            spans.record_response(server, status);
        }
    }

    /// Records that the upstream has not responded.
    pub(crate) fn record_failure(&self, failure: &RequestFailure) {
        failure.server.iter().for_each(|server| self.set_upstream(server));
        self.set_error(&failure.error);
        if let Some(spans) = &self.spans {
            spans.record_failure(failure);
        }
    }

    /// Records that the upstream broke off its response after the head.
    pub(crate) fn record_broken_response(&self, error: &impl Display) {
        self.set_error(error);
        if let Some(spans) = &self.spans {
            spans.record_incomplete();
        }
    }

    /// Sets the time until the head of the upstream's response.
    pub(crate) fn set_upstream_time(&self, time: Duration) {
        self.values.upstream_time.set(Some(time));
    }

    /// Sets why keygate responds itself, or why the response broke off; the first reason stays.
    pub(crate) fn set_error(&self, error: &impl Display) {
        self.values.error.get_or_init(|| truncated(&error.to_string()));
    }

    pub(crate) fn set_status(&self, status: u16) {
        self.values.status.set(Some(status));
    }

    /// Counts the request body as it is uploaded.
    pub(crate) fn set_upload(&self, upload: RequestUpload) {
        self.values.request_bytes.replace(RequestBytes::Upload(upload));
    }

    pub(crate) fn add_response_bytes(&self, count: usize) {
        self.values
            .response_bytes
            .set(self.values.response_bytes.get().saturating_add(count as u64));
    }

    pub(crate) fn set_complete(&self, is_complete: bool) {
        self.values.is_complete.set(is_complete);
    }

    /// Sets the bytes and the end of a tunnel, whose request had no body.
    pub(crate) fn set_tunnel(&self, bytes: TunnelBytes, end: TunnelEnd) {
        self.values.request_bytes.replace(RequestBytes::Counted(bytes.from_client));
        self.values.response_bytes.set(bytes.to_client);
        self.values.is_complete.set(end == TunnelEnd::Complete);
        if let (Some(spans), TunnelEnd::Aborted) = (&self.spans, end) {
            spans.record_incomplete();
        }
    }
}

impl Drop for RequestRecord {
    fn drop(&mut self) {
        if let Some(log) = &self.log {
            log.write(&self.values);
        }
        if let Some(spans) = self.spans.take() {
            spans.finish(&mut self.values);
        }
    }
}

//! The record of a request, filled in as its parts become known: for the access log, and for the
//! spans of a sampled request.

use std::cell::{Cell, OnceCell, RefCell};
use std::fmt::Display;
use std::rc::Rc;
use std::time::{Duration, Instant};

use hyper::header::HeaderValue;
use hyper::{Method, StatusCode};

use super::access_log::AccessLog;
use super::request_spans::RequestSpans;
use crate::config::ServerConfig;
use crate::proxy::message::body::RequestUpload;
use crate::proxy::open_connection::OpenConnection;
use crate::proxy::open_connection::state::TunnelBytes;
use crate::proxy::tunnel::TunnelEnd;
use crate::proxy::upstream::RequestFailure;
use crate::traces::FailedAttempts;

/// Maximum length of each text of a request in the log, in characters; the rest is cut off.
const MAX_CHARACTERS: usize = 1024;

/// The record of one request, filled in as its parts become known and used when it is dropped.
#[derive(Debug)]
pub(crate) struct Record {
    /// `None` if the access log is off.
    log: Option<Rc<AccessLog>>,
    /// `None` if the request is not sampled.
    spans: Option<Box<RequestSpans>>,
    pub(super) connection: Rc<OpenConnection>,
    pub(super) began: Instant,
    pub(crate) request_line: RequestLine,
    pub(super) upstream: OnceCell<String>,
    pub(super) error: OnceCell<String>,
    pub(super) upstream_time: Cell<Option<Duration>>,
    pub(super) status: Cell<Option<u16>>,
    request_bytes: RefCell<RequestBytes>,
    pub(super) response_bytes: Cell<u64>,
    /// Whether the response was read to its end.
    pub(super) is_complete: Cell<bool>,
}

/// The length of a request's body.
#[derive(Debug)]
enum RequestBytes {
    Counted(u64),
    /// The upload counts, until the line is written.
    Upload(RequestUpload),
}

/// The request as the client sent it; empty for a TCP service.
#[derive(Debug, Default)]
pub(crate) struct RequestLine {
    pub(super) method: Option<String>,
    pub(super) host: Option<String>,
    pub(super) target: Option<String>,
    pub(super) protocol: &'static str,
    pub(super) request_id: Option<String>,
    pub(super) user_agent: Option<String>,
    pub(super) referer: Option<String>,
}

impl RequestLine {
    pub(crate) fn new(
        method: &Method,
        host: Option<&str>,
        target: &str,
        protocol: &'static str,
    ) -> Self {
        Self {
            method: Some(truncated(method.as_str())),
            host: host.map(truncated),
            target: Some(truncated(target)),
            protocol,
            ..Self::default()
        }
    }

    /// The request line of a TCP service, which has no requests.
    pub(crate) fn tunnel() -> Self {
        Self { protocol: "tcp", ..Self::default() }
    }

    /// The record of bytes on an HTTP/1.1 connection that are no request.
    pub(crate) fn malformed() -> Self {
        Self { protocol: "HTTP/1.1", ..Self::default() }
    }

    pub(crate) fn set_request_id(&mut self, id: &str) {
        self.request_id = Some(truncated(id));
    }

    /// Sets the program of the client, and the page that it came from.
    pub(crate) fn set_client(
        &mut self,
        user_agent: Option<&HeaderValue>,
        referer: Option<&HeaderValue>,
    ) {
        let text = |value: &HeaderValue| {
            let bytes = value.as_bytes();
            let bytes = bytes.get(..4 * MAX_CHARACTERS).unwrap_or(bytes);
            truncated(&String::from_utf8_lossy(bytes))
        };
        self.user_agent = user_agent.map(text);
        self.referer = referer.map(text);
    }
}

fn truncated(text: &str) -> String {
    text.chars().take(MAX_CHARACTERS).collect()
}

impl Record {
    /// The record of a request, or of a tunnel, that begins now; `None` if nothing needs it.
    pub(crate) fn begin(
        log: Option<&Rc<AccessLog>>,
        spans: Option<Box<RequestSpans>>,
        connection: &Rc<OpenConnection>,
    ) -> Option<Box<Self>> {
        if log.is_none() && spans.is_none() {
            return None;
        }
        Some(Box::new(Self {
            log: log.cloned(),
            spans,
            connection: Rc::clone(connection),
            began: Instant::now(),
            request_line: RequestLine::default(),
            upstream: OnceCell::new(),
            error: OnceCell::new(),
            upstream_time: Cell::new(None),
            status: Cell::new(None),
            request_bytes: RefCell::new(RequestBytes::Counted(0)),
            response_bytes: Cell::new(0),
            is_complete: Cell::new(false),
        }))
    }

    /// Sets the server that the request was sent to; the first one stays.
    pub(crate) fn set_upstream(&self, server: &impl Display) {
        self.upstream.get_or_init(|| server.to_string());
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
        self.upstream_time.set(Some(time));
    }

    /// Sets why keygate responds itself, or why the response broke off; the first reason stays.
    pub(crate) fn set_error(&self, error: &impl Display) {
        self.error.get_or_init(|| truncated(&error.to_string()));
    }

    pub(crate) fn set_status(&self, status: u16) {
        self.status.set(Some(status));
    }

    /// Counts the request body as it is uploaded.
    pub(crate) fn set_upload(&self, upload: RequestUpload) {
        self.request_bytes.replace(RequestBytes::Upload(upload));
    }

    pub(crate) fn add_response_bytes(&self, count: usize) {
        self.response_bytes.set(self.response_bytes.get().saturating_add(count as u64));
    }

    pub(crate) fn set_complete(&self, is_complete: bool) {
        self.is_complete.set(is_complete);
    }

    /// Whether the response is an error, or was broken off.
    pub(super) fn is_error(&self) -> bool {
        !self.is_complete.get() || self.status.get().is_some_and(|status| status >= 400)
    }

    /// The bytes of the request body.
    pub(super) fn request_bytes(&self) -> u64 {
        match &*self.request_bytes.borrow() {
            RequestBytes::Counted(count) => *count,
            RequestBytes::Upload(upload) => upload.bytes(),
        }
    }

    /// Sets the bytes and the end of a tunnel, whose request had no body.
    pub(crate) fn set_tunnel(&self, bytes: TunnelBytes, end: TunnelEnd) {
        self.request_bytes.replace(RequestBytes::Counted(bytes.from_client));
        self.response_bytes.set(bytes.to_client);
        self.is_complete.set(end == TunnelEnd::Complete);
        if let (Some(spans), TunnelEnd::Aborted) = (&self.spans, end) {
            spans.record_incomplete();
        }
    }
}

impl Drop for Record {
    fn drop(&mut self) {
        if let Some(log) = &self.log {
            log.write(self);
        }
        if let Some(spans) = self.spans.take() {
            spans.finish(self);
        }
    }
}

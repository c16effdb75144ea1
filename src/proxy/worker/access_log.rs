//! The access log: one JSON line for each request, and for each connection of a TCP service.
//!
//! A separate thread writes the lines to standard output. If the reader of standard output stalls,
//! lines are dropped, and no worker waits.

use std::cell::{Cell, OnceCell, RefCell};
use std::fmt::Display;
use std::rc::Rc;
use std::time::{Duration, Instant, SystemTime};

use hyper::Method;
use serde::Serialize;

use crate::config::AccessLogConfig;
use crate::log_writer::{LineClass, LogWriter};
use crate::proxy::message::body::RequestUpload;
use crate::proxy::open_connection::OpenConnection;
use crate::proxy::open_connection::state::TunnelBytes;
use crate::proxy::tunnel::TunnelEnd;

/// Maximum length of `method`, `host`, `target` and `request_id` in the log, in characters; the rest
/// is cut off.
const MAX_CHARACTERS: usize = 1024;

/// The access log of one worker.
#[derive(Debug)]
pub(crate) struct AccessLog {
    only_errors: bool,
    writer: LogWriter,
    line: RefCell<Vec<u8>>,
}

/// The line of one request, filled in as its parts become known and written when it is dropped.
#[derive(Debug)]
pub(crate) struct Record {
    log: Rc<AccessLog>,
    connection: Rc<OpenConnection>,
    began: Instant,
    pub(crate) request_line: RequestLine,
    upstream: OnceCell<String>,
    upstream_time: Cell<Option<Duration>>,
    status: Cell<Option<u16>>,
    request_bytes: RefCell<RequestBytes>,
    response_bytes: Cell<u64>,
    /// Whether the response was read to its end.
    is_complete: Cell<bool>,
}

/// The length of a request's body.
#[derive(Debug)]
enum RequestBytes {
    Counted(u64),
    /// The upload counts, until the line is written.
    Upload(RequestUpload),
}

/// The request as the client sent it; empty for a TCP service.
#[derive(Debug, Default, Serialize)]
pub(crate) struct RequestLine {
    #[serde(skip_serializing_if = "Option::is_none")]
    method: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    host: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    target: Option<String>,
    protocol: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    request_id: Option<String>,
}

#[derive(Serialize)]
struct Line<'a> {
    time: String,
    service: &'a str,
    peer: String,
    #[serde(flatten)]
    request_line: &'a RequestLine,
    #[serde(skip_serializing_if = "Option::is_none")]
    status: Option<u16>,
    complete: bool,
    request_bytes: u64,
    response_bytes: u64,
    duration_seconds: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    upstream_seconds: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    upstream: Option<&'a str>,
    verdict: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    fingerprint: Option<&'a str>,
}

impl AccessLog {
    /// The access log of one worker; `None` if the configuration turns it off.
    pub(crate) fn new(config: AccessLogConfig, writer: LogWriter) -> Option<Rc<Self>> {
        let only_errors = match config {
            AccessLogConfig::All => false,
            AccessLogConfig::Errors => true,
            AccessLogConfig::Off => return None,
        };
        Some(Rc::new(Self { only_errors, writer, line: RefCell::default() }))
    }

    /// The record of a request, or of a tunnel, that begins now.
    pub(crate) fn begin(self: &Rc<Self>, connection: &Rc<OpenConnection>) -> Box<Record> {
        Box::new(Record {
            log: Rc::clone(self),
            connection: Rc::clone(connection),
            began: Instant::now(),
            request_line: RequestLine::default(),
            upstream: OnceCell::new(),
            upstream_time: Cell::new(None),
            status: Cell::new(None),
            request_bytes: RefCell::new(RequestBytes::Counted(0)),
            response_bytes: Cell::new(0),
            is_complete: Cell::new(false),
        })
    }

    fn write(&self, line: &Line<'_>) {
        let mut buffer = self.line.borrow_mut();
        buffer.clear();
        if serde_json::to_writer(&mut *buffer, line).is_ok() {
            buffer.push(b'\n');
            self.writer.write_line(LineClass::Ordinary, &buffer);
        }
    }
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
            request_id: None,
        }
    }

    /// The request line of a TCP service, which has no requests.
    pub(crate) fn tunnel() -> Self {
        Self { protocol: "tcp", ..Self::default() }
    }

    pub(crate) fn set_request_id(&mut self, id: &str) {
        self.request_id = Some(truncated(id));
    }
}

fn truncated(text: &str) -> String {
    text.chars().take(MAX_CHARACTERS).collect()
}

impl Record {
    /// Sets the server that the request was sent to; the first one stays.
    pub(crate) fn set_upstream(&self, server: &impl Display) {
        self.upstream.get_or_init(|| server.to_string());
    }

    /// Sets the time until the head of the upstream's response.
    pub(crate) fn set_upstream_time(&self, time: Duration) {
        self.upstream_time.set(Some(time));
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

    /// Sets the bytes and the end of a tunnel, whose request had no body.
    pub(crate) fn set_tunnel(&self, bytes: TunnelBytes, end: TunnelEnd) {
        self.request_bytes.replace(RequestBytes::Counted(bytes.from_client));
        self.response_bytes.set(bytes.to_client);
        self.is_complete.set(end == TunnelEnd::Complete);
    }
}

impl Drop for Record {
    fn drop(&mut self) {
        let is_complete = self.is_complete.get();
        let is_error = !is_complete || self.status.get().is_some_and(|status| status >= 400);
        if self.log.only_errors && !is_error {
            return;
        }
        let now = humantime::format_rfc3339_micros(SystemTime::now());
        let service = self.connection.service();
        let request_bytes = match &*self.request_bytes.borrow() {
            RequestBytes::Counted(count) => *count,
            RequestBytes::Upload(upload) => upload.bytes(),
        };
        self.log.write(&Line {
            time: now.to_string(),
            service: &service.config.name,
            peer: self.connection.identity().peer().to_string(),
            request_line: &self.request_line,
            status: self.status.get(),
            complete: is_complete,
            request_bytes,
            response_bytes: self.response_bytes.get(),
            duration_seconds: self.began.elapsed().as_secs_f64(),
            upstream_seconds: self.upstream_time.get().map(|time| time.as_secs_f64()),
            upstream: self.upstream.get().map(String::as_str),
            verdict: self.connection.verdict_word(),
            fingerprint: self.connection.fingerprint(),
        });
    }
}

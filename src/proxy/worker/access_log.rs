//! The access log: one line for each request, and for each connection of a TCP service.
//!
//! A separate thread writes the lines. If the reader of standard output stalls, lines are dropped, and
//! no worker waits.

mod line;

use std::cell::{Cell, OnceCell, RefCell};
use std::fmt::Display;
use std::rc::Rc;
use std::time::{Duration, Instant, SystemTime};

use self::line::Line;
use crate::config::{AccessLogConfig, AccessLogField, AccessLogFormat, LoggedRequests};
use crate::log_writer::{LineClass, LogWriter};
use crate::proxy::message::body::RequestUpload;
use crate::proxy::open_connection::OpenConnection;
use crate::proxy::open_connection::state::TunnelBytes;
use crate::proxy::tunnel::TunnelEnd;
use hyper::Method;
use hyper::header::HeaderValue;

/// Maximum length of each text of a request in the log, in characters; the rest is cut off.
const MAX_CHARACTERS: usize = 1024;

/// The access log of one worker.
#[derive(Debug)]
pub(crate) struct AccessLog {
    only_errors: bool,
    format: AccessLogFormat,
    fields: Box<[AccessLogField]>,
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
    error: OnceCell<String>,
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
#[derive(Debug, Default)]
pub(crate) struct RequestLine {
    method: Option<String>,
    host: Option<String>,
    target: Option<String>,
    protocol: &'static str,
    request_id: Option<String>,
    user_agent: Option<String>,
    referer: Option<String>,
}

impl AccessLog {
    /// The access log of one worker; `None` if the configuration turns it off.
    pub(crate) fn new(config: &AccessLogConfig, writer: LogWriter) -> Option<Rc<Self>> {
        let only_errors = match config.requests {
            LoggedRequests::All => false,
            LoggedRequests::Errors => true,
            LoggedRequests::Off => return None,
        };
        let chosen = config.fields.as_deref().unwrap_or(AccessLogField::ALL);
        let fields = AccessLogField::ALL.iter().filter(|field| chosen.contains(field)).copied();
        let (format, fields, line) = (config.format, fields.collect(), RefCell::default());
        Some(Rc::new(Self { only_errors, format, fields, writer, line }))
    }

    /// The record of a request, or of a tunnel, that begins now.
    pub(crate) fn begin(self: &Rc<Self>, connection: &Rc<OpenConnection>) -> Box<Record> {
        Box::new(Record {
            log: Rc::clone(self),
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
        })
    }

    fn write(&self, record: &Record) {
        let line = Line { record, fields: &self.fields, now: SystemTime::now() };
        let mut buffer = self.line.borrow_mut();
        buffer.clear();
        match self.format {
            AccessLogFormat::Common => buffer.extend_from_slice(line.common().as_bytes()),
            AccessLogFormat::Json => {
                if serde_json::to_writer(&mut *buffer, &line).is_err() {
                    return;
                }
            }
        }
        buffer.push(b'\n');
        self.writer.write_line(LineClass::Ordinary, &buffer);
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
            ..Self::default()
        }
    }

    /// The request line of a TCP service, which has no requests.
    pub(crate) fn tunnel() -> Self {
        Self { protocol: "tcp", ..Self::default() }
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
    /// Sets the server that the request was sent to; the first one stays.
    pub(crate) fn set_upstream(&self, server: &impl Display) {
        self.upstream.get_or_init(|| server.to_string());
    }

    /// Sets the time until the head of the upstream's response.
    pub(crate) fn set_upstream_time(&self, time: Duration) {
        self.upstream_time.set(Some(time));
    }

    /// Sets why keygate responds itself; the first reason stays.
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
        self.log.write(self);
    }
}

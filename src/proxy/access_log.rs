//! One JSON line on standard output for each request, and for each connection of a TCP service.
//!
//! Lines go to a thread of their own: a reader that stalls loses lines, and holds up no worker.

use std::cell::{Cell, OnceCell, RefCell};
use std::io::Write;
use std::rc::Rc;
use std::time::{Instant, SystemTime};

use hyper::Method;
use serde::Serialize;
use tracing_appender::non_blocking::NonBlocking;

use super::standing::Standing;
use super::upstream::Progress;
use crate::config::AccessLogConfig;

/// The access log of one worker.
#[derive(Debug)]
pub(super) struct AccessLog {
    config: AccessLogConfig,
    writer: RefCell<NonBlocking>,
    line: RefCell<Vec<u8>>,
}

/// Of a target or a host that a client sends, so many bytes are written down.
const MAX_TEXT: usize = 1024;

/// What is written down of a request, filled in as it becomes known.
#[derive(Debug)]
pub(super) struct Record {
    log: Rc<AccessLog>,
    standing: Rc<Standing>,
    began: Instant,
    pub(super) asked: Asked,
    pub(super) upstream: OnceCell<String>,
    pub(super) upstream_seconds: Cell<Option<f64>>,
    pub(super) status: Cell<Option<u16>>,
    /// How the request's body went; it counts its bytes.
    pub(super) request_body: RefCell<Option<Progress>>,
    pub(super) request_bytes: Cell<u64>,
    pub(super) response_bytes: Cell<u64>,
    /// Whether the response was read to its end.
    pub(super) is_complete: Cell<bool>,
}

/// What a client asked for; nothing, where there are no requests.
#[derive(Debug, Default, Serialize)]
pub(super) struct Asked {
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
    asked: &'a Asked,
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
    pub(super) fn new(config: AccessLogConfig, writer: NonBlocking) -> Rc<Self> {
        Rc::new(Self { config, writer: RefCell::new(writer), line: RefCell::default() })
    }

    /// A record of something that begins now, if any is kept.
    pub(super) fn begin(self: &Rc<Self>, standing: &Rc<Standing>) -> Option<Box<Record>> {
        if self.config == AccessLogConfig::Off {
            return None;
        }
        Some(Box::new(Record {
            log: Rc::clone(self),
            standing: Rc::clone(standing),
            began: Instant::now(),
            asked: Asked::default(),
            upstream: OnceCell::new(),
            upstream_seconds: Cell::new(None),
            status: Cell::new(None),
            request_body: RefCell::default(),
            request_bytes: Cell::new(0),
            response_bytes: Cell::new(0),
            is_complete: Cell::new(false),
        }))
    }

    fn write(&self, line: &Line<'_>) {
        let mut buffer = self.line.borrow_mut();
        buffer.clear();
        if serde_json::to_writer(&mut *buffer, line).is_ok() {
            buffer.push(b'\n');
            let _ = self.writer.borrow_mut().write_all(&buffer); // it never fails, it drops lines
        }
    }
}

impl Asked {
    pub(super) fn of_request(
        method: &Method,
        host: Option<&str>,
        target: &str,
        protocol: &'static str,
    ) -> Self {
        Self {
            method: Some(bounded(method.as_str())),
            host: host.map(bounded),
            target: Some(bounded(target)),
            protocol,
            request_id: None,
        }
    }

    pub(super) fn of_tunnel() -> Self {
        Self { protocol: "tcp", ..Self::default() }
    }

    pub(super) fn set_request_id(&mut self, id: &str) {
        self.request_id = Some(id.to_owned());
    }
}

fn bounded(text: &str) -> String {
    text.chars().take(MAX_TEXT).collect()
}

impl Drop for Record {
    fn drop(&mut self) {
        let is_complete = self.is_complete.get();
        let is_error = !is_complete || self.status.get().is_some_and(|status| status >= 400);
        if self.log.config == AccessLogConfig::Errors && !is_error {
            return;
        }
        let now = humantime::format_rfc3339_micros(SystemTime::now());
        let service = self.standing.service();
        let streamed = self.request_body.borrow().as_ref().map(Progress::bytes);
        let request_bytes = streamed.unwrap_or_else(|| self.request_bytes.get());
        self.log.write(&Line {
            time: now.to_string(),
            service: &service.config.name,
            peer: self.standing.identity().peer().to_string(),
            asked: &self.asked,
            status: self.status.get(),
            complete: is_complete,
            request_bytes,
            response_bytes: self.response_bytes.get(),
            duration_seconds: self.began.elapsed().as_secs_f64(),
            upstream_seconds: self.upstream_seconds.get(),
            upstream: self.upstream.get().map(String::as_str),
            verdict: self.standing.verdict_word(),
            fingerprint: self.standing.fingerprint(),
        });
    }
}

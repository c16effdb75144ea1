//! The values of a request that the access log and the spans show.

use std::cell::{Cell, OnceCell, RefCell};
use std::rc::Rc;
use std::time::{Duration, Instant};

use hyper::Method;
use hyper::header::HeaderValue;

use crate::proxy::message::body::RequestUpload;
use crate::proxy::open_connection::OpenConnection;

/// Maximum length of each text of a request in the log, in characters; the rest is cut off.
const MAX_CHARACTERS: usize = 1024;

/// The values of one request, filled in as its parts become known.
#[derive(Debug)]
pub(super) struct RequestValues {
    pub(super) connection: Rc<OpenConnection>,
    pub(super) began: Instant,
    pub(super) line: RequestLine,
    pub(super) upstream: OnceCell<String>,
    pub(super) error: OnceCell<String>,
    pub(super) upstream_time: Cell<Option<Duration>>,
    pub(super) status: Cell<Option<u16>>,
    pub(super) request_bytes: RefCell<RequestBytes>,
    pub(super) response_bytes: Cell<u64>,
    /// Whether the response was read to its end.
    pub(super) is_complete: Cell<bool>,
}

/// The length of a request's body.
#[derive(Debug)]
pub(super) enum RequestBytes {
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

pub(super) fn truncated(text: &str) -> String {
    text.chars().take(MAX_CHARACTERS).collect()
}

impl RequestValues {
    /// The values of a request, or of a tunnel, that begins now.
    pub(super) fn new(connection: &Rc<OpenConnection>, line: RequestLine) -> Self {
        Self {
            connection: Rc::clone(connection),
            began: Instant::now(),
            line,
            upstream: OnceCell::new(),
            error: OnceCell::new(),
            upstream_time: Cell::new(None),
            status: Cell::new(None),
            request_bytes: RefCell::new(RequestBytes::Counted(0)),
            response_bytes: Cell::new(0),
            is_complete: Cell::new(false),
        }
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
}

//! Requests in flight: what the requests of one connection share, and each request from its head to
//! the end of its response.

use std::cell::{Cell, OnceCell, RefCell};
use std::fmt::Display;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Instant;

use bytes::Bytes;
use hyper::body::Body;
use hyper::header::{self, HeaderValue};
use hyper::http::request::Parts;
use hyper::http::uri::{Authority, PathAndQuery};
use hyper::{HeaderMap, StatusCode, Version};
use keygate_wire::http2::RESPONSE_WINDOW;
use keygate_wire::incoming::Incoming;
use keygate_wire::informational::Http1Informational;
use keygate_wire::permit::BufferClass;
use keygate_wire::permit::ledger::{Held, Holder, MIN_READ};

use super::glitches::GlitchBudget;
use super::queued_fields::QueuedFields;
use super::resets::ResetBudget;
use super::uploads::Uploads;
use crate::client_log::Misuse;
use crate::metrics::{CodeClass, ServiceMetrics};
use crate::proxy::message::body::RequestUpload;
use crate::proxy::message::headers::own_fields::Annotations;
use crate::proxy::open_connection::OpenConnection;
use crate::proxy::open_connection::state::UpstreamWait;
use crate::proxy::upstream::Upstream;
use crate::proxy::upstream::http1::Tunnel;
use crate::proxy::worker::Worker;
use crate::proxy::worker::record::{RequestLine, RequestRecord};
use crate::proxy::worker::request_spans::RequestSpans;
use crate::snapshot::Service;

/// The state that the requests of one connection share.
pub(crate) struct HttpConnection {
    pub(crate) worker: Rc<Worker>,
    pub(crate) service: Arc<Service>,
    pub(crate) metrics: Rc<ServiceMetrics>,
    annotations: OnceCell<Rc<Annotations>>,
    pub(crate) open: Rc<OpenConnection>,
    /// The upgrade that the upstream has accepted; the connection becomes a tunnel.
    pub(crate) upgrade: RefCell<Option<AcceptedUpgrade>>,
    /// Informational responses for a client of HTTP/1.1.
    pub(crate) informational: Http1Informational,
    /// Whether a client of HTTP/1.1 got a response before its request was read to the end.
    pub(crate) left_unread: Cell<bool>,
    /// Whether the client's `X-Request-Id` is forwarded.
    pub(crate) trust_request_id: bool,
    /// Whether the traces of the client are continued.
    pub(crate) trust_trace_context: bool,
    /// Streams that the client reset (HTTP/2).
    pub(crate) resets: ResetBudget,
    /// Control frames of the client (HTTP/2).
    pub(crate) glitches: GlitchBudget,
    uploads: RefCell<Uploads>,
    /// Bytes of responses that only the charges of their requests cover.
    uncounted: Cell<usize>,
    /// Heads and trailers of responses that wait for the socket (HTTP/2).
    pub(super) queued_fields: QueuedFields,
    /// Bytes of uploads that were read since the windows have grown (HTTP/2).
    pub(crate) consumed: Rc<Cell<u32>>,
    /// Whether the last request was one of HTTP/1.0, whose response may end with the connection.
    pub(crate) is_http10: Cell<bool>,
}

/// The server's side of an upgraded connection, and the record of the request.
pub(crate) struct AcceptedUpgrade {
    pub(crate) tunnel: Tunnel,
    pub(crate) record: Option<Box<RequestRecord>>,
}

impl HttpConnection {
    pub(crate) fn new(
        worker: &Rc<Worker>,
        metrics: Rc<ServiceMetrics>,
        open: &Rc<OpenConnection>,
        service: Arc<Service>,
    ) -> Rc<Self> {
        let identity = &open.identity;
        Rc::new(Self {
            worker: Rc::clone(worker),
            metrics,
            annotations: OnceCell::new(),
            open: Rc::clone(open),
            upgrade: RefCell::default(),
            informational: Http1Informational::default(),
            left_unread: Cell::new(false),
            trust_request_id: service.config.request_id_from.contains(identity.peer().ip()),
            trust_trace_context: service.config.trace_context_from.contains(identity.peer().ip()),
            resets: ResetBudget::new(service.config.limits.max_streams),
            glitches: GlitchBudget::default(),
            uploads: RefCell::new(Uploads::new(open.client)),
            uncounted: Cell::new(0),
            queued_fields: QueuedFields::new(Holder {
                client: open.client,
                class: BufferClass::Response,
            }),
            consumed: Rc::default(),
            is_http10: Cell::new(false),
            service,
        })
    }

    /// The header fields with the client's identity, made for the first request.
    pub(crate) fn annotations(&self) -> Rc<Annotations> {
        let identity = &self.open.identity;
        let new = || Rc::new(Annotations::new(&self.service.config, identity));
        Rc::clone(self.annotations.get_or_init(new))
    }

    /// Counts and logs that the client's connection is ended with `ENHANCE_YOUR_CALM`.
    pub(crate) fn record_misuse(&self, misuse: Misuse) {
        self.metrics.http2_misuses.inc();
        let (peer, fingerprint) = (self.open.identity.peer(), self.open.fingerprint());
        self.worker.refusal_log.misuse(peer, &self.service, fingerprint, misuse);
    }

    /// The client as a holder of bytes.
    pub(crate) fn holder(&self, class: BufferClass) -> Holder {
        Holder { client: self.open.client, class }
    }

    /// Gives back what covers responses that the socket has taken.
    pub(super) fn release_written(&self) {
        self.uncounted.set(0);
        self.queued_fields.release();
    }

    /// Sets the window of each stream, in bytes. Returns whether the share of the client permits
    /// it; otherwise nothing changes.
    pub(super) fn set_window(&self, window: u32) -> bool {
        self.uploads.borrow_mut().set_window(window)
    }

    /// Logs that the client holds its share of the memory.
    pub(crate) fn log_over_share(&self, class: BufferClass) {
        let (peer, fingerprint) = (self.open.identity.peer(), self.open.fingerprint());
        self.worker.refusal_log.over_share(peer, class, fingerprint);
    }

    /// Counts and logs a response to bytes that are no request, or to no bytes.
    pub(crate) fn record_bad_request(&self, status: StatusCode, reason: &impl Display) {
        self.metrics.requests.of(CodeClass::from_status(status.as_u16())).inc();
        self.metrics.count_own_response(status.as_u16());
        let log = self.worker.access_log.as_ref();
        if let Some(record) = RequestRecord::begin(log, None, &self.open, RequestLine::malformed) {
            record.set_status(status.as_u16());
            record.set_error(reason);
            record.set_complete(true);
        }
    }

    /// Counts and logs that the client has begun to get upstream connections of its own.
    pub(crate) fn record_isolation(&self) {
        self.metrics.upstream_isolations.inc();
        let (peer, fingerprint) = (self.open.identity.peer(), self.open.fingerprint());
        self.worker.refusal_log.isolation(peer, &self.service, fingerprint);
    }

    /// The upstream of the service by the current snapshot.
    pub(crate) fn upstream(&self) -> Rc<Upstream> {
        self.worker.current_upstream(&self.open.service())
    }
}

/// Memory that a request takes from its head to the end of its response, in bytes: its state and
/// its fields, 8 KiB, and the first read from its server.
const REQUEST: usize = (8 << 10) + MIN_READ;

/// A request from its head to the end of its response. Counts as in flight while it lives.
pub(crate) struct RequestInFlight {
    pub(super) http: Rc<HttpConnection>,
    pub(super) began: Instant,
    /// Whether the duration has been observed.
    is_observed: Cell<bool>,
    /// `None` if the request has no body.
    upload: Option<RequestUpload>,
    record: Option<Box<RequestRecord>>,
    held: Held,
    is_tunnel: bool,
    /// Whether the request counts as an upload in flight.
    holds_window: bool,
    is_http2: bool,
    /// Whether the client waits for `100 Continue` before it sends the body.
    pub(crate) expects_continue: bool,
}

impl RequestInFlight {
    /// Begins the request, its upload and its record.
    pub(crate) fn begin(
        http: Rc<HttpConnection>,
        began: Instant,
        parts: &Parts,
        body: &Incoming,
        request_id: Option<&HeaderValue>,
        spans: Option<Box<RequestSpans>>,
    ) -> Self {
        http.open.state.begin_request(began);
        let held = Held::new(http.holder(BufferClass::Request));
        let upload = (!body.is_end_stream()).then(|| RequestUpload::new(body, began));
        let line = || request_line(parts, request_id);
        let record = RequestRecord::begin(http.worker.access_log.as_ref(), spans, &http.open, line);
        if let (Some(record), Some(upload)) = (&record, &upload) {
            record.set_upload(upload.clone());
        }
        Self {
            http,
            began,
            is_observed: Cell::new(false),
            upload,
            record,
            held,
            is_tunnel: false,
            holds_window: false,
            is_http2: parts.version == Version::HTTP_2,
            expects_continue: parts.headers.contains_key(header::EXPECT),
        }
    }

    /// Takes the memory of the request from the client's share. Returns whether there is enough. A
    /// tunnel takes a window as an upload does. A server of HTTP/2 may fill the window of its
    /// response before the client reads.
    #[must_use]
    pub(crate) fn take_share(&mut self, is_tunnel: bool, has_http2_server: bool) -> bool {
        let window = if has_http2_server { RESPONSE_WINDOW as usize } else { 0 };
        self.holds_window = is_tunnel || self.upload.is_some();
        let has_share = (!self.holds_window || self.http.uploads.borrow_mut().begin())
            && self.held.resize(REQUEST.saturating_add(window));
        if !has_share {
            self.http.log_over_share(BufferClass::Request);
        }
        has_share
    }

    /// A piece of the response, held by the client until it is written.
    pub(super) fn hold(&self, data: Bytes) -> Bytes {
        let holder = self.http.holder(BufferClass::Response);
        holder.hold(data, &self.http.uncounted, !self.is_http2)
    }

    /// Charges the client with the trailers of the response. Over HTTP/1.1 they are written before
    /// the next request is read.
    pub(super) fn hold_trailers(&self, trailers: &HeaderMap) {
        if self.is_http2 {
            self.http.queued_fields.hold(trailers);
        }
    }

    /// Begins the response. Over HTTP/1.1 the last one is written.
    pub(super) fn begin_response(&self) {
        if !self.is_http2 {
            self.http.uncounted.set(0);
        }
    }

    /// Counts a response of keygate, whose cause is the error of the record if it has none.
    pub(super) fn count_own_response(&self, status: StatusCode) {
        let cause = self.http.metrics.count_own_response(status.as_u16());
        if let (Some(cause), Some(record)) = (cause, self.record()) {
            record.set_error(&cause);
        }
    }

    /// The record; `None` if the access log is off and the request is not sampled.
    pub(crate) fn record(&self) -> Option<&RequestRecord> {
        self.record.as_deref()
    }

    /// The upload; `None` if the request has no body.
    pub(crate) fn upload(&self) -> Option<&RequestUpload> {
        self.upload.as_ref()
    }

    /// Discards the body before a response that keygate makes itself. Some clients (curl 7.88) lose
    /// a response that arrives while they are still sending. Over HTTP/2 the response is sent
    /// first, and its end waits for the body.
    pub(crate) async fn discard_body(&self, body: Incoming) {
        let Some(upload) = &self.upload else { return };
        if self.expects_continue {
            return upload.stop(body); // reading it would send `100 Continue`
        }
        upload.reject(body);
        if !self.is_http2 {
            upload.discard().await;
        }
    }

    /// Discards the rest of a body that the server did not read to its end. The rest of a body
    /// without a known length may take long, so nothing waits for it.
    pub(crate) async fn discard_rest(&self) {
        let upload = self.upload.as_ref().filter(|_| !self.is_http2 && !self.expects_continue);
        if let Some(upload) = upload.filter(|upload| upload.has_unread_of_known_length()) {
            upload.discard().await;
        }
    }

    /// Whether the end of the response waits for the end of the upload: a client of HTTP/2 (curl
    /// 7.88) may lose a response whose stream ends while it is still sending.
    pub(crate) fn awaits_upload(&self) -> bool {
        let upload = self.upload.as_ref().filter(|_| self.is_http2 && !self.expects_continue);
        upload.is_some_and(RequestUpload::is_awaited)
    }

    /// Ready when the upload has ended.
    pub(crate) fn poll_upload_end(&self, context: &mut Context<'_>) -> Poll<()> {
        self.record_body_progress(); // the wait has its own limit, so `body_timeout` is suspended
        self.upload.as_ref().map_or(Poll::Ready(()), |upload| upload.poll_end(context))
    }

    /// Records that a piece of a body went from or to the client.
    pub(crate) fn record_body_progress(&self) {
        self.http.glitches.record_piece();
        self.http.open.state.record_body_progress();
    }

    /// Suspends `body_timeout` while the request waits for the upstream.
    pub(crate) fn wait_for_upstream(&self) -> UpstreamWait {
        self.http.open.state.wait_for_upstream()
    }

    /// Observes the duration of the request, once.
    pub(crate) fn observe_duration(&self) {
        if !self.is_observed.replace(true) {
            let seconds = self.began.elapsed().as_secs_f64();
            self.http.metrics.request_duration.observe(seconds);
        }
    }

    /// Records that the request becomes a tunnel: its response is complete.
    pub(crate) fn become_tunnel(&mut self, status: StatusCode) {
        self.observe_duration();
        self.is_tunnel = true;
        self.http.open.state.change_tunnels(|tunnels| tunnels.saturating_add(1));
        if let Some(record) = &self.record {
            record.set_status(status.as_u16());
        }
    }

    /// Ends the request. Its record is kept, to be written when its tunnel ends.
    pub(crate) fn into_record(mut self) -> Option<Box<RequestRecord>> {
        self.record.take()
    }
}

impl Drop for RequestInFlight {
    fn drop(&mut self) {
        self.observe_duration();
        if self.holds_window {
            self.http.uploads.borrow_mut().end();
        }
        if let Some(upload) = &self.upload {
            // Over HTTP/1.1 the next request follows the body, so the rest must be read. A stream
            // of HTTP/2 is reset, because some clients wait for its end.
            if self.is_http2 {
                upload.abandon();
            } else if upload.is_unfinished() {
                self.http.left_unread.set(true);
            }
        }
        if self.is_tunnel {
            self.http.open.state.change_tunnels(|tunnels| tunnels.saturating_sub(1));
        }
        self.http.open.end_request();
    }
}

fn request_line(parts: &Parts, request_id: Option<&HeaderValue>) -> RequestLine {
    let protocol = match parts.version {
        Version::HTTP_2 => "HTTP/2",
        Version::HTTP_10 => "HTTP/1.0",
        _ => "HTTP/1.1",
    };
    let field = parts.headers.get(header::HOST).and_then(|host| host.to_str().ok());
    let host = parts.uri.authority().map(Authority::as_str).or(field);
    let target = parts.uri.path_and_query().map_or("*", PathAndQuery::as_str);
    let mut line = RequestLine::new(&parts.method, host, target, protocol);
    if let Some(id) = request_id.and_then(|id| id.to_str().ok()) {
        line.set_request_id(id);
    }
    line.set_client(parts.headers.get(header::USER_AGENT), parts.headers.get(header::REFERER));
    line
}

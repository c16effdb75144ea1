//! A response body on its way to the client: read from the upstream only when the client takes it.

use std::cell::{Cell, OnceCell};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use bytes::Bytes;
use hyper::body::{Body, Frame, SizeHint};
use hyper::header;
use hyper::http::request::Parts;
use hyper::http::uri::{Authority, PathAndQuery};
use hyper::{StatusCode, Version};
use tokio::time::{Sleep, sleep};

use super::session::Session;
use crate::proxy::access_log::{Asked, Record};
use crate::proxy::activity::Activity;
use crate::proxy::headers;
use crate::proxy::incoming::{HttpError, Incoming};
use crate::proxy::request_id;
use crate::proxy::stall::Stall;
use crate::proxy::upstream::{DISCARDED_WITHIN, Lease, Progress, RequestBody};

/// A response body on its way to the client, and the end of its request.
pub(super) struct ResponseBody {
    content: Content,
    /// `None`: it goes on when the response has ended.
    request: Option<RequestInFlight>,
    /// Until then its end waits for that of the request.
    held_until: Option<Pin<Box<Sleep>>>,
}

enum Content {
    /// An answer of keygate's own.
    Own(Option<Bytes>),
    Upstream(Streamed),
}

struct Streamed {
    incoming: Incoming,
    lease: Option<Lease>,
    /// Its end was read; a chunked body does not know before.
    has_ended: bool,
    stall: Stall,
    waiting: Option<WaitingForUpstream>,
    /// They wait for the end of the request.
    trailers: Option<Box<Frame<Bytes>>>,
}

/// Why a body ends before its end. The client is told by the end of its connection or stream.
#[derive(Debug, thiserror::Error)]
pub(super) enum BodyError {
    #[error("the upstream ended its response: {0}")]
    Broken(#[source] HttpError),
    #[error("nothing more of the response came in time")]
    Stalled,
}

impl ResponseBody {
    pub(super) fn note_status(&self, status: u16) {
        if let Some(record) = self.record() {
            record.status.set(Some(status));
        }
    }

    fn record(&self) -> Option<&Record> {
        self.request.as_ref().and_then(RequestInFlight::record)
    }

    /// Ready once the answer may end. A client of HTTP/2 that is still sending when both sides of
    /// its stream end may lose the answer (curl 7.88 does): what is sure to come is awaited.
    fn poll_held(&mut self, context: &mut Context<'_>) -> Poll<()> {
        let Some(request) = self.request.as_ref().filter(|request| request.owes_rest()) else {
            return Poll::Ready(());
        };
        if request.poll_rest(context).is_ready() {
            return Poll::Ready(());
        }
        let until = self.held_until.get_or_insert_with(|| Box::pin(sleep(DISCARDED_WITHIN)));
        until.as_mut().poll(context)
    }

    /// Whether its end waits for that of the request.
    fn is_held(&self) -> bool {
        self.request.as_ref().is_some_and(RequestInFlight::owes_rest)
    }

    pub(super) fn own(text: Bytes, request: RequestInFlight) -> Self {
        Self { content: Content::Own(Some(text)), request: Some(request), held_until: None }
    }

    /// Whether it is an answer of keygate's own.
    pub(super) fn is_own(&self) -> bool {
        matches!(self.content, Content::Own(_))
    }

    /// Nothing, of a request that goes on as a stream of bytes.
    pub(super) fn nothing() -> Self {
        Self { content: Content::Own(None), request: None, held_until: None }
    }

    /// The lease ends with the body; the connection is kept only if it was read to its end. An
    /// upstream that sends nothing for `patience`, or goes on after `end`, has stalled.
    pub(super) fn upstream(
        incoming: Incoming,
        lease: Lease,
        request: RequestInFlight,
        patience: Duration,
        end: Option<Instant>,
    ) -> Self {
        let stall = Stall::new(patience).until(end);
        let lease = Some(lease);
        let streamed =
            Streamed { incoming, lease, has_ended: false, stall, waiting: None, trailers: None };
        Self { content: Content::Upstream(streamed), request: Some(request), held_until: None }
    }
}

impl Streamed {
    fn poll_frame(
        &mut self,
        context: &mut Context<'_>,
        request: Option<&RequestInFlight>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        if self.has_ended {
            return Poll::Ready(None);
        }
        let Poll::Ready(mut frame) = Pin::new(&mut self.incoming).poll_frame(context) else {
            if self.waiting.is_none() {
                self.waiting = request.map(RequestInFlight::wait_for_upstream);
            }
            return self.stall.poll(context).map(|()| Some(Err(BodyError::Stalled)));
        };
        self.waiting = None;
        self.stall.moved();
        // Trailers are the last of it.
        self.has_ended =
            frame.as_ref().is_none_or(|frame| matches!(frame, Ok(frame) if frame.is_trailers()));
        match request {
            Some(request) if self.has_ended => request.observe(),
            Some(request) => request.session.standing.activity.body_moved(),
            None => {}
        }
        if self.has_ended || self.incoming.is_end_stream() {
            self.end_lease(); // whatever the client still has to take
        }
        if let Some(Ok(frame)) = &mut frame
            && let Some(trailers) = frame.trailers_mut()
        {
            headers::remove_hop_by_hop(trailers);
        }
        let record = request.and_then(RequestInFlight::record);
        if let (Some(record), Some(Ok(frame))) = (record, &frame) {
            let bytes = frame.data_ref().map_or(0, Bytes::len) as u64;
            record.response_bytes.set(record.response_bytes.get().saturating_add(bytes));
        }
        Poll::Ready(frame.map(|frame| frame.map_err(BodyError::Broken)))
    }

    fn end_lease(&mut self) {
        if let Some(lease) = self.lease.take() {
            lease.finish();
        }
    }
}

impl Body for ResponseBody {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let this = &mut *self;
        match &mut this.content {
            Content::Own(text) => {
                if let Some(text) = text.take().filter(|text| !text.is_empty()) {
                    return Poll::Ready(Some(Ok(Frame::data(text))));
                }
            }
            Content::Upstream(streamed) => {
                let request = this.request.as_ref();
                let frame = ready!(streamed.poll_frame(context, request));
                if !streamed.has_ended {
                    return Poll::Ready(frame);
                }
                if let Some(Ok(trailers)) = frame {
                    streamed.trailers = Some(Box::new(trailers));
                }
            }
        }
        ready!(this.poll_held(context));
        Poll::Ready(match &mut this.content {
            Content::Own(_) => None,
            Content::Upstream(streamed) => streamed.trailers.take().map(|trailers| Ok(*trailers)),
        })
    }

    fn is_end_stream(&self) -> bool {
        let has_ended = match &self.content {
            Content::Own(text) => text.as_ref().is_none_or(Bytes::is_empty),
            Content::Upstream(streamed) => streamed.incoming.is_end_stream(),
        };
        has_ended && !self.is_held()
    }

    fn size_hint(&self) -> SizeHint {
        match &self.content {
            Content::Own(text) => SizeHint::with_exact(text.as_ref().map_or(0, Bytes::len) as u64),
            // Otherwise it would be said to be the length of an answer that has none of its own.
            Content::Upstream(_) if self.is_held() => SizeHint::default(),
            Content::Upstream(streamed) => streamed.incoming.size_hint(),
        }
    }
}

impl Drop for ResponseBody {
    fn drop(&mut self) {
        let is_complete = match &mut self.content {
            Content::Own(_) => true,
            Content::Upstream(streamed) => {
                let has_ended = streamed.has_ended || streamed.incoming.is_end_stream();
                if has_ended {
                    streamed.end_lease();
                }
                has_ended
            }
        };
        if let Some(record) = self.record() {
            record.is_complete.set(is_complete);
        }
    }
}

fn asked(parts: &Parts) -> Asked {
    let protocol = if parts.version == Version::HTTP_2 { "HTTP/2" } else { "HTTP/1.1" };
    let field = parts.headers.get(header::HOST).and_then(|host| host.to_str().ok());
    let host = parts.uri.authority().map(Authority::as_str).or(field);
    let target = parts.uri.path_and_query().map_or("*", PathAndQuery::as_str);
    let mut asked = Asked::of_request(&parts.method, host, target, protocol);
    if let Some(id) = request_id::of(&parts.headers) {
        asked.set_request_id(id);
    }
    asked
}

/// A request from its head to the end of its response, however it ends.
pub(in crate::proxy) struct RequestInFlight {
    session: Rc<Session>,
    began: Instant,
    /// The same, until the time that it took is known.
    unobserved: Cell<Option<Instant>>,
    /// A body that nobody will read, kept until the answer is out.
    unread: Option<Incoming>,
    /// The body that was read, which has what is left of it.
    read: OnceCell<Progress>,
    record: Option<Box<Record>>,
    pub(super) is_http2: bool,
    /// Whether the client asks before it sends a body.
    pub(super) asks_first: bool,
}

/// As long as this lives, a request waits for the upstream and not for its client.
pub(super) struct WaitingForUpstream(Rc<Activity>);

impl Drop for WaitingForUpstream {
    fn drop(&mut self) {
        self.0.upstream_owes(false);
    }
}

impl RequestInFlight {
    pub(super) fn begin(session: Rc<Session>, parts: &Parts) -> Self {
        let began = Instant::now();
        session.standing.activity.request_began(began);
        let mut record = session.worker.access_log.begin(&session.standing);
        if let Some(record) = &mut record {
            record.asked = asked(parts);
        }
        let asks_first = parts.headers.contains_key(header::EXPECT);
        Self {
            session,
            began,
            unobserved: Cell::new(Some(began)),
            unread: None,
            read: OnceCell::new(),
            record,
            is_http2: parts.version == Version::HTTP_2,
            asks_first,
        }
    }

    pub(super) fn began(&self) -> Instant {
        self.began
    }

    pub(super) fn record(&self) -> Option<&Record> {
        self.record.as_deref()
    }

    /// Follows the request's body on its way.
    pub(super) fn following(&self, body: &RequestBody) {
        let _ = self.read.set(body.progress()); // there is one body
        if let Some(record) = &self.record {
            record.request_body.replace(Some(body.progress()));
        }
    }

    /// What the server did not take of the body.
    pub(super) fn take_rest(&self) -> Option<Incoming> {
        self.read.get().and_then(Progress::take_rest)
    }

    /// Whether its client is sure to send more of it.
    fn owes_rest(&self) -> bool {
        self.is_http2 && !self.asks_first && self.read.get().is_some_and(Progress::owes_rest)
    }

    fn poll_rest(&self, context: &mut Context<'_>) -> Poll<()> {
        self.session.standing.activity.body_moved(); // it has two seconds, and what moves is the client's
        self.read.get().map_or(Poll::Ready(()), |body| body.poll_rest(context))
    }

    /// The request goes on as a stream of bytes: it has had its answer.
    pub(super) fn leaving(self) -> Self {
        self.observe();
        if let Some(record) = &self.record {
            record.status.set(Some(StatusCode::SWITCHING_PROTOCOLS.as_u16()));
        }
        self
    }

    fn observe(&self) {
        if let Some(began) = self.unobserved.take() {
            let seconds = began.elapsed().as_secs_f64();
            self.session.metrics.request_duration.observe(seconds);
        }
    }

    /// Has the end of the answer wait for a body that nobody wants.
    pub(super) fn owing(self, unwanted: Incoming) -> Self {
        let _ = self.read.set(Progress::unwanted(unwanted, self.began)); // nobody else has it
        self
    }

    /// Keeps the request's body until the answer is out.
    pub(super) fn keeping(mut self, unread: Incoming) -> Self {
        self.unread = Some(unread);
        self
    }

    pub(super) fn wait_for_upstream(&self) -> WaitingForUpstream {
        let activity = Rc::clone(&self.session.standing.activity);
        activity.upstream_owes(true);
        WaitingForUpstream(activity)
    }
}

impl Drop for RequestInFlight {
    fn drop(&mut self) {
        self.observe();
        // In HTTP/1.1 the rest of the request is read to its end, for the next one is behind it. A
        // stream has nothing behind it, and some clients wait for its end.
        let read = self.read.get();
        if self.is_http2 {
            read.inspect(|body| body.has_answer());
        } else {
            let is_left = self.unread.as_ref().is_some_and(|body| !body.is_end_stream())
                || read.is_some_and(Progress::is_unfinished);
            self.session.left_unread.set(self.session.left_unread.get() || is_left);
        }
        self.session.standing.request_ended();
    }
}

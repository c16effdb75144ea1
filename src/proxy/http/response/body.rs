//! Response bodies: the upstream's, read as the client reads, or a text of keygate.

use std::future::poll_fn;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use bytes::Bytes;
use hyper::body::{Body, Frame, SizeHint};
use keygate_core::regular_file::without_numbers;
use keygate_wire::fields;
use keygate_wire::idle_timeout::IdleTimeout;
use keygate_wire::incoming::{HttpError, Incoming};
use keygate_wire::lingering_close::LINGER_TIME;
use keygate_wire::permit::BufferClass;
use keygate_wire::permit::ledger::Held;
use tokio::time::{Sleep, sleep};

use super::RequestInFlight;
use crate::proxy::http::in_flight::HttpConnection;
use crate::proxy::message::body::RequestUpload;
use crate::proxy::open_connection::state::UpstreamWait;
use crate::proxy::upstream::server::Lease;
use crate::proxy::worker::record::Record;

/// The bounds of an upstream's response body.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ResponseLimits {
    /// Maximum time between two pieces.
    pub(crate) idle_timeout: Duration,
    /// The end of `request_timeout`.
    pub(crate) deadline: Option<Instant>,
}

/// A response body on its way to the client, read from the upstream as the client reads it. The
/// request ends with its response.
pub(crate) struct ResponseBody {
    content: BodySource,
    /// `None` for a request that has become a tunnel.
    request: Option<RequestInFlight>,
    /// The wait for the upload. It ends [`LINGER_TIME`] after its start, or after the server has
    /// last read a piece of the upload.
    upload_wait: Option<Pin<Box<Sleep>>>,
}

enum BodySource {
    /// A body that keygate makes itself.
    Own(Option<Bytes>),
    /// Boxed, because a response is handed on often.
    Upstream(Box<StreamedResponse>),
}

struct StreamedResponse {
    incoming: Incoming,
    /// Whether a piece was read. The first one needs no share in addition to its request's.
    has_begun: bool,
    /// The wait for a share of the memory.
    share_wait: Option<Held>,
    /// Returned when the body has ended: the upstream connection can be reused.
    lease: Option<Lease>,
    /// Whether the end was read, which a chunked body does not know earlier.
    has_ended: bool,
    idle_timeout: IdleTimeout,
    /// The end of `request_timeout`.
    deadline: Option<Instant>,
    wait: Option<UpstreamWait>,
    /// Whether the last piece waits for the end of the upload. curl 7.88 hangs if it has all content
    /// of a 2xx response before its upload ends. At an error status it stops the upload, and needs
    /// the content.
    holds_last_piece: bool,
    /// The last piece, or the trailers, which wait for the end of the upload.
    held: Option<Box<Frame<Bytes>>>,
}

/// An upstream response that ended early. The client's connection or stream is then aborted.
#[derive(Debug, thiserror::Error)]
pub(crate) enum BodyError {
    #[error("the client holds its share of the memory for too long")]
    OverShare,
    #[error("the upstream broke off its response: {}", without_numbers(&.0.to_string()))]
    Broken(#[source] HttpError),
    #[error("the upstream sent nothing of its response for too long")]
    Stalled,
}

impl ResponseBody {
    fn new(content: BodySource, request: Option<RequestInFlight>) -> Self {
        Self { content, request, upload_wait: None }
    }

    pub(super) fn own(text: Bytes, request: RequestInFlight) -> Self {
        Self::new(BodySource::Own(Some(text)), Some(request))
    }

    pub(super) fn empty() -> Self {
        Self::new(BodySource::Own(None), None)
    }

    /// The body of an upstream's response. The last piece waits for the end of the upload if
    /// `holds_last_piece`.
    pub(super) fn upstream(
        incoming: Incoming,
        lease: Lease,
        limits: ResponseLimits,
        holds_last_piece: bool,
        request: RequestInFlight,
    ) -> Self {
        request.begin_response();
        let streamed = StreamedResponse::new(incoming, lease, limits, holds_last_piece);
        Self::new(BodySource::Upstream(Box::new(streamed)), Some(request))
    }

    /// Whether keygate made the response itself.
    pub(crate) fn is_own(&self) -> bool {
        matches!(self.content, BodySource::Own(_))
    }

    /// Sets the status in the access log.
    pub(crate) fn record_status(&self, status: u16) {
        if let Some(record) = self.record() {
            record.set_status(status);
        }
    }

    fn record(&self) -> Option<&Record> {
        self.request.as_ref().and_then(RequestInFlight::record)
    }

    fn awaits_upload(&self) -> bool {
        self.request.as_ref().is_some_and(RequestInFlight::awaits_upload)
    }

    /// Ready when the response may end.
    fn poll_upload_end(&mut self, context: &mut Context<'_>) -> Poll<()> {
        let Some(request) = self.request.as_ref().filter(|request| request.awaits_upload()) else {
            return Poll::Ready(());
        };
        if request.poll_upload_end(context).is_ready() {
            return Poll::Ready(());
        }
        let request_deadline = match &self.content {
            BodySource::Own(_) => None,
            BodySource::Upstream(streamed) => streamed.deadline,
        };
        let wait = self.upload_wait.get_or_insert_with(|| Box::pin(sleep(LINGER_TIME)));
        loop {
            ready!(wait.as_mut().poll(context));
            // The server may still read the upload.
            let progress = request.upload().map(RequestUpload::last_progress);
            let until = progress.map(|progress| progress + LINGER_TIME);
            let until = until.map(|until| request_deadline.map_or(until, |end| end.min(until)));
            match until.filter(|until| *until > Instant::now()) {
                Some(until) => wait.as_mut().reset(until.into()),
                None => return Poll::Ready(()),
            }
        }
    }
}

impl StreamedResponse {
    fn new(
        incoming: Incoming,
        lease: Lease,
        limits: ResponseLimits,
        holds_last_piece: bool,
    ) -> Self {
        Self {
            incoming,
            has_begun: false,
            share_wait: None,
            lease: Some(lease),
            has_ended: false,
            idle_timeout: IdleTimeout::new(limits.idle_timeout).with_deadline(limits.deadline),
            deadline: limits.deadline,
            wait: None,
            holds_last_piece,
            held: None,
        }
    }

    /// Whether `frame` waits for the end of the upload: trailers, or the last piece.
    fn is_last(&self, frame: &Frame<Bytes>) -> bool {
        let is_read = self.incoming.is_end_stream() || self.incoming.size_hint().exact() == Some(0);
        frame.is_trailers() || (self.holds_last_piece && is_read)
    }

    fn poll_frame(
        &mut self,
        context: &mut Context<'_>,
        request: Option<&RequestInFlight>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        if self.has_ended {
            return Poll::Ready(None);
        }
        if let Some(request) = request.filter(|_| self.has_begun) {
            let has_waited = ready!(self.poll_share(context, request.http()));
            if let Err(error) = has_waited {
                return Poll::Ready(Some(Err(error)));
            }
        }
        let Poll::Ready(frame) = Pin::new(&mut self.incoming).poll_frame(context) else {
            if self.wait.is_none() {
                self.wait = request.map(RequestInFlight::wait_for_upstream);
            }
            ready!(self.idle_timeout.poll(context));
            if let Some(lease) = self.lease.take() {
                lease.record_incomplete_response();
            }
            if let Some(record) = request.and_then(RequestInFlight::record) {
                record.record_broken_response(&BodyError::Stalled);
            }
            return Poll::Ready(Some(Err(BodyError::Stalled)));
        };
        self.wait = None;
        self.idle_timeout.reset();
        // Nothing follows trailers.
        self.has_ended =
            frame.as_ref().is_none_or(|frame| matches!(frame, Ok(frame) if frame.is_trailers()));
        match request {
            Some(request) if self.has_ended => request.observe_duration(),
            Some(request) => request.record_body_progress(),
            None => {}
        }
        let mut frame = frame.map(|frame| frame.map_err(BodyError::Broken));
        if let Some(Err(error)) = &frame {
            self.record_broken_response(error, request);
        } else if self.has_ended || self.incoming.is_end_stream() {
            self.return_lease(); // the client may still be reading
        }
        if let Some(Ok(frame)) = &mut frame {
            if let Some(trailers) = frame.trailers_mut() {
                fields::remove_forbidden_trailers(trailers);
            }
            if let Some(record) = request.and_then(RequestInFlight::record) {
                record.add_response_bytes(frame.data_ref().map_or(0, Bytes::len));
            }
            if let Some(request) = request
                && let Some(data) = frame.data_mut()
            {
                self.has_begun |= !data.is_empty();
                *data = request.hold(std::mem::take(data));
            }
        }
        Poll::Ready(frame)
    }

    /// Waits until the client has a share for another piece. The upstream is not read before.
    fn poll_share(
        &mut self,
        context: &mut Context<'_>,
        http: &HttpConnection,
    ) -> Poll<Result<(), BodyError>> {
        let holder = http.holder(BufferClass::Response);
        if self.share_wait.is_none() {
            if holder.has_share() {
                return Poll::Ready(Ok(()));
            }
            http.log_over_share(BufferClass::Response);
        }
        let wait = self.share_wait.get_or_insert_with(|| Held::new(holder));
        if wait.poll_share(context).is_ready() {
            self.share_wait = None;
            self.idle_timeout.reset(); // the upstream was not read
            return Poll::Ready(Ok(()));
        }
        ready!(self.idle_timeout.poll(context));
        Poll::Ready(Err(BodyError::OverShare))
    }

    /// Records a response that broke off, unless the client broke off its request before.
    fn record_broken_response(&mut self, error: &BodyError, request: Option<&RequestInFlight>) {
        let lease = self.lease.take();
        let fault = request.and_then(RequestInFlight::upload).and_then(RequestUpload::fault);
        if fault.is_some() {
            return;
        }
        if let Some(lease) = lease {
            lease.record_broken_response();
        }
        if let Some(record) = request.and_then(RequestInFlight::record) {
            record.record_broken_response(error);
        }
    }

    /// Ends a response that is read no further. Returns whether it was read to its end.
    ///
    /// hyper reads no further than `Content-Length`, and the server may end its stream by one more
    /// frame, as Node does. This frame is awaited, because servers limit the resets of a client:
    /// nghttp2 ends a connection after 1,000 of them, and more than 33 a second (`INTERNAL_ERROR`).
    fn close(mut self: Box<Self>) -> bool {
        let is_read = self.held.is_none();
        if self.has_ended || self.incoming.is_end_stream() {
            self.return_lease();
            return is_read;
        }
        if self.incoming.size_hint().exact() != Some(0) {
            return false;
        }
        self.incoming.end_upload();
        self.idle_timeout.reset();
        tokio::task::spawn_local(async move {
            if self.has_clean_end().await {
                self.return_lease();
            }
        });
        is_read
    }

    /// Waits for the end of the stream, for the timeout of the body at most. A client that is gone
    /// may cause another end, so that none is a failure of the server.
    async fn has_clean_end(&mut self) -> bool {
        poll_fn(|context| {
            loop {
                match Pin::new(&mut self.incoming).poll_frame(context) {
                    Poll::Ready(Some(Ok(_))) => {}
                    Poll::Ready(end) => return Poll::Ready(end.is_none()),
                    Poll::Pending => {
                        ready!(self.idle_timeout.poll(context));
                        return Poll::Ready(false);
                    }
                }
            }
        })
        .await
    }

    fn return_lease(&mut self) {
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
            BodySource::Own(text) => {
                if let Some(text) = text.take().filter(|text| !text.is_empty()) {
                    if let Some(record) = this.request.as_ref().and_then(RequestInFlight::record) {
                        record.add_response_bytes(text.len());
                    }
                    return Poll::Ready(Some(Ok(Frame::data(text))));
                }
            }
            BodySource::Upstream(streamed) if streamed.held.is_none() => {
                let request = this.request.as_ref();
                let frame = ready!(streamed.poll_frame(context, request));
                let awaits_upload = || request.is_some_and(RequestInFlight::awaits_upload);
                match frame {
                    Some(Ok(frame)) if streamed.is_last(&frame) && awaits_upload() => {
                        request.inspect(|request| request.observe_duration());
                        streamed.held = Some(Box::new(frame));
                    }
                    None => {}
                    frame => return Poll::Ready(frame),
                }
            }
            BodySource::Upstream(_) => {}
        }
        ready!(this.poll_upload_end(context));
        Poll::Ready(match &mut this.content {
            BodySource::Own(_) => None,
            BodySource::Upstream(streamed) => streamed.held.take().map(|frame| Ok(*frame)),
        })
    }

    fn is_end_stream(&self) -> bool {
        let has_ended = match &self.content {
            BodySource::Own(text) => text.as_ref().is_none_or(Bytes::is_empty),
            BodySource::Upstream(streamed) => {
                streamed.incoming.is_end_stream() && streamed.held.is_none()
            }
        };
        has_ended && !self.awaits_upload()
    }

    fn size_hint(&self) -> SizeHint {
        match &self.content {
            BodySource::Own(text) => {
                SizeHint::with_exact(text.as_ref().map_or(0, Bytes::len) as u64)
            }
            // The length of an empty rest would become the Content-Length of the response.
            BodySource::Upstream(_) if self.awaits_upload() => SizeHint::default(),
            BodySource::Upstream(streamed) => streamed.incoming.size_hint(),
        }
    }
}

impl Drop for ResponseBody {
    fn drop(&mut self) {
        let is_complete = match std::mem::replace(&mut self.content, BodySource::Own(None)) {
            BodySource::Own(_) => true,
            BodySource::Upstream(streamed) => streamed.close(),
        };
        if let Some(record) = self.record() {
            record.set_complete(is_complete);
        }
    }
}

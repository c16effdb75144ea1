//! Responses: the upstream's, or one that keygate makes itself; their heads and their bodies.

use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use bytes::Bytes;
use hyper::body::{Body, Frame, SizeHint};
use hyper::header::{self, HeaderName, HeaderValue};
use hyper::http::request::Parts;
use hyper::{Response, StatusCode, Version};
use tokio::time::{Sleep, sleep};

use super::in_flight::RequestInFlight;
use crate::lingering_close::LINGER_TIME;
use crate::proxy::message::body::RequestUpload;
use crate::proxy::message::headers;
use crate::proxy::message::idle_timeout::IdleTimeout;
use crate::proxy::message::incoming::{HttpError, Incoming};
use crate::proxy::message::upload::ClientFault;
use crate::proxy::open_connection::RequestRejection;
use crate::proxy::open_connection::state::UpstreamWait;
use crate::proxy::upstream::UpstreamResponse;
use crate::proxy::upstream::error::UpstreamError;
use crate::proxy::upstream::server::Lease;
use crate::proxy::worker::record::Record;
use crate::regular_file::without_numbers;

/// The status for a request that got no response from the upstream.
pub(crate) fn status_of(error: &UpstreamError) -> StatusCode {
    match error {
        UpstreamError::ChangedProtocol
        | UpstreamError::EndedUnused
        | UpstreamError::Http2ResponseHead
        | UpstreamError::Protocol(_)
        | UpstreamError::ResponseHead
        | UpstreamError::UnexpectedUpgrade
        | UpstreamError::UpgradeRefused => StatusCode::BAD_GATEWAY,
        UpstreamError::Client(ClientFault::Broken) | UpstreamError::Host => StatusCode::BAD_REQUEST,
        UpstreamError::Client(ClientFault::Stalled) => StatusCode::REQUEST_TIMEOUT,
        UpstreamError::Client(ClientFault::TooLarge) => StatusCode::PAYLOAD_TOO_LARGE,
        UpstreamError::Dial(error) if error.is_shortage() => StatusCode::SERVICE_UNAVAILABLE,
        UpstreamError::Dial(error) if error.is_timeout() => StatusCode::GATEWAY_TIMEOUT,
        UpstreamError::Dial(_) => StatusCode::BAD_GATEWAY,
        UpstreamError::NoExtendedConnect => StatusCode::NOT_IMPLEMENTED,
        UpstreamError::ClientShare
        | UpstreamError::ConnectionLimit
        | UpstreamError::NoHealthyServer => StatusCode::SERVICE_UNAVAILABLE,
        UpstreamError::ResponseTimeout(_) => StatusCode::GATEWAY_TIMEOUT,
    }
}

/// A response with the status in words as its body.
pub(crate) fn plain(status: StatusCode, in_flight: RequestInFlight) -> Response<ResponseBody> {
    let text = format!("{} {}\n", status.as_u16(), status.canonical_reason().unwrap_or_default());
    let mut response = own(status, "text/plain; charset=utf-8", text, in_flight);
    if [StatusCode::TOO_MANY_REQUESTS, StatusCode::SERVICE_UNAVAILABLE].contains(&status) {
        response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
    }
    response
}

/// Whether a response of keygate over HTTP/1.1 ends its connection. The bytes behind a malformed
/// request, or behind CONNECT, may be no request.
pub(crate) fn ends_connection(response: &Response<ResponseBody>) -> bool {
    response.body().is_own()
        && [StatusCode::BAD_REQUEST, StatusCode::METHOD_NOT_ALLOWED].contains(&response.status())
}

/// The response to a client that may send no more requests: JSON if it accepts JSON, else text.
pub(crate) fn rejection(
    parts: &Parts,
    rejection: RequestRejection,
    in_flight: RequestInFlight,
) -> Response<ResponseBody> {
    let RequestRejection { status, reason } = rejection;
    if let Some(record) = in_flight.record() {
        record.set_error(&reason);
    }
    let (code, words) = (status.as_u16(), status.canonical_reason().unwrap_or_default());
    let accept = parts.headers.get(header::ACCEPT).and_then(|accept| accept.to_str().ok());
    let (content_type, text) = if accept.is_some_and(|accept| accept.contains("application/json")) {
        ("application/json", format!("{{\"status\":{code},\"error\":\"{reason}\"}}\n"))
    } else {
        ("text/plain; charset=utf-8", format!("{code} {words}: {reason}\n"))
    };
    let mut response = own(status, content_type, text, in_flight);
    if parts.version < Version::HTTP_2 {
        response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
    }
    response
}

fn own(
    status: StatusCode,
    content_type: &'static str,
    text: String,
    in_flight: RequestInFlight,
) -> Response<ResponseBody> {
    let mut response = Response::new(ResponseBody::own(Bytes::from(text), in_flight));
    *response.status_mut() = status;
    let content_type = HeaderValue::from_static(content_type);
    response.headers_mut().insert(header::CONTENT_TYPE, content_type);
    response
}

/// The upstream's response without its hop-by-hop fields.
pub(crate) fn from_upstream(
    response: UpstreamResponse,
    limits: ResponseLimits,
    in_flight: RequestInFlight,
) -> Response<ResponseBody> {
    let UpstreamResponse { response, lease } = response;
    let holds_last_piece = response.status().is_success();
    without_hop_by_hop(response.map(|incoming| {
        let streamed = StreamedResponse::new(incoming, lease, limits, holds_last_piece);
        ResponseBody::new(BodySource::Upstream(Box::new(streamed)), Some(in_flight))
    }))
}

fn without_hop_by_hop(mut response: Response<ResponseBody>) -> Response<ResponseBody> {
    let status = response.status();
    let is_lengthless = status.is_informational() || status == StatusCode::NO_CONTENT;
    // RFC 9110, section 8.6, and RFC 9112, section 6.3
    if is_lengthless || response.headers().contains_key(header::TRANSFER_ENCODING) {
        response.headers_mut().remove(header::CONTENT_LENGTH);
    }
    headers::remove_hop_by_hop(response.headers_mut());
    *response.version_mut() = Version::HTTP_11;
    response
}

/// The response to an extended CONNECT that the upstream has accepted.
pub(crate) fn connected<B>(response: Response<B>) -> Response<ResponseBody> {
    let mut response = without_hop_by_hop(response.map(|_| ResponseBody::empty()));
    for name in [header::CONTENT_LENGTH, header::SEC_WEBSOCKET_ACCEPT] {
        response.headers_mut().remove(name);
    }
    *response.status_mut() = StatusCode::OK;
    response
}

/// The response to an `Upgrade` that the upstream has accepted.
pub(crate) fn switching<B>(response: Response<B>) -> Response<ResponseBody> {
    let mut response = response.map(|_| ResponseBody::empty());
    let protocol = response.headers_mut().remove(header::UPGRADE);
    response = without_hop_by_hop(response);
    let connection: HeaderName = header::CONNECTION;
    response.headers_mut().insert(connection, HeaderValue::from_static("upgrade"));
    if let Some(protocol) = protocol {
        response.headers_mut().insert(header::UPGRADE, protocol);
    }
    response
}

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
    /// Returned when the body has ended: the upstream connection can be reused.
    lease: Option<Lease>,
    /// Whether the end was read, which a chunked body does not know earlier.
    has_ended: bool,
    idle_timeout: IdleTimeout,
    /// The end of `request_timeout`.
    deadline: Option<Instant>,
    wait: Option<UpstreamWait>,
    /// Whether the last piece waits for the end of the upload. curl 7.88 stops its upload, and
    /// hangs, when all content of a response of known length has arrived. It stops its upload also
    /// at a status of an error, and needs the content then.
    holds_last_piece: bool,
    /// The last piece, or the trailers, which wait for the end of the upload.
    held: Option<Box<Frame<Bytes>>>,
}

/// An upstream response that ended early. The client's connection or stream is then aborted.
#[derive(Debug, thiserror::Error)]
pub(crate) enum BodyError {
    #[error("the upstream broke off its response: {}", without_numbers(&.0.to_string()))]
    Broken(#[source] HttpError),
    #[error("the upstream sent nothing of its response for too long")]
    Stalled,
}

impl ResponseBody {
    fn new(content: BodySource, request: Option<RequestInFlight>) -> Self {
        Self { content, request, upload_wait: None }
    }

    fn own(text: Bytes, request: RequestInFlight) -> Self {
        Self::new(BodySource::Own(Some(text)), Some(request))
    }

    fn empty() -> Self {
        Self::new(BodySource::Own(None), None)
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
                headers::remove_hop_by_hop(trailers);
            }
            if let Some(record) = request.and_then(RequestInFlight::record) {
                record.add_response_bytes(frame.data_ref().map_or(0, Bytes::len));
            }
        }
        Poll::Ready(frame)
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
        let is_complete = match &mut self.content {
            BodySource::Own(_) => true,
            BodySource::Upstream(streamed) => {
                let has_ended = streamed.has_ended || streamed.incoming.is_end_stream();
                if has_ended {
                    streamed.return_lease();
                }
                has_ended && streamed.held.is_none()
            }
        };
        if let Some(record) = self.record() {
            record.set_complete(is_complete);
        }
    }
}

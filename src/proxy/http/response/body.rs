//! Response bodies: the upstream's, read as the client reads, or a text of keygate.

mod streamed;

use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use bytes::Bytes;
use hyper::body::{Body, Frame, SizeHint};
use keygate_core::regular_file::without_numbers;
use keygate_wire::incoming::{HttpError, Incoming};
use keygate_wire::lingering_close::LINGER_TIME;
use tokio::time::{Sleep, sleep};

use self::streamed::StreamedResponse;
use super::RequestInFlight;
use crate::proxy::message::body::RequestUpload;
use crate::proxy::upstream::server::Lease;
use crate::proxy::worker::record::RequestRecord;

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

    fn record(&self) -> Option<&RequestRecord> {
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

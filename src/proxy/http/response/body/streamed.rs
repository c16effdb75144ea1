//! The body of an upstream's response, read as the client reads.

use std::future::poll_fn;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Instant;

use bytes::Bytes;
use hyper::body::{Body, Frame};
use keygate_wire::fields;
use keygate_wire::idle_timeout::IdleTimeout;
use keygate_wire::incoming::Incoming;
use keygate_wire::permit::BufferClass;
use keygate_wire::permit::ledger::Held;

use super::{BodyError, ResponseLimits};
use crate::proxy::http::in_flight::{HttpConnection, RequestInFlight};
use crate::proxy::message::body::RequestUpload;
use crate::proxy::open_connection::state::UpstreamWait;
use crate::proxy::upstream::server::Lease;

/// The body of an upstream's response, and the share of the server until it has ended.
pub(super) struct StreamedResponse {
    pub(super) incoming: Incoming,
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
    pub(super) deadline: Option<Instant>,
    wait: Option<UpstreamWait>,
    /// Whether the last piece waits for the end of the upload. curl 7.88 hangs if it has all content
    /// of a 2xx response before its upload ends. At an error status it stops the upload, and needs
    /// the content.
    holds_last_piece: bool,
    /// The last piece, or the trailers, which wait for the end of the upload.
    pub(super) held: Option<Box<Frame<Bytes>>>,
}

impl StreamedResponse {
    pub(super) fn new(
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
    pub(super) fn is_last(&self, frame: &Frame<Bytes>) -> bool {
        let is_read = self.incoming.is_end_stream() || self.incoming.size_hint().exact() == Some(0);
        frame.is_trailers() || (self.holds_last_piece && is_read)
    }

    pub(super) fn poll_frame(
        &mut self,
        context: &mut Context<'_>,
        request: Option<&RequestInFlight>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        if self.has_ended {
            return Poll::Ready(None);
        }
        if let Some(request) = request.filter(|_| self.has_begun) {
            let has_waited = ready!(self.poll_share(context, &request.http));
            if let Err(error) = has_waited {
                return Poll::Ready(Some(Err(error)));
            }
        }
        let Poll::Ready(frame) = Pin::new(&mut self.incoming).poll_frame(context) else {
            let stalled = ready!(self.poll_stalled(context, request));
            return Poll::Ready(Some(Err(stalled)));
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
            if let Some(request) = request {
                if let Some(data) = frame.data_mut() {
                    self.has_begun |= !data.is_empty();
                    *data = request.hold(std::mem::take(data));
                } else if let Some(trailers) = frame.trailers_ref() {
                    request.hold_trailers(trailers);
                }
            }
        }
        Poll::Ready(frame)
    }

    /// Waits until the upstream has sent nothing for `idle_timeout`.
    fn poll_stalled(
        &mut self,
        context: &mut Context<'_>,
        request: Option<&RequestInFlight>,
    ) -> Poll<BodyError> {
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
        Poll::Ready(BodyError::Stalled)
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
    pub(super) fn close(mut self: Box<Self>) -> bool {
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

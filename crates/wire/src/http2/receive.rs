//! A body that is received on an HTTP/2 stream.

use std::cell::Cell;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use h2::RecvStream;
use hyper::HeaderMap;
use hyper::body::{Frame, SizeHint};

use crate::fields::content_length;
use crate::http2::send::BackgroundSend;

/// A body that is received. Reading it lets the peer send more, so that unread data takes no more
/// memory than the window of the stream.
#[derive(Debug)]
pub struct ReceivedBody {
    stream: RecvStream,
    /// Bytes still to come, if the length is known.
    remaining: Option<u64>,
    has_data: bool,
    /// The upload of the request whose response this is.
    upload: Option<BackgroundSend>,
    /// Counts the bytes that were read.
    consumed: Option<Rc<Cell<u32>>>,
}

impl ReceivedBody {
    /// The body of a message with these fields.
    pub fn new(stream: RecvStream, headers: &HeaderMap) -> Self {
        let remaining = content_length(headers).ok().flatten();
        Self { stream, remaining, has_data: true, upload: None, consumed: None }
    }

    /// Ties the response to the upload of its request. The upload is aborted if the response is
    /// dropped before its end.
    pub fn with_upload(mut self, upload: Option<BackgroundSend>) -> Self {
        self.upload = upload;
        self
    }

    /// Ends the upload, or what of it outlives the response.
    pub fn end_upload(&mut self) {
        self.upload.take().into_iter().for_each(BackgroundSend::end_with_response);
    }

    /// Counts the bytes that are read, which let the windows of the connection grow.
    pub fn with_consumed(mut self, consumed: &Rc<Cell<u32>>) -> Self {
        self.consumed = Some(Rc::clone(consumed));
        self
    }

    /// Reads the next frame. A stream that is reset is an error for every error code, also
    /// `NO_ERROR` and `CANCEL`: the message must not look complete.
    pub fn poll_frame(
        &mut self,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, h2::Error>>> {
        if self.has_data {
            match ready!(self.stream.poll_data(context)) {
                Some(Ok(data)) => {
                    let length = data.len();
                    self.remaining =
                        self.remaining.map(|bytes| bytes.saturating_sub(length as u64));
                    if let Some(consumed) = &self.consumed {
                        let length = u32::try_from(length).unwrap_or(u32::MAX);
                        consumed.set(consumed.get().saturating_add(length));
                    }
                    // Fails if the connection has ended, which the next read returns.
                    let _ = self.stream.flow_control().release_capacity(length);
                    return Poll::Ready(Some(Ok(Frame::data(data))));
                }
                Some(Err(error)) => return Poll::Ready(Some(Err(error))),
                None => self.has_data = false,
            }
        }
        let trailers = ready!(self.stream.poll_trailers(context)).transpose();
        Poll::Ready(trailers.map(|trailers| trailers.map(Frame::trailers)))
    }

    /// Whether nothing follows.
    pub fn is_end_stream(&self) -> bool {
        self.stream.is_end_stream()
    }

    /// The number of bytes that follow, if it is known.
    pub fn size_hint(&self) -> SizeHint {
        if self.is_end_stream() {
            return SizeHint::with_exact(0);
        }
        self.remaining.map_or_else(SizeHint::default, SizeHint::with_exact)
    }
}

impl Drop for ReceivedBody {
    fn drop(&mut self) {
        if self.is_end_stream() {
            self.end_upload();
        }
    }
}

//! A body that is received on a stream of HTTP/2.

use std::task::{Context, Poll, ready};

use bytes::Bytes;
use h2::RecvStream;
use hyper::HeaderMap;
use hyper::body::{Frame, SizeHint};
use hyper::header::CONTENT_LENGTH;

use super::sending::Upload;

/// A body that is received. The peer may send more as it is read: what is not read takes no more
/// memory than the window of the stream.
#[derive(Debug)]
pub(in crate::proxy) struct Received {
    stream: RecvStream,
    /// How much is still to come, in bytes, if that is known.
    left: Option<u64>,
    has_data: bool,
    /// The body that goes the other way.
    upload: Option<Upload>,
}

impl Received {
    /// The body of a message with these fields.
    pub(in crate::proxy) fn new(stream: RecvStream, headers: &HeaderMap) -> Self {
        Self { stream, left: content_length(headers), has_data: true, upload: None }
    }

    /// The answer to a request whose body is still being sent. That is broken off when the answer is
    /// dropped before its end.
    pub(in crate::proxy) fn along(mut self, upload: Option<Upload>) -> Self {
        self.upload = upload;
        self
    }

    /// A stream that ends in any other way than with the end of its message is an error, whatever
    /// the peer calls it: it must not look complete.
    pub(in crate::proxy) fn poll_frame(
        &mut self,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, h2::Error>>> {
        if self.has_data {
            match ready!(self.stream.poll_data(context)) {
                Some(Ok(data)) => {
                    let length = data.len();
                    self.left = self.left.map(|left| left.saturating_sub(length as u64));
                    // An error is that the connection has ended, which the next read says.
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

    pub(in crate::proxy) fn is_end_stream(&self) -> bool {
        self.stream.is_end_stream()
    }

    pub(in crate::proxy) fn size_hint(&self) -> SizeHint {
        if self.is_end_stream() {
            return SizeHint::with_exact(0);
        }
        self.left.map_or_else(SizeHint::default, SizeHint::with_exact)
    }
}

impl Drop for Received {
    fn drop(&mut self) {
        if self.is_end_stream()
            && let Some(upload) = self.upload.take()
        {
            upload.leave();
        }
    }
}

/// The length that a message states; `None` if it states none, or several.
fn content_length(headers: &HeaderMap) -> Option<u64> {
    let mut values = headers.get_all(CONTENT_LENGTH).iter();
    let length = values.next()?;
    if values.any(|other| other != length) {
        return None;
    }
    length.to_str().ok()?.parse().ok()
}

//! The body of a message that comes in, over whichever version of HTTP.

use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use hyper::body::{Body, Frame, SizeHint};

use super::stream::Received;

/// A body that comes in.
#[derive(Debug)]
pub(super) enum Incoming {
    Empty,
    Http1(hyper::body::Incoming),
    Http2(Received),
}

/// What a peer did to a message, or to its connection.
#[derive(Debug, thiserror::Error)]
pub(super) enum HttpError {
    #[error(transparent)]
    Http1(#[from] hyper::Error),
    #[error(transparent)]
    Http2(#[from] h2::Error),
}

impl HttpError {
    /// Whether a peer has ended the connection: it says nothing of the message itself.
    pub(super) fn is_of_connection(&self) -> bool {
        match self {
            Self::Http1(_) => true,
            Self::Http2(error) => error.is_go_away() || error.is_io(),
        }
    }

    /// Whether a server did not look at a request, on a connection that goes on (RFC 9113, section
    /// 8.7).
    pub(super) fn is_refused(&self) -> bool {
        match self {
            Self::Http1(_) => false,
            Self::Http2(error) => error.reason() == Some(h2::Reason::REFUSED_STREAM),
        }
    }
}

impl Body for Incoming {
    type Data = Bytes;
    type Error = HttpError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, HttpError>>> {
        match &mut *self {
            Self::Empty => Poll::Ready(None),
            Self::Http1(body) => Pin::new(body)
                .poll_frame(context)
                .map(|frame| frame.map(|frame| frame.map_err(HttpError::from))),
            Self::Http2(body) => body
                .poll_frame(context)
                .map(|frame| frame.map(|frame| frame.map_err(HttpError::from))),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Empty => true,
            Self::Http1(body) => body.is_end_stream(),
            Self::Http2(body) => body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Empty => SizeHint::with_exact(0),
            Self::Http1(body) => body.size_hint(),
            Self::Http2(body) => body.size_hint(),
        }
    }
}

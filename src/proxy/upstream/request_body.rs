//! A request body on its way to the upstream: read from the client only when the upstream takes it.

use std::cell::Cell;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};
use std::time::Instant;

use bytes::Bytes;
use hyper::body::{Body, Frame, Incoming, SizeHint};
use hyper::header::HeaderName;

use crate::proxy::headers;

/// A client's request body on its way to the upstream.
pub(in crate::proxy) struct RequestBody {
    incoming: Incoming,
    progress: Progress,
    status_header: Rc<HeaderName>,
}

impl RequestBody {
    pub(in crate::proxy) fn new(incoming: Incoming, status_header: Rc<HeaderName>) -> Self {
        let progress = Progress::new(Instant::now(), !incoming.is_end_stream());
        Self { incoming, progress, status_header }
    }

    /// When the upstream last took a piece.
    pub(super) fn progress(&self) -> Progress {
        self.progress.clone()
    }
}

impl Body for RequestBody {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        let mut frame = ready!(Pin::new(&mut self.incoming).poll_frame(context));
        self.progress.note();
        if let Some(Ok(frame)) = &mut frame
            && let Some(trailers) = frame.trailers_mut()
        {
            headers::remove_identity(trailers, &self.status_header);
            headers::remove_hop_by_hop(trailers);
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.incoming.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.incoming.size_hint()
    }
}

/// When the upstream last took a piece of a request. Only a body that is streamed makes progress.
#[derive(Debug, Clone)]
pub(super) struct Progress {
    began: Instant,
    streamed: Option<Rc<Cell<Instant>>>,
}

impl Progress {
    fn new(began: Instant, streamed: bool) -> Self {
        Self { began, streamed: streamed.then(|| Rc::new(Cell::new(began))) }
    }

    fn note(&self) {
        if let Some(last) = &self.streamed {
            last.set(Instant::now());
        }
    }

    pub(super) fn last(&self) -> Instant {
        self.streamed.as_ref().map_or(self.began, |last| last.get())
    }
}

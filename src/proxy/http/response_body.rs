//! A response body on its way to the client: read from the upstream only when the client takes it.

use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};
use std::time::Instant;

use bytes::Bytes;
use hyper::body::{Body, Frame, Incoming, SizeHint};

use super::Session;
use crate::proxy::upstream::Sender;

/// A response body on its way to the client, and the end of its request.
pub(super) struct ResponseBody {
    content: Content,
    request: RequestInFlight,
}

enum Content {
    /// An answer of keygate's own.
    Own(Option<Bytes>),
    Upstream {
        incoming: Incoming,
        sender: Option<Sender>,
        /// Its end was read; a chunked body does not know before.
        has_ended: bool,
    },
}

impl ResponseBody {
    pub(super) fn own(text: Bytes, request: RequestInFlight) -> Self {
        Self { content: Content::Own(Some(text)), request }
    }

    /// `sender` goes back to its pool once the body has ended, and is closed with the body if it
    /// has not.
    pub(super) fn upstream(incoming: Incoming, sender: Sender, request: RequestInFlight) -> Self {
        let content = Content::Upstream { incoming, sender: Some(sender), has_ended: false };
        Self { content, request }
    }
}

impl Body for ResponseBody {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        match &mut self.content {
            Content::Own(text) => Poll::Ready(text.take().map(|text| Ok(Frame::data(text)))),
            Content::Upstream { incoming, has_ended, .. } => {
                let frame = ready!(Pin::new(incoming).poll_frame(context));
                *has_ended |= frame.is_none();
                Poll::Ready(frame)
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.content {
            Content::Own(text) => text.is_none(),
            Content::Upstream { incoming, .. } => incoming.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.content {
            Content::Own(text) => SizeHint::with_exact(text.as_ref().map_or(0, Bytes::len) as u64),
            Content::Upstream { incoming, .. } => incoming.size_hint(),
        }
    }
}

impl Drop for ResponseBody {
    fn drop(&mut self) {
        if let Content::Upstream { incoming, sender, has_ended } = &mut self.content
            && (*has_ended || incoming.is_end_stream())
            && let Some(sender) = sender.take()
        {
            self.request.session.upstream().keep(sender);
        }
    }
}

/// A request from its head to the end of its response, however it ends.
pub(super) struct RequestInFlight {
    session: Rc<Session>,
    began: Instant,
    /// A body that nobody will read: an HTTP/2 stream whose body is dropped is reset, and an answer
    /// that is not on its way by then is lost.
    unread: Option<Incoming>,
}

impl RequestInFlight {
    pub(super) fn begin(session: Rc<Session>) -> Self {
        session.standing.activity.request_began();
        Self { session, began: Instant::now(), unread: None }
    }

    /// Keeps the request's body until the answer is out.
    pub(super) fn keeping(mut self, unread: Incoming) -> Self {
        self.unread = Some(unread);
        self
    }
}

impl Drop for RequestInFlight {
    fn drop(&mut self) {
        let seconds = self.began.elapsed().as_secs_f64();
        self.session.metrics().request_duration.observe(seconds);
        self.session.standing.request_ended();
    }
}

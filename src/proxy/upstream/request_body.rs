//! A request body on its way to the upstream: read from the client only when the upstream takes it,
//! no longer than allowed, and not from a client that stalls.

use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use bytes::Bytes;
use hyper::Request;
use hyper::body::{Body, Frame, SizeHint};
use hyper::header::HeaderName;

use super::progress::{Fault, Progress};
use crate::proxy::headers;
use crate::proxy::incoming::Incoming;
use crate::proxy::interim::Follower;
use crate::proxy::stall::Stall;

/// A request on its way to the upstream. Boxed: it goes from hand to hand, and a future that has room
/// for it is moved with every request.
pub(in crate::proxy) type Outgoing = Box<Request<RequestBody>>;

/// A client's request body on its way to the upstream.
#[derive(Debug)]
pub(in crate::proxy) struct RequestBody {
    incoming: Option<Incoming>,
    progress: Progress,
    status_header: Rc<HeaderName>,
    /// How much more there may be, in bytes.
    left: Option<u64>,
    stall: Stall,
    /// Who passes on what the server says before its answer.
    follower: Option<Follower>,
    /// The client wants to be told before it sends anything.
    asks_first: bool,
}

impl RequestBody {
    /// The body of a request that began at `began`. `limit` is in bytes; a client that sends nothing for `patience` has stalled.
    pub(in crate::proxy) fn new(
        incoming: Incoming,
        began: Instant,
        status_header: Rc<HeaderName>,
        limit: Option<u64>,
        patience: Duration,
        (follower, asks_first): (Option<Follower>, bool),
    ) -> Self {
        let progress = Progress::of(&incoming, began);
        let stall = Stall::new(patience);
        Self {
            incoming: Some(incoming),
            progress,
            status_header,
            left: limit,
            stall,
            follower,
            asks_first,
        }
    }

    /// The same, if it is empty: a request without a body can be sent twice.
    pub(super) fn repeated(&self) -> Option<Self> {
        self.is_end_stream().then(|| Self {
            incoming: None,
            progress: Progress::without_body(Instant::now()),
            status_header: Rc::clone(&self.status_header),
            left: self.left,
            stall: self.stall.anew(),
            follower: self.follower.clone(),
            asks_first: false,
        })
    }

    /// Whether the rest of it is read when the answer has ended: in HTTP/1.1 the next request is
    /// behind it. A stream of HTTP/2 has nothing behind it.
    pub(super) fn outlives_answer(&self) -> bool {
        !matches!(self.follower, Some(Follower::Http2(_)))
    }

    pub(super) fn follower(&self) -> Option<Follower> {
        self.follower.clone()
    }

    /// When the upstream last took a piece, and what the client did wrong.
    pub(in crate::proxy) fn progress(&self) -> Progress {
        self.progress.clone()
    }

    fn fail(&mut self, fault: Fault) -> Poll<Option<Result<Frame<Bytes>, Fault>>> {
        self.progress.fail(fault);
        Poll::Ready(Some(Err(fault)))
    }
}

impl Body for RequestBody {
    type Data = Bytes;
    type Error = Fault;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Fault>>> {
        let this = &mut *self;
        if this.progress.is_answered() {
            this.incoming.take(); // which tells the client of HTTP/2 (RFC 9113, section 8.1)
            return this.fail(Fault::Broken);
        }
        let Some(incoming) = &mut this.incoming else { return Poll::Ready(None) };
        if std::mem::take(&mut this.asks_first)
            && let Some(client) = &this.follower
        {
            client.go_on();
        }
        let Poll::Ready(frame) = Pin::new(incoming).poll_frame(context) else {
            this.progress.wait_for_client(true);
            this.progress.wake_reader(context);
            if this.stall.poll(context).is_ready() {
                return this.fail(Fault::Stalled);
            }
            return Poll::Pending;
        };
        this.stall.moved();
        this.progress.wait_for_client(false);
        this.progress.note();
        let mut frame = match frame {
            None => {
                this.progress.end();
                return Poll::Ready(None);
            }
            Some(Ok(frame)) => frame,
            Some(Err(_)) => return this.fail(Fault::Broken),
        };
        if let (Some(left), Some(data)) = (&mut this.left, frame.data_ref()) {
            match left.checked_sub(data.len() as u64) {
                Some(less) => *left = less,
                None => return this.fail(Fault::TooLarge),
            }
        }
        this.progress.count(frame.data_ref().map_or(0, Bytes::len));
        if this.is_end_stream() {
            this.progress.end();
        }
        if let Some(trailers) = frame.trailers_mut() {
            headers::remove_identity(trailers, &this.status_header);
            headers::remove_hop_by_hop(trailers);
        }
        Poll::Ready(Some(Ok(frame)))
    }

    fn is_end_stream(&self) -> bool {
        self.incoming.as_ref().is_none_or(Incoming::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        self.incoming.as_ref().map_or_else(|| SizeHint::with_exact(0), Incoming::size_hint)
    }
}

impl Drop for RequestBody {
    fn drop(&mut self) {
        match self.incoming.take() {
            Some(incoming) if !incoming.is_end_stream() => self.progress.leave(incoming),
            Some(_) => self.progress.end(), // nobody asked for its end
            None => {}
        }
    }
}

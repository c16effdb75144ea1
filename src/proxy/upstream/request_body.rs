//! A request body on its way to the upstream: read from the client only when the upstream takes it,
//! no longer than allowed, and not from a client that stalls.

use std::cell::{Cell, RefCell};
use std::fmt;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use bytes::Bytes;
use hyper::body::{Body, Frame, Incoming, SizeHint};
use hyper::header::HeaderName;

use crate::proxy::headers;
use crate::proxy::interim::Follower;
use crate::proxy::stall::Stall;

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
}

/// Why a body ends before its end: the client's fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(in crate::proxy) enum Fault {
    #[error("the client went away, or its body is broken")]
    Broken,
    #[error("the client sent nothing more of its body")]
    Stalled,
    #[error("the body is longer than allowed")]
    TooLarge,
}

impl RequestBody {
    /// The body of a request that began at `began`. `limit` is in bytes; a client that sends nothing for `patience` has stalled.
    pub(in crate::proxy) fn new(
        incoming: Incoming,
        began: Instant,
        status_header: Rc<HeaderName>,
        limit: Option<u64>,
        patience: Duration,
        follower: Option<Follower>,
    ) -> Self {
        let progress = Progress::new(began, !incoming.is_end_stream());
        let stall = Stall::new(patience);
        Self { incoming: Some(incoming), progress, status_header, left: limit, stall, follower }
    }

    /// The same, if it is empty: a request without a body can be sent twice.
    pub(super) fn repeated(&self) -> Option<Self> {
        self.is_end_stream().then(|| Self {
            incoming: None,
            progress: Progress::new(Instant::now(), false),
            status_header: Rc::clone(&self.status_header),
            left: self.left,
            stall: self.stall.anew(),
            follower: self.follower.clone(),
        })
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
        let Poll::Ready(frame) = Pin::new(incoming).poll_frame(context) else {
            this.progress.wait_for_client(true);
            this.progress.wake_with(context.waker());
            if this.stall.poll(context).is_ready() {
                return this.fail(Fault::Stalled);
            }
            return Poll::Pending;
        };
        this.stall.moved();
        this.progress.wait_for_client(false);
        this.progress.note();
        let mut frame = match frame {
            None => return Poll::Ready(None),
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
        if let (Some(streamed), Some(incoming)) = (&self.progress.streamed, self.incoming.take())
            && !incoming.is_end_stream()
        {
            streamed.rest.set(Some(incoming));
        }
    }
}

impl fmt::Debug for Streamed {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bytes = self.bytes.get();
        formatter.debug_struct("Streamed").field("bytes", &bytes).finish_non_exhaustive()
    }
}

/// How a request goes on its way. Only a body that is streamed makes progress. What the server did
/// not take of it is kept as long as this: an HTTP/2 stream whose body is dropped is reset, and an
/// answer that is not on its way by then is lost.
#[derive(Debug, Clone)]
pub(in crate::proxy) struct Progress {
    began: Instant,
    streamed: Option<Rc<Streamed>>,
}

struct Streamed {
    /// When the upstream last took a piece.
    last: Cell<Instant>,
    waits_for_client: Cell<bool>,
    fault: Cell<Option<Fault>>,
    bytes: Cell<u64>,
    /// What nobody wants any more.
    rest: Cell<Option<Incoming>>,
    /// The answer is out: the client need not send the rest.
    is_answered: Cell<bool>,
    /// Of whoever waits for the client.
    waker: RefCell<Option<Waker>>,
}

impl Progress {
    fn new(began: Instant, streamed: bool) -> Self {
        let streamed = streamed.then(|| {
            Rc::new(Streamed {
                last: Cell::new(began),
                waits_for_client: Cell::new(false),
                fault: Cell::new(None),
                bytes: Cell::new(0),
                rest: Cell::new(None),
                is_answered: Cell::new(false),
                waker: RefCell::default(),
            })
        });
        Self { began, streamed }
    }

    fn note(&self) {
        if let Some(streamed) = &self.streamed {
            streamed.last.set(Instant::now());
        }
    }

    fn count(&self, bytes: usize) {
        if let Some(streamed) = &self.streamed {
            streamed.bytes.set(streamed.bytes.get().saturating_add(bytes as u64));
        }
    }

    /// How many bytes went to the upstream.
    pub(in crate::proxy) fn bytes(&self) -> u64 {
        self.streamed.as_ref().map_or(0, |streamed| streamed.bytes.get())
    }

    fn wait_for_client(&self, waits: bool) {
        if let Some(streamed) = &self.streamed {
            streamed.waits_for_client.set(waits);
        }
    }

    fn fail(&self, fault: Fault) {
        if let Some(streamed) = &self.streamed {
            streamed.fault.set(Some(fault));
        }
    }

    pub(super) fn last(&self) -> Instant {
        self.streamed.as_ref().map_or(self.began, |streamed| streamed.last.get())
    }

    /// Whether the upstream has taken all that the client has sent, and the client owes more.
    pub(super) fn waits_for_client(&self) -> bool {
        self.streamed.as_ref().is_some_and(|streamed| streamed.waits_for_client.get())
    }

    /// The answer is out: the rest of the request is not wanted any more.
    pub(in crate::proxy) fn end(&self) {
        if let Some(streamed) = &self.streamed {
            streamed.is_answered.set(true);
            streamed.rest.take();
            if let Some(waker) = streamed.waker.take() {
                waker.wake();
            }
        }
    }

    fn is_answered(&self) -> bool {
        self.streamed.as_ref().is_some_and(|streamed| streamed.is_answered.get())
    }

    fn wake_with(&self, waker: &Waker) {
        if let Some(streamed) = &self.streamed {
            let mut known = streamed.waker.borrow_mut();
            if !known.as_ref().is_some_and(|known| known.will_wake(waker)) {
                *known = Some(waker.clone());
            }
        }
    }

    /// What the server did not take of the body.
    pub(in crate::proxy) fn take_rest(&self) -> Option<Incoming> {
        self.streamed.as_ref().and_then(|streamed| streamed.rest.take())
    }

    pub(super) fn fault(&self) -> Option<Fault> {
        self.streamed.as_ref().and_then(|streamed| streamed.fault.get())
    }
}

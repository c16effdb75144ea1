//! How far a request body has come, for those who wait for it or have no more use for it.

use std::cell::{Cell, RefCell};
use std::fmt;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use bytes::Bytes;
use hyper::body::Body;

use crate::proxy::incoming::Incoming;

/// How much of a body that nobody wants is read, in bytes and in time.
pub(in crate::proxy) const DISCARDED_AT_MOST: usize = 8 << 20;
pub(in crate::proxy) const DISCARDED_WITHIN: Duration = Duration::from_secs(2);

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

/// How a request goes on its way. Only a body that is streamed makes progress. What the server did
/// not take of it is kept until the answer is out: some clients want to be rid of it first.
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
    /// Whether the rest of it is waited for: it has an end that is known, or one is made.
    is_counted: Cell<bool>,
    /// There is nothing more to come.
    has_come: Cell<bool>,
    /// What the server does not want any more, and how much of that was read, in bytes.
    rest: Cell<Option<Incoming>>,
    discarded: Cell<usize>,
    /// The answer is out: the client need not send the rest.
    is_answered: Cell<bool>,
    /// Of whoever reads the body, and of whoever waits for its end.
    reader: RefCell<Option<Waker>>,
    waiter: RefCell<Option<Waker>>,
}

impl fmt::Debug for Streamed {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bytes = self.bytes.get();
        formatter.debug_struct("Streamed").field("bytes", &bytes).finish_non_exhaustive()
    }
}

impl Progress {
    /// Of a request that began at `began` and has no body.
    pub(super) fn without_body(began: Instant) -> Self {
        Self { began, streamed: None }
    }

    /// Of a request that began at `began`, with this body.
    pub(super) fn of(body: &Incoming, began: Instant) -> Self {
        let streamed = (!body.is_end_stream()).then(|| {
            Rc::new(Streamed {
                last: Cell::new(began),
                waits_for_client: Cell::new(false),
                fault: Cell::new(None),
                bytes: Cell::new(0),
                is_counted: Cell::new(body.size_hint().exact().is_some()),
                has_come: Cell::new(false),
                rest: Cell::new(None),
                discarded: Cell::new(0),
                is_answered: Cell::new(false),
                reader: RefCell::default(),
                waiter: RefCell::default(),
            })
        });
        Self { began, streamed }
    }

    /// Of a request that nobody wants the body of.
    pub(in crate::proxy) fn unwanted(body: Incoming, began: Instant) -> Self {
        let progress = Self::of(&body, began);
        if let Some(streamed) = &progress.streamed {
            streamed.is_counted.set(true); // it is to come to an end, and soon
        }
        progress.leave(body);
        progress
    }

    /// Whether there is more to come.
    pub(in crate::proxy) fn is_unfinished(&self) -> bool {
        self.streamed.as_ref().is_some_and(|streamed| !streamed.has_come.get())
    }

    /// The upstream has taken a piece.
    pub(super) fn note(&self) {
        if let Some(streamed) = &self.streamed {
            streamed.last.set(Instant::now());
        }
    }

    pub(super) fn count(&self, bytes: usize) {
        if let Some(streamed) = &self.streamed {
            streamed.bytes.set(streamed.bytes.get().saturating_add(bytes as u64));
        }
    }

    /// How many bytes went to the upstream.
    pub(in crate::proxy) fn bytes(&self) -> u64 {
        self.streamed.as_ref().map_or(0, |streamed| streamed.bytes.get())
    }

    pub(super) fn wait_for_client(&self, waits: bool) {
        if let Some(streamed) = &self.streamed {
            streamed.waits_for_client.set(waits);
        }
    }

    pub(super) fn fail(&self, fault: Fault) {
        if let Some(streamed) = &self.streamed {
            streamed.fault.set(Some(fault));
            if fault == Fault::TooLarge {
                streamed.is_counted.set(true); // more comes, and some of it is read
                return;
            }
        }
        self.end();
    }

    /// There is nothing more to come.
    pub(super) fn end(&self) {
        if let Some(streamed) = &self.streamed {
            streamed.has_come.set(true);
            wake(&streamed.waiter);
        }
    }

    /// The server takes no more: this is what is left.
    pub(super) fn leave(&self, rest: Incoming) {
        if let Some(streamed) = &self.streamed {
            streamed.rest.set(Some(rest).filter(|_| !streamed.is_answered.get()));
            wake(&streamed.waiter);
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
    pub(in crate::proxy) fn has_answer(&self) {
        if let Some(streamed) = &self.streamed {
            streamed.is_answered.set(true);
            streamed.rest.take();
            wake(&streamed.reader);
        }
    }

    pub(super) fn is_answered(&self) -> bool {
        self.streamed.as_ref().is_some_and(|streamed| streamed.is_answered.get())
    }

    /// Whoever reads the body is woken when the answer is out.
    pub(super) fn wake_reader(&self, context: &Context<'_>) {
        if let Some(streamed) = &self.streamed {
            remember(&streamed.reader, context);
        }
    }

    /// What the server did not take of the body.
    pub(in crate::proxy) fn take_rest(&self) -> Option<Incoming> {
        self.streamed.as_ref().and_then(|streamed| streamed.rest.take())
    }

    /// Whether there is more to come of which it is known how much.
    pub(in crate::proxy) fn owes_rest(&self) -> bool {
        let streamed = self.streamed.as_ref();
        streamed.is_some_and(|streamed| streamed.is_counted.get() && !streamed.has_come.get())
    }

    /// Ready once the client has sent all of the body, or enough of what the server does not take.
    pub(in crate::proxy) fn poll_rest(&self, context: &mut Context<'_>) -> Poll<()> {
        let Some(streamed) = &self.streamed else { return Poll::Ready(()) };
        if let Some(mut rest) = streamed.rest.take() {
            while !streamed.has_come.get() {
                let Poll::Ready(frame) = Pin::new(&mut rest).poll_frame(context) else { break };
                let bytes = match frame {
                    Some(Ok(frame)) => frame.data_ref().map_or(0, Bytes::len),
                    None | Some(Err(_)) => DISCARDED_AT_MOST,
                };
                let discarded = streamed.discarded.get().saturating_add(bytes);
                streamed.discarded.set(discarded);
                streamed.has_come.set(rest.is_end_stream() || discarded >= DISCARDED_AT_MOST);
            }
            streamed.rest.set(Some(rest));
        }
        remember(&streamed.waiter, context);
        if streamed.has_come.get() { Poll::Ready(()) } else { Poll::Pending }
    }

    pub(super) fn fault(&self) -> Option<Fault> {
        self.streamed.as_ref().and_then(|streamed| streamed.fault.get())
    }
}

fn remember(place: &RefCell<Option<Waker>>, context: &Context<'_>) {
    let mut known = place.borrow_mut();
    if !known.as_ref().is_some_and(|known| known.will_wake(context.waker())) {
        *known = Some(context.waker().clone());
    }
}

fn wake(place: &RefCell<Option<Waker>>) {
    if let Some(waker) = place.take() {
        waker.wake();
    }
}

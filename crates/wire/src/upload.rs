//! The upload of one request: its progress, and the rest of the body that the server does not read.
//!
//! Three places share an upload. The request body records its progress. The exchange with the
//! server computes its deadline from that progress. The response waits for the end of the upload,
//! because some clients (curl 7.88) lose a response that ends while they are still sending.

use std::cell::{Cell, RefCell};
use std::fmt;
use std::future::poll_fn;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Instant;

use crate::lingering_close::{LINGER_BYTES, LINGER_TIME};
use atomic_waker::AtomicWaker;
use bytes::Bytes;
use hyper::body::Body;
use tokio::time::timeout;

/// A fault of the client that ends its upload early.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ClientFault {
    /// The connection or the framing of the body is broken.
    #[error("the client closed the connection, or its body is malformed")]
    Broken,
    /// The client was idle for longer than the timeout of bodies.
    #[error("the client sent nothing of its body for too long")]
    Stalled,
    /// The body exceeds its maximum size.
    #[error("the body is longer than max_body_size")]
    TooLarge,
}

/// The upload of a request that has a body of type `B`. Clones share it.
#[derive(Debug)]
pub struct Upload<B>(Rc<SharedUpload<B>>);

impl<B> Clone for Upload<B> {
    fn clone(&self) -> Self {
        Self(Rc::clone(&self.0))
    }
}

struct SharedUpload<B> {
    state: RefCell<UploadState<B>>,
    fault: Cell<Option<ClientFault>>,
    /// Bytes of the body that went to the server.
    bytes: Cell<u64>,
    /// When the server last read a piece of the body.
    last_progress: Cell<Instant>,
    /// Whether the response waits for the rest: its length is known, or it will be discarded.
    is_bounded: Cell<bool>,
    /// The task that reads the body for the server.
    reader: AtomicWaker,
    /// The response, which waits for the end of the upload.
    waiter: AtomicWaker,
}

enum UploadState<B> {
    /// The response has ended, so the rest is dropped.
    Abandoned,
    /// The whole body was received.
    Ended,
    /// The server reads the body.
    Streaming { waits_for_client: bool },
    /// The server reads no more. The rest is kept until the response has ended.
    Unread { rest: B, discarded: u64 },
}

impl<B: Body<Data = Bytes> + Unpin> Upload<B> {
    /// The upload of `body`, which is not empty.
    pub fn new(body: &B, began: Instant) -> Self {
        Self(Rc::new(SharedUpload {
            state: RefCell::new(UploadState::Streaming { waits_for_client: false }),
            fault: Cell::new(None),
            bytes: Cell::new(0),
            last_progress: Cell::new(began),
            is_bounded: Cell::new(body.size_hint().exact().is_some()),
            reader: AtomicWaker::new(),
            waiter: AtomicWaker::new(),
        }))
    }

    /// Bytes of the body that went to the server.
    pub fn bytes(&self) -> u64 {
        self.0.bytes.get()
    }

    /// When the server last read a piece of the body; initially the start of the request.
    pub fn last_progress(&self) -> Instant {
        self.0.last_progress.get()
    }

    /// Whether the server has read every piece that the client has sent, and more must follow.
    pub fn waits_for_client(&self) -> bool {
        matches!(*self.0.state.borrow(), UploadState::Streaming { waits_for_client: true })
    }

    /// The fault of the client that ended the upload.
    pub fn fault(&self) -> Option<ClientFault> {
        self.0.fault.get()
    }

    /// Records that the reader waits for the client. The reader is woken by [`Self::abandon`].
    pub fn wait_for_client(&self, context: &Context<'_>) {
        self.set_waits_for_client(true);
        self.0.reader.register(context.waker());
    }

    /// Records that the server read a piece of the body.
    pub fn record_progress(&self) {
        self.set_waits_for_client(false);
        self.0.last_progress.set(Instant::now());
    }

    fn set_waits_for_client(&self, waits: bool) {
        if let UploadState::Streaming { waits_for_client } = &mut *self.0.state.borrow_mut() {
            *waits_for_client = waits;
        }
    }

    /// Counts bytes that went to the server.
    pub fn add_bytes(&self, count: usize) {
        self.0.bytes.set(self.0.bytes.get().saturating_add(count as u64));
    }

    /// Ends the upload by a fault of the client. The rest of a body that is too large is discarded,
    /// within bounds, because the client would otherwise lose the 413.
    pub fn fail(&self, fault: ClientFault) {
        self.0.fault.set(Some(fault));
        match fault {
            ClientFault::TooLarge => self.0.is_bounded.set(true),
            ClientFault::Broken | ClientFault::Stalled => self.0.waiter.wake(),
        }
    }

    /// Ends the upload: the whole body was received.
    pub fn end(&self) {
        let mut state = self.0.state.borrow_mut();
        if !matches!(*state, UploadState::Abandoned) {
            *state = UploadState::Ended;
        }
        self.0.waiter.wake();
    }

    /// Takes the rest of the body from the reader, because the server reads no more.
    pub fn stop(&self, rest: B) {
        let mut state = self.0.state.borrow_mut();
        if let UploadState::Streaming { .. } = *state {
            *state = UploadState::Unread { rest, discarded: 0 };
        }
        self.0.waiter.wake();
    }

    /// Drops the rest of the body, because the response has ended.
    pub fn abandon(&self) {
        let before = self.0.state.replace(UploadState::Abandoned);
        self.0.reader.wake();
        drop(before); // resets the client's stream, which may use this upload
    }

    /// Whether the response ended before the upload.
    pub fn is_abandoned(&self) -> bool {
        matches!(*self.0.state.borrow(), UploadState::Abandoned)
    }

    /// Begins again, because the server has processed nothing. Returns whether the client still waits
    /// for its response.
    pub fn restart(&self) -> bool {
        if self.is_abandoned() || self.fault().is_some() {
            return false;
        }
        self.0.bytes.set(0);
        self.0.state.replace(UploadState::Streaming { waits_for_client: false });
        true
    }

    /// Keeps a body that no server will read. The response waits until it has been discarded.
    pub fn reject(&self, body: B) {
        self.0.is_bounded.set(true);
        self.stop(body);
    }

    /// Whether the client may still be sending.
    pub fn is_unfinished(&self) -> bool {
        if let Some(ClientFault::Broken | ClientFault::Stalled) = self.0.fault.get() {
            return false;
        }
        match &*self.0.state.borrow() {
            UploadState::Streaming { .. } | UploadState::Unread { .. } => true,
            UploadState::Abandoned | UploadState::Ended => false,
        }
    }

    /// Whether the response should wait for the end of the upload.
    pub fn is_awaited(&self) -> bool {
        let is_enough = match &*self.0.state.borrow() {
            UploadState::Unread { discarded, .. } => *discarded >= LINGER_BYTES,
            UploadState::Abandoned | UploadState::Ended | UploadState::Streaming { .. } => false,
        };
        self.0.is_bounded.get() && self.is_unfinished() && !is_enough
    }

    /// Whether the rest that the server left unread has a known length.
    pub fn has_unread_of_known_length(&self) -> bool {
        match &*self.0.state.borrow() {
            UploadState::Unread { rest, .. } => rest.size_hint().exact().is_some(),
            UploadState::Abandoned | UploadState::Ended | UploadState::Streaming { .. } => false,
        }
    }

    /// Ready when the upload has ended, or when [`LINGER_BYTES`] of the unread rest have been
    /// discarded.
    pub fn poll_end(&self, context: &mut Context<'_>) -> Poll<()> {
        let mut state = self.0.state.borrow_mut();
        while let UploadState::Unread { rest, discarded } = &mut *state
            && *discarded < LINGER_BYTES
        {
            match Pin::new(&mut *rest).poll_frame(context) {
                Poll::Pending => break,
                Poll::Ready(Some(Ok(frame))) => {
                    let count = frame.data_ref().map_or(0, Bytes::len);
                    *discarded = discarded.saturating_add(count as u64);
                    if rest.is_end_stream() {
                        *state = UploadState::Ended;
                    }
                }
                Poll::Ready(None) => *state = UploadState::Ended,
                // More may follow a malformed piece, so the upload stays unfinished.
                Poll::Ready(Some(Err(_))) => *discarded = LINGER_BYTES,
            }
        }
        let is_over = match &*state {
            UploadState::Unread { discarded, .. } => *discarded >= LINGER_BYTES,
            UploadState::Streaming { .. } => false,
            UploadState::Abandoned | UploadState::Ended => true,
        };
        drop(state);
        if is_over || !self.is_unfinished() {
            return Poll::Ready(());
        }
        self.0.waiter.register(context.waker());
        Poll::Pending
    }

    /// Discards the unread rest for at most [`LINGER_TIME`].
    pub async fn discard(&self) {
        let _ = timeout(LINGER_TIME, poll_fn(|context| self.poll_end(context))).await;
    }
}

impl<B> fmt::Debug for SharedUpload<B> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (bytes, fault) = (self.bytes.get(), self.fault.get());
        let mut debug = formatter.debug_struct("Upload");
        debug.field("bytes", &bytes).field("fault", &fault).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;

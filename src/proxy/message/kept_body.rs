//! A request body that can be sent again as long as its response has not begun. A server may end a
//! connection without processing the newest requests (RFC 9113, section 6.8), and nginx does so
//! after every 1,000 requests.

use std::cell::RefCell;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use hyper::body::{Body, Frame, SizeHint};

use crate::proxy::message::incoming::{HttpError, Incoming};

/// Maximum length of what is kept, in bytes; a longer body cannot be sent again. It takes the memory
/// of the response's window, which is counted and which no response fills yet.
const MAX_KEPT: usize = crate::proxy::upstream::http2::RESPONSE_WINDOW as usize;

/// A body whose beginning is kept. Clones share it.
#[derive(Debug, Clone)]
pub(crate) struct KeptBody(Rc<RefCell<KeptState>>);

#[derive(Debug)]
struct KeptState {
    incoming: Incoming,
    /// What was read; `None` if it is not kept. A copy, because a piece holds the whole buffer that
    /// it was read into, which a client that sends padding makes much larger.
    kept: Option<Vec<u8>>,
    /// What is read again.
    again: Bytes,
}

impl KeptBody {
    pub(crate) fn new(incoming: Incoming) -> Self {
        let (kept, again) = (Some(Vec::new()), Bytes::new());
        Self(Rc::new(RefCell::new(KeptState { incoming, kept, again })))
    }

    /// Goes back to the beginning of the body. Returns whether all of it was kept. It is kept no
    /// longer.
    pub(crate) fn rewind(&self) -> bool {
        let state = &mut *self.0.borrow_mut();
        let kept = state.kept.take();
        let is_whole = kept.is_some();
        state.again = kept.unwrap_or_default().into();
        is_whole
    }

    /// Drops what is kept.
    pub(crate) fn release(&self) {
        self.0.borrow_mut().kept = None;
    }

    pub(crate) fn poll_frame(
        &self,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, HttpError>>> {
        let state = &mut *self.0.borrow_mut();
        if !state.again.is_empty() {
            let again = std::mem::take(&mut state.again);
            return Poll::Ready(Some(Ok(Frame::data(again))));
        }
        let frame = ready!(Pin::new(&mut state.incoming).poll_frame(context));
        if let Some(frame) = &frame {
            state.keep(frame.as_ref().ok().and_then(Frame::data_ref));
        }
        Poll::Ready(frame)
    }

    pub(crate) fn is_end_stream(&self) -> bool {
        let state = self.0.borrow();
        state.again.is_empty() && state.incoming.is_end_stream()
    }

    pub(crate) fn size_hint(&self) -> SizeHint {
        let state = self.0.borrow();
        let exact = state.incoming.size_hint().exact();
        let exact = exact.and_then(|rest| rest.checked_add(state.again.len() as u64));
        exact.map_or_else(SizeHint::default, SizeHint::with_exact)
    }
}

impl KeptState {
    /// Keeps a piece. Nothing is kept after the trailers, an error, or too many bytes.
    fn keep(&mut self, piece: Option<&Bytes>) {
        match (piece, &mut self.kept) {
            (Some(piece), Some(kept)) if kept.len().saturating_add(piece.len()) <= MAX_KEPT => {
                kept.extend_from_slice(piece);
            }
            (Some(_) | None, _) => self.kept = None,
        }
    }
}

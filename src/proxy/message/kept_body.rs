//! A request body that can be sent again as long as its response has not begun. A server may end a
//! connection without processing the newest requests (RFC 9113, section 6.8), and nginx does so
//! after every 1,000 requests.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use hyper::body::{Body, Frame, SizeHint};

use crate::proxy::message::incoming::{HttpError, Incoming};

/// Maximum length of the kept pieces, in bytes; a longer body cannot be sent again. The pieces take
/// the memory of the response's window, which is counted and which no response fills yet.
const MAX_KEPT: usize = crate::proxy::upstream::http2::RESPONSE_WINDOW as usize;

/// A body whose pieces are kept. Clones share it.
#[derive(Debug, Clone)]
pub(crate) struct KeptBody(Rc<RefCell<KeptState>>);

#[derive(Debug)]
struct KeptState {
    incoming: Incoming,
    /// The pieces that were read; `None` if they are not kept.
    kept: Option<Vec<Bytes>>,
    kept_bytes: usize,
    /// Pieces that are read again.
    again: VecDeque<Bytes>,
}

impl KeptBody {
    pub(crate) fn new(incoming: Incoming) -> Self {
        let (kept, again) = (Some(Vec::new()), VecDeque::new());
        Self(Rc::new(RefCell::new(KeptState { incoming, kept, kept_bytes: 0, again })))
    }

    /// Goes back to the beginning of the body. Returns whether all of it was kept. It is kept no
    /// longer.
    pub(crate) fn rewind(&self) -> bool {
        let state = &mut *self.0.borrow_mut();
        let kept = state.kept.take();
        kept.map(|pieces| state.again = pieces.into()).is_some()
    }

    /// Drops the kept pieces.
    pub(crate) fn release(&self) {
        self.0.borrow_mut().kept = None;
    }

    pub(crate) fn poll_frame(
        &self,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, HttpError>>> {
        let state = &mut *self.0.borrow_mut();
        if let Some(piece) = state.again.pop_front() {
            return Poll::Ready(Some(Ok(Frame::data(piece))));
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
        let again: usize = state.again.iter().map(Bytes::len).sum();
        let exact = state.incoming.size_hint().exact();
        let exact = exact.and_then(|rest| rest.checked_add(again as u64));
        exact.map_or_else(SizeHint::default, SizeHint::with_exact)
    }
}

impl KeptState {
    /// Keeps a piece. Nothing is kept after the trailers, an error, or too many bytes.
    fn keep(&mut self, piece: Option<&Bytes>) {
        self.kept_bytes = self.kept_bytes.saturating_add(piece.map_or(0, Bytes::len));
        match (piece, &mut self.kept) {
            (Some(piece), Some(kept)) if self.kept_bytes <= MAX_KEPT => kept.push(piece.clone()),
            (Some(_) | None, _) => self.kept = None,
        }
    }
}

//! A request body that can be sent again as long as its response has not begun. A server may end a
//! connection without processing the newest requests (RFC 9113, section 6.8), and nginx does so
//! after every 1,000 requests.

use std::cell::RefCell;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use hyper::body::{Body, Frame, SizeHint};

use crate::http2::RESPONSE_WINDOW;

/// Maximum length of what is kept, in bytes; a longer body cannot be sent again. It takes the memory
/// of the response's window, which is counted and which no response fills yet.
const MAX_KEPT: usize = RESPONSE_WINDOW as usize;

/// A body whose beginning is kept. Clones share it.
#[derive(Debug)]
pub struct KeptBody<B>(Rc<RefCell<KeptState<B>>>);

impl<B> Clone for KeptBody<B> {
    fn clone(&self) -> Self {
        Self(Rc::clone(&self.0))
    }
}

#[derive(Debug)]
struct KeptState<B> {
    incoming: B,
    /// The bytes that were read; `None` if they are not kept. A copy, because a piece holds the
    /// whole buffer that it was read into, which a client that sends padding makes much larger.
    kept: Option<Vec<u8>>,
    /// The bytes that are read again.
    again: Bytes,
}

impl<B: Body<Data = Bytes> + Unpin> KeptBody<B> {
    /// A body of which nothing was read yet.
    pub fn new(incoming: B) -> Self {
        let (kept, again) = (Some(Vec::new()), Bytes::new());
        Self(Rc::new(RefCell::new(KeptState { incoming, kept, again })))
    }

    /// Goes back to the beginning of the body. Returns whether all of it was kept. It is kept no
    /// longer.
    pub fn rewind(&self) -> bool {
        let state = &mut *self.0.borrow_mut();
        let kept = state.kept.take();
        let is_whole = kept.is_some();
        state.again = kept.unwrap_or_default().into();
        is_whole
    }

    /// Drops what is kept.
    pub fn release(&self) {
        self.0.borrow_mut().kept = None;
    }

    /// Reads the next frame, and keeps its data.
    pub fn poll_frame(
        &self,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
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

    /// Whether nothing follows.
    pub fn is_end_stream(&self) -> bool {
        let state = self.0.borrow();
        state.again.is_empty() && state.incoming.is_end_stream()
    }

    /// The number of bytes that follow, if it is known.
    pub fn size_hint(&self) -> SizeHint {
        let state = self.0.borrow();
        let exact = state.incoming.size_hint().exact();
        let exact = exact.and_then(|rest| rest.checked_add(state.again.len() as u64));
        exact.map_or_else(SizeHint::default, SizeHint::with_exact)
    }
}

impl<B> KeptState<B> {
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

//! Short pieces of a body, joined as far as they have arrived. Each piece becomes a DATA frame or a
//! chunk, and its header is nine times as long as a piece of one byte: nginx ends a connection whose
//! frames are mostly headers. Nothing here waits for data that the peer has not sent.

use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use hyper::body::{Body, Frame};

/// Minimum length of a piece that is passed on alone and without a copy, in bytes.
const LONG: usize = 1 << 10;
/// Maximum length of joined pieces, in bytes.
const MAX_JOINED: usize = 8 << 10;
/// Number of short pieces of a body that are passed on without a turn of other tasks.
const FREE_PIECES: u8 = 16;

/// The short pieces of one body, whose error is `E`.
#[derive(Debug)]
pub struct JoinedPieces<E> {
    /// The only piece so far. It is empty if there are none, or several.
    first: Bytes,
    joined: Vec<u8>,
    /// The item after the pieces: another frame, an error, or the end of the body.
    next: Option<Option<Result<Frame<Bytes>, E>>>,
    passed_on: u8,
    has_yielded: bool,
}

impl<E> Default for JoinedPieces<E> {
    fn default() -> Self {
        let (first, joined, next) = Default::default();
        Self { first, joined, next, passed_on: 0, has_yielded: false }
    }
}

impl<E> JoinedPieces<E> {
    /// Reads the next frame of `body`. hyper passes a chunk to a body only after the chunk before it
    /// was read, in another task. After many short pieces, that task gets one turn.
    pub fn poll_frame<B: Body<Data = Bytes, Error = E> + Unpin>(
        &mut self,
        body: &mut B,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, E>>> {
        if let Some(next) = self.next.take() {
            return Poll::Ready(next);
        }
        loop {
            let frame = match Pin::new(&mut *body).poll_frame(context) {
                Poll::Ready(Some(Ok(frame))) => frame.into_data().map_err(|it| Some(Ok(it))),
                Poll::Ready(other) => Err(other),
                Poll::Pending if self.len() == 0 => return Poll::Pending,
                Poll::Pending if self.passed_on >= FREE_PIECES && !self.has_yielded => {
                    self.has_yielded = true;
                    context.waker().wake_by_ref();
                    return Poll::Pending;
                }
                Poll::Pending => break,
            };
            let next = match frame {
                Ok(data) if data.len() < LONG => {
                    self.add(data);
                    self.has_yielded = false;
                    if self.len() > MAX_JOINED - LONG || body.is_end_stream() {
                        break;
                    }
                    continue;
                }
                Ok(data) => Some(Ok(Frame::data(data))),
                Err(other) => other,
            };
            if self.len() == 0 {
                return Poll::Ready(next);
            }
            self.next = Some(next);
            break;
        }
        self.passed_on = self.passed_on.saturating_add(1);
        self.has_yielded = false;
        let first = std::mem::take(&mut self.first);
        let joined = std::mem::take(&mut self.joined);
        let data = if joined.is_empty() { first } else { joined.into() };
        Poll::Ready(Some(Ok(Frame::data(data))))
    }

    /// Whether nothing follows, neither here nor from `body`.
    pub fn is_end_stream(&self, body: &impl Body) -> bool {
        match &self.next {
            Some(next) => next.is_none(),
            None => self.len() == 0 && body.is_end_stream(),
        }
    }

    fn len(&self) -> usize {
        self.first.len() + self.joined.len()
    }

    fn add(&mut self, data: Bytes) {
        if self.len() == 0 {
            self.first = data;
            return;
        }
        self.joined.extend_from_slice(&std::mem::take(&mut self.first));
        self.joined.extend_from_slice(&data);
    }
}

#[cfg(test)]
mod tests;

//! A body that is sent on an HTTP/2 stream.

use std::cell::RefCell;
use std::convert::Infallible;
use std::fmt;
use std::fmt::Display;
use std::future::poll_fn;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use crate::idle_timeout::IdleTimeout;
use bytes::Bytes;
use h2::{Reason, SendStream};
use hyper::body::{Body, Frame};
use tokio::sync::oneshot;
use tokio::task::AbortHandle;
use tracing::debug;

use crate::http2::send_window::WindowShare;

/// Maximum length of the data in one DATA frame, in bytes. With its header, the frame fills one TLS
/// record. A longer one would leave a record of 9 bytes.
const MAX_PIECE: usize = (16 << 10) - 9;

/// Sends a body until it ends or the peer resets the stream. A piece is read only when the piece
/// before it was sent, and sent only as far as it has room in the peer's window: h2 keeps no bytes
/// that wait for the window, and the lack of room is seen here, for the last piece too.
pub struct SendBody<B> {
    body: B,
    stream: SendStream<Bytes>,
    /// A piece, or the rest of one, that waits for room in the window.
    pending: Option<Piece>,
    /// The error code of the reset if the body ends early.
    abort_reason: Reason,
    sends_trailers: bool,
    /// The share in the window of the connection; `None`: all of it.
    share: Option<WindowShare>,
    /// Maximum time without room; the stream is reset then. `None`: no maximum.
    stall: Option<IdleTimeout>,
    /// The stall timeout applies after the end of this. `None`: always.
    stall_begins: Option<oneshot::Receiver<Infallible>>,
}

/// How a body was sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SendEnd {
    /// The body ended early, or its peer took nothing for too long. The stream was reset.
    Aborted,
    /// The whole body was sent.
    Complete,
    /// The peer reset the stream, or broke the protocol on it.
    Reset,
}

struct Piece {
    data: Bytes,
    is_last: bool,
}

/// The state of a [`SendBody`] after one step.
enum SendStep {
    Done(SendEnd),
    More,
}

impl<B: Body<Data = Bytes, Error: Display> + Unpin> SendBody<B> {
    /// Sends `body`. If it ends early, the stream is reset with `abort_reason`.
    pub fn new(body: B, stream: SendStream<Bytes>, abort_reason: Reason) -> Self {
        let (pending, stall, stall_begins) = (None, None, None);
        let (sends_trailers, share) = (true, None);
        Self { body, stream, pending, abort_reason, sends_trailers, share, stall, stall_begins }
    }

    /// Sends within a share of the connection's window.
    pub fn with_share(self, share: WindowShare) -> Self {
        Self { share: Some(share), ..self }
    }

    /// Ends the stream without the trailers of the body.
    pub fn without_trailers(self) -> Self {
        Self { sends_trailers: false, ..self }
    }

    /// Resets the stream with `CANCEL` if the peer gives no room for `timeout`.
    pub fn with_stall_timeout(mut self, timeout: Duration) -> Self {
        self.stall = Some(IdleTimeout::new(timeout));
        self
    }

    /// Waits for room in the windows of the stream and its connection. `None` if the stream ends.
    fn poll_room(&mut self, context: &mut Context<'_>) -> Poll<Result<Option<usize>, h2::Error>> {
        loop {
            let room = self.stream.capacity();
            if room > 0 {
                self.stall.iter_mut().for_each(IdleTimeout::reset);
                return Poll::Ready(Ok(Some(room)));
            }
            // Capacity is reserved only now, because it is taken from the connection's window.
            let length = self.pending.as_ref().map_or(0, |piece| piece.data.len());
            match self.share.as_ref().map(|share| share.poll_room(context)) {
                None => self.stream.reserve_capacity(length),
                Some(Poll::Ready(room)) => self.stream.reserve_capacity(length.min(room)),
                Some(Poll::Pending) => break,
            }
            match self.stream.poll_capacity(context) {
                Poll::Ready(Some(capacity)) => {
                    capacity?;
                }
                Poll::Ready(None) => return Poll::Ready(Ok(None)), // the stream is closed
                Poll::Pending => break,
            }
        }
        if let Some(begins) = &mut self.stall_begins {
            let _ = ready!(Pin::new(begins).poll(context)); // nothing is ever sent
            self.stall_begins = None;
        }
        if let Some(stall) = &mut self.stall
            && stall.poll(context).is_ready()
        {
            debug!("the peer takes nothing of a body, stream reset");
            self.stream.send_reset(Reason::CANCEL);
            return Poll::Ready(Ok(None));
        }
        Poll::Pending
    }

    fn poll_step(&mut self, context: &mut Context<'_>) -> Poll<Result<SendStep, h2::Error>> {
        if let Poll::Ready(reason) = self.stream.poll_reset(context)? {
            debug!(%reason, "stream reset");
            return Poll::Ready(Ok(SendStep::Done(SendEnd::Reset)));
        }
        if self.pending.is_some() {
            let Some(room) = ready!(self.poll_room(context))? else {
                return Poll::Ready(Ok(SendStep::Done(SendEnd::Aborted)));
            };
            return Poll::Ready(self.send_pending(room));
        }
        let Some(frame) = ready!(Pin::new(&mut self.body).poll_frame(context)) else {
            return Poll::Ready(self.send(Piece { data: Bytes::new(), is_last: true }));
        };
        Poll::Ready(match frame.map(Frame::into_data) {
            Err(error) => {
                debug!(%error, "body ended early");
                self.stream.send_reset(self.abort_reason);
                Ok(SendStep::Done(SendEnd::Aborted))
            }
            Ok(Ok(data)) => {
                let is_last = self.body.is_end_stream();
                if data.is_empty() {
                    return Poll::Ready(if is_last {
                        self.send(Piece { data, is_last })
                    } else {
                        Ok(SendStep::More)
                    });
                }
                self.pending = Some(Piece { data, is_last });
                Ok(SendStep::More)
            }
            Ok(Err(frame)) => match frame.into_trailers() {
                Ok(_) if !self.sends_trailers => {
                    self.send(Piece { data: Bytes::new(), is_last: true })
                }
                Ok(trailers) => {
                    self.stream.reserve_capacity(0);
                    let sent = self.stream.send_trailers(trailers);
                    sent.map(|()| SendStep::Done(SendEnd::Complete))
                }
                Err(_) => Ok(SendStep::More), // no other kind of frame exists
            },
        })
    }

    fn send(&mut self, piece: Piece) -> Result<SendStep, h2::Error> {
        let Piece { data, is_last } = piece;
        if let Some(share) = &self.share {
            share.record_queued(data.len());
        }
        self.stream.send_data(data, is_last)?;
        Ok(if is_last { SendStep::Done(SendEnd::Complete) } else { SendStep::More })
    }

    /// Sends as much of the pending piece as there is room for.
    fn send_pending(&mut self, room: usize) -> Result<SendStep, h2::Error> {
        let Some(mut piece) = self.pending.take() else { return Ok(SendStep::More) };
        let room = room.min(MAX_PIECE);
        if piece.data.len() > room {
            let data = piece.data.split_to(room);
            self.pending = Some(piece);
            return self.send(Piece { data, is_last: false });
        }
        self.send(piece)
    }
}

impl<B: Body<Data = Bytes, Error: Display> + Unpin> Future for SendBody<B> {
    type Output = SendEnd;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<SendEnd> {
        loop {
            match ready!(self.poll_step(context)) {
                Ok(SendStep::More) => {}
                Ok(SendStep::Done(end)) => return Poll::Ready(end),
                Err(error) => {
                    debug!(%error, "stream ended");
                    return Poll::Ready(SendEnd::Reset);
                }
            }
        }
    }
}

/// A body that is sent by a task of its own. Dropping this aborts it.
pub struct BackgroundSend {
    /// `None` if the task continues without this.
    sending: Option<Rc<RefCell<Option<BoxedSending>>>>,
    task: AbortHandle,
    outlives_response: bool,
    /// Dropped with the response.
    _response: oneshot::Sender<Infallible>,
}

type BoxedSending = Pin<Box<dyn Future<Output = SendEnd>>>;

impl BackgroundSend {
    /// Sends the body of a request, and calls `on_end` when it is sent; drops it if this is dropped
    /// before. `None` if the body was sent at once.
    ///
    /// A server that has responded may take no more of the body and not reset the stream. The
    /// stream is reset if the server takes nothing for `stall_timeout` after the response.
    pub async fn start<B>(
        mut sending: SendBody<B>,
        outlives_response: bool,
        stall_timeout: Duration,
        on_end: impl FnOnce(SendEnd) + 'static,
    ) -> Option<Self>
    where
        B: Body<Data = Bytes, Error: Display> + Unpin + 'static,
    {
        // Most bodies are short and have arrived, and need no task.
        let end = poll_fn(|context| Poll::Ready(Pin::new(&mut sending).poll(context))).await;
        if let Poll::Ready(end) = end {
            on_end(end);
            return None;
        }
        let (_response, response_ended) = oneshot::channel();
        sending.stall_begins = Some(response_ended);
        sending = sending.with_stall_timeout(stall_timeout);
        let sending: BoxedSending = Box::pin(sending);
        let sending = Rc::new(RefCell::new(Some(sending)));
        let sent = Rc::clone(&sending);
        let task = tokio::task::spawn_local(async move {
            let end = poll_fn(|context| {
                let mut sending = sent.borrow_mut();
                let end = match &mut *sending {
                    Some(sending) => ready!(sending.as_mut().poll(context)),
                    None => SendEnd::Aborted,
                };
                *sending = None; // returns the rest of the body to its upload
                Poll::Ready(end)
            });
            on_end(end.await);
        });
        let task = task.abort_handle();
        Some(Self { sending: Some(sending), task, outlives_response, _response })
    }

    /// Ends with the response. An upload that outlives the response continues.
    pub fn end_with_response(mut self) {
        if self.outlives_response {
            self.sending = None;
        }
    }
}

impl fmt::Debug for BackgroundSend {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let outlives_response = &self.outlives_response;
        let mut debug = formatter.debug_struct("BackgroundSend");
        debug.field("outlives_response", outlives_response).finish_non_exhaustive()
    }
}

impl Drop for BackgroundSend {
    fn drop(&mut self) {
        // At once, and not when the task is dropped, because the rest of the body is wanted now.
        if let Some(sending) = &self.sending
            && let Ok(mut sending) = sending.try_borrow_mut()
            && sending.take().is_some()
        {
            self.task.abort();
        }
    }
}

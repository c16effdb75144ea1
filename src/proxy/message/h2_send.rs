//! A body that is sent on an HTTP/2 stream.

use std::cell::RefCell;
use std::fmt;
use std::fmt::Display;
use std::future::poll_fn;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use h2::{Reason, SendStream};
use hyper::body::{Body, Frame};
use tokio::task::AbortHandle;
use tracing::debug;

/// Sends a body until it ends or the peer resets the stream. A piece is read only when the piece
/// before it has room in the peer's window.
pub(crate) struct SendBody<B> {
    body: B,
    stream: SendStream<Bytes>,
    /// A piece that waits for room in the window.
    pending: Option<Piece>,
    /// The error code of the reset if the body ends early.
    abort_reason: Reason,
}

struct Piece {
    data: Bytes,
    is_last: bool,
}

/// The state of a [`SendBody`] after one step.
enum Progress {
    Done,
    More,
}

impl<B: Body<Data = Bytes, Error: Display> + Unpin> SendBody<B> {
    pub(crate) fn new(body: B, stream: SendStream<Bytes>, abort_reason: Reason) -> Self {
        Self { body, stream, pending: None, abort_reason }
    }

    fn poll_step(&mut self, context: &mut Context<'_>) -> Poll<Result<Progress, h2::Error>> {
        if let Poll::Ready(reason) = self.stream.poll_reset(context)? {
            debug!(%reason, "stream reset");
            return Poll::Ready(Ok(Progress::Done));
        }
        if self.pending.is_some() {
            while self.stream.capacity() == 0 {
                match ready!(self.stream.poll_capacity(context)) {
                    Some(capacity) => capacity?,
                    None => return Poll::Ready(Ok(Progress::Done)), // the stream is closed
                };
            }
            let sent = self.pending.take().map(|piece| self.send(piece));
            return Poll::Ready(sent.unwrap_or(Ok(Progress::More)));
        }
        let Some(frame) = ready!(Pin::new(&mut self.body).poll_frame(context)) else {
            return Poll::Ready(self.send(Piece { data: Bytes::new(), is_last: true }));
        };
        Poll::Ready(match frame.map(Frame::into_data) {
            Err(error) => {
                debug!(%error, "body ended early");
                self.stream.send_reset(self.abort_reason);
                Ok(Progress::Done)
            }
            Ok(Ok(data)) => {
                let is_last = self.body.is_end_stream();
                if data.is_empty() {
                    return Poll::Ready(if is_last {
                        self.send(Piece { data, is_last })
                    } else {
                        Ok(Progress::More)
                    });
                }
                // Capacity is reserved only now, because it is taken from the connection's window.
                // h2 reserves the rest when it gets the data.
                self.stream.reserve_capacity(1);
                self.pending = Some(Piece { data, is_last });
                Ok(Progress::More)
            }
            Ok(Err(frame)) => match frame.into_trailers() {
                Ok(trailers) => {
                    self.stream.reserve_capacity(0);
                    self.stream.send_trailers(trailers).map(|()| Progress::Done)
                }
                Err(_) => Ok(Progress::More), // no other kind of frame exists
            },
        })
    }

    fn send(&mut self, piece: Piece) -> Result<Progress, h2::Error> {
        let Piece { data, is_last } = piece;
        self.stream.send_data(data, is_last)?;
        Ok(if is_last { Progress::Done } else { Progress::More })
    }
}

impl<B: Body<Data = Bytes, Error: Display> + Unpin> Future for SendBody<B> {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        loop {
            match ready!(self.poll_step(context)) {
                Ok(Progress::More) => {}
                Ok(Progress::Done) => return Poll::Ready(()),
                Err(error) => {
                    debug!(%error, "stream ended");
                    return Poll::Ready(());
                }
            }
        }
    }
}

/// A body that is sent by a task of its own. Dropping this aborts it.
pub(crate) struct BackgroundSend {
    /// `None` if the task continues without this.
    sending: Option<Rc<RefCell<Option<BoxedSending>>>>,
    task: AbortHandle,
    outlives_response: bool,
}

type BoxedSending = Pin<Box<dyn Future<Output = ()>>>;

impl BackgroundSend {
    /// Sends the body of a request, and drops `held` when it is sent. `None` if the body was sent at
    /// once.
    pub(crate) async fn start<B, H>(
        body: B,
        stream: SendStream<Bytes>,
        outlives_response: bool,
        held: H,
    ) -> Option<Self>
    where
        B: Body<Data = Bytes, Error: Display> + Unpin + 'static,
        H: 'static,
    {
        let mut sending = SendBody::new(body, stream, Reason::CANCEL);
        // Most bodies are short and have arrived, and need no task.
        let is_done =
            poll_fn(|context| Poll::Ready(Pin::new(&mut sending).poll(context).is_ready()));
        if is_done.await {
            return None;
        }
        let sending: BoxedSending = Box::pin(sending);
        let sending = Rc::new(RefCell::new(Some(sending)));
        let sent = Rc::clone(&sending);
        let task = tokio::task::spawn_local(async move {
            poll_fn(|context| {
                let mut sending = sent.borrow_mut();
                if let Some(sending) = &mut *sending {
                    ready!(sending.as_mut().poll(context));
                }
                *sending = None; // returns the rest of the body to its upload
                Poll::Ready(())
            })
            .await;
            drop(held);
        });
        Some(Self { sending: Some(sending), task: task.abort_handle(), outlives_response })
    }

    /// Ends with the response. An upload that outlives the response continues.
    pub(crate) fn end_with_response(mut self) {
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

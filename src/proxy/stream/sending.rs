//! A body that is sent on a stream of HTTP/2.

use std::cell::RefCell;
use std::fmt::{self, Display};
use std::future::poll_fn;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use h2::{Reason, SendStream};
use hyper::body::{Body, Frame};
use tokio::task::AbortHandle;
use tracing::debug;

/// Sends a body to its end, or until the peer wants no more of it. A piece is read only once the one
/// before has room in the peer's window.
pub(in crate::proxy) struct Sending<B> {
    body: B,
    stream: SendStream<Bytes>,
    /// A piece that has no room yet, and whether it is the last.
    piece: Option<(Bytes, bool)>,
    /// What the peer is told when the body breaks off.
    broken_off: Reason,
}

/// There is nothing more to be sent.
struct Done;

impl<B: Body<Data = Bytes, Error: Display> + Unpin> Sending<B> {
    pub(in crate::proxy) fn new(body: B, stream: SendStream<Bytes>, broken_off: Reason) -> Self {
        Self { body, stream, piece: None, broken_off }
    }

    fn poll_step(&mut self, context: &mut Context<'_>) -> Poll<Result<Option<Done>, h2::Error>> {
        if let Poll::Ready(reason) = self.stream.poll_reset(context)? {
            debug!(%reason, "stream reset");
            return Poll::Ready(Ok(Some(Done)));
        }
        if self.piece.is_some() {
            while self.stream.capacity() == 0 {
                match ready!(self.stream.poll_capacity(context)) {
                    Some(capacity) => capacity?,
                    None => return Poll::Ready(Ok(Some(Done))), // it is closed
                };
            }
            let sent = self.piece.take().map(|(piece, is_last)| self.send(piece, is_last));
            return Poll::Ready(sent.unwrap_or(Ok(None)));
        }
        let Some(frame) = ready!(Pin::new(&mut self.body).poll_frame(context)) else {
            return Poll::Ready(self.send(Bytes::new(), true));
        };
        Poll::Ready(match frame.map(Frame::into_data) {
            Err(error) => {
                debug!(%error, "body broken off");
                self.stream.send_reset(self.broken_off);
                Ok(Some(Done))
            }
            Ok(Ok(piece)) => {
                let is_last = self.body.is_end_stream();
                if piece.is_empty() {
                    return Poll::Ready(if is_last { self.send(piece, true) } else { Ok(None) });
                }
                // Room is asked for when there is something to send: it is the connection's, too.
                // For all of it h2 asks when it has it.
                self.stream.reserve_capacity(1);
                self.piece = Some((piece, is_last));
                Ok(None)
            }
            Ok(Err(frame)) => match frame.into_trailers() {
                Ok(trailers) => {
                    self.stream.reserve_capacity(0);
                    self.stream.send_trailers(trailers).map(|()| Some(Done))
                }
                Err(_) => Ok(None), // there is no third kind
            },
        })
    }

    fn send(&mut self, piece: Bytes, is_last: bool) -> Result<Option<Done>, h2::Error> {
        self.stream.send_data(piece, is_last).map(|()| is_last.then_some(Done))
    }
}

impl<B: Body<Data = Bytes, Error: Display> + Unpin> Future for Sending<B> {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        loop {
            match ready!(self.poll_step(context)) {
                Ok(None) => {}
                Ok(Some(Done)) => return Poll::Ready(()),
                Err(error) => {
                    debug!(%error, "stream ended");
                    return Poll::Ready(());
                }
            }
        }
    }
}

/// A body that is sent beside something else. Dropped, it is broken off.
pub(in crate::proxy) struct Upload {
    /// `None`: it goes on by itself.
    sending: Option<Rc<RefCell<Option<BoxedSending>>>>,
    task: AbortHandle,
    outlives_answer: bool,
}

type BoxedSending = Pin<Box<dyn Future<Output = ()>>>;

impl Upload {
    /// Sends the body of a request, and lets go of `held` then; `None` if that is done already.
    pub(in crate::proxy) async fn start<B, H>(
        body: B,
        stream: SendStream<Bytes>,
        outlives_answer: bool,
        held: H,
    ) -> Option<Self>
    where
        B: Body<Data = Bytes, Error: Display> + Unpin + 'static,
        H: 'static,
    {
        let mut sending = Sending::new(body, stream, Reason::CANCEL);
        // Most are short, and here: they need no task.
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
                *sending = None; // somebody may wait for what is left of the body
                Poll::Ready(())
            })
            .await;
            drop(held);
        });
        Some(Self { sending: Some(sending), task: task.abort_handle(), outlives_answer })
    }

    /// The answer has ended.
    pub(in crate::proxy) fn leave(mut self) {
        if self.outlives_answer {
            self.sending = None;
        }
    }
}

impl fmt::Debug for Upload {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let outlives_answer = &self.outlives_answer;
        let mut debug = formatter.debug_struct("Upload");
        debug.field("outlives_answer", outlives_answer).finish_non_exhaustive()
    }
}

impl Drop for Upload {
    fn drop(&mut self) {
        // At once, and not with the task: what is left of the body is wanted.
        if let Some(sending) = &self.sending
            && let Ok(mut sending) = sending.try_borrow_mut()
            && sending.take().is_some()
        {
            self.task.abort();
        }
    }
}

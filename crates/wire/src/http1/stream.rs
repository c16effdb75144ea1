//! One HTTP/1.1 connection to a server: writes requests and reads responses, one after another.
//!
//! The connection has no task of its own. The request itself drives it, so an exchange needs no
//! wake-up except the socket's. An upload that goes on after its response has begun has a task,
//! because the client may send all of it before it reads anything.

use std::cell::RefCell;
use std::fmt::Debug;
use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::rc::{Rc, Weak};
use std::task::{Context, Poll, Waker, ready};

use bytes::Bytes;
use hyper::body::Frame;
use hyper::{Method, Request, Response, StatusCode};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::task::{AbortHandle, unconstrained};

use super::MAX_BUFFER;
use super::request::{OutgoingBody, RequestWriter};
use super::response::{self, BodyDecoder, BodyPiece, ReadBuffer};
use crate::incoming::{BodyConnection, Http1Error};
use crate::informational::InformationalSender;

/// A connection to a server, with at most one request at a time.
#[derive(Debug)]
pub struct Http1Stream<IO, G, B> {
    io: IO,
    /// Dropped with the connection.
    guard: G,
    buffer: ReadBuffer,
    writer: RequestWriter<B>,
    /// The task that sends the rest of an upload whose response has begun.
    sender: Option<SenderTask>,
    reading: Reading,
    /// Whether the request is a HEAD, whose response has no body.
    is_head: bool,
    /// Whether another request may follow.
    keeps_alive: bool,
    /// Whether a response has begun before its request was sent. A server that leaves the rest
    /// unread takes it for the next request.
    was_early: bool,
    /// Whether the server has sent a byte since the last request began.
    pub has_received: bool,
    /// Forwards informational responses to the client of the request.
    informational: Option<InformationalSender>,
    /// The failure that ends the response: of its upload, or one that waits for its turn.
    failure: Option<Http1Error>,
    /// The reader of the response, which the failure of an upload wakes.
    reader: Option<Waker>,
    /// Whether the client's connection may not have written the last piece yet.
    is_unwritten: bool,
}

#[derive(Debug)]
enum Reading {
    /// The response has ended, or no request was sent.
    Idle,
    Head,
    Body(BodyDecoder),
    Failed,
}

impl<IO: AsyncRead + AsyncWrite + Unpin, G, B: OutgoingBody> Http1Stream<IO, G, B> {
    /// A connection on which no request was sent. `guard` is dropped with it.
    pub fn new(io: IO, guard: G) -> Self {
        Self {
            io,
            guard,
            buffer: ReadBuffer::default(),
            writer: RequestWriter::default(),
            sender: None,
            reading: Reading::Idle,
            is_head: false,
            keeps_alive: true,
            was_early: false,
            has_received: false,
            informational: None,
            failure: None,
            reader: None,
            is_unwritten: false,
        }
    }

    /// Whether the response has ended and another request may follow on the connection, once the
    /// upload has ended.
    pub fn may_be_reused(&self) -> bool {
        self.keeps_alive && matches!(self.reading, Reading::Idle) && self.failure.is_none()
    }

    /// Whether a request is still being sent, because its response came early.
    pub fn is_sending(&self) -> bool {
        self.writer.is_sending()
    }

    /// Whether an idle connection is open. The server's close, and bytes that belong to no
    /// request, end it.
    pub fn is_open(&mut self) -> bool {
        if !self.may_be_reused() || self.was_early {
            return false;
        }
        let (mut byte, io) = ([0], &mut self.io);
        let mut byte = ReadBuf::new(&mut byte);
        // The budget of the task would make a read pending that is not.
        let read = pin!(unconstrained(poll_fn(|context| {
            AsyncRead::poll_read(Pin::new(&mut *io), context, &mut byte)
        })));
        read.poll(&mut Context::from_waker(Waker::noop())).is_pending()
    }

    /// Frees the buffer of an idle connection.
    pub fn free_buffer(&mut self) {
        self.buffer = ReadBuffer::default();
    }

    /// Begins a request. Returns the request, to be sent again, if it has no body.
    ///
    /// # Errors
    /// Returns an error if the request has an invalid `Content-Length`.
    pub fn begin(
        &mut self,
        request: Box<Request<B>>,
    ) -> Result<Option<Box<Request<B>>>, Http1Error> {
        let is_head = request.method() == Method::HEAD;
        let informational = request.body().informational();
        let request = self.writer.begin(request)?;
        self.is_head = is_head;
        self.informational = informational;
        self.has_received = false;
        self.reading = Reading::Head;
        self.sender = None;
        Ok(request)
    }

    /// Sends the request, and waits for the head of the final response.
    pub fn poll_response(
        &mut self,
        context: &mut Context<'_>,
    ) -> Poll<Result<Response<()>, Http1Error>> {
        match self.writer.poll_send(context, &mut self.io) {
            // The server may have responded before it closed.
            Poll::Ready(Err(Http1Error::Io(_))) => {
                self.writer.stop();
                self.keeps_alive = false;
            }
            Poll::Ready(Err(error)) => return Poll::Ready(Err(self.fail(error))),
            Poll::Ready(Ok(())) | Poll::Pending => {}
        }
        let head = ready!(self.poll_head(context)).map_err(|error| self.fail(error));
        self.informational = None;
        Poll::Ready(head)
    }

    fn poll_head(&mut self, context: &mut Context<'_>) -> Poll<Result<Response<()>, Http1Error>> {
        let mut is_new = !self.buffer.bytes.is_empty();
        let mut was_informational = false;
        loop {
            while let Some(mut response) =
                is_new.then(|| response::parse(&mut self.buffer.bytes)).transpose()?.flatten()
            {
                let status = response.status();
                if status.is_informational() && status != StatusCode::SWITCHING_PROTOCOLS {
                    if let Some(client) = &self.informational {
                        client.forward(status, response.into_parts().0.headers);
                    }
                    is_new = !self.buffer.bytes.is_empty();
                    was_informational = true;
                    continue;
                }
                let body = BodyDecoder::new(&mut response, self.is_head)?;
                let is_last = status == StatusCode::SWITCHING_PROTOCOLS
                    || !body.is_delimited()
                    || body.is_ambiguous(&response);
                self.keeps_alive &= !is_last && response::keeps_alive(&response);
                self.reading = Reading::Body(body);
                self.is_unwritten = true;
                self.was_early |= self.writer.is_sending();
                self.end_if_complete();
                return Poll::Ready(Ok(response));
            }
            if std::mem::take(&mut was_informational) {
                // Reads without end would use up the budget of the task, which its timers need.
                context.waker().wake_by_ref();
                return Poll::Pending;
            }
            if self.buffer.bytes.len() >= MAX_BUFFER {
                return Poll::Ready(Err(Http1Error::HeadTooLarge));
            }
            let before = self.buffer.bytes.len();
            if ready!(self.buffer.poll_fill(context, &mut self.io))? == 0 {
                return Poll::Ready(Err(Http1Error::Closed));
            }
            self.has_received = true;
            // Without a further line end, the head is as incomplete as before.
            is_new = self.buffer.bytes.get(before..).is_some_and(|read| read.contains(&b'\n'));
        }
    }

    /// Sends the rest of an upload on a task of its own.
    pub fn continue_sending(stream: &Rc<RefCell<Self>>)
    where
        Self: 'static,
    {
        if !stream.borrow().is_sending() {
            return;
        }
        let weak = Rc::downgrade(stream);
        let sending = poll_fn(move |context| match Weak::upgrade(&weak) {
            Some(stream) => stream.borrow_mut().poll_rest(context),
            None => Poll::Ready(()),
        });
        let task = tokio::task::spawn_local(sending).abort_handle();
        stream.borrow_mut().sender = Some(SenderTask(task));
    }

    fn poll_rest(&mut self, context: &mut Context<'_>) -> Poll<()> {
        if let Err(error) = ready!(self.writer.poll_send(context, &mut self.io)) {
            self.writer.stop();
            self.keeps_alive = false;
            // The server may have sent its response before it closed, which the next read decides.
            if !matches!(error, Http1Error::Io(_)) {
                self.failure = Some(error);
            }
            if let Some(reader) = self.reader.take() {
                reader.wake();
            }
        }
        Poll::Ready(())
    }

    /// Waits until the request was sent.
    ///
    /// # Errors
    /// Returns an error if the rest of the request cannot be sent.
    pub async fn finish_sending(&mut self) -> Result<(), Http1Error> {
        poll_fn(|context| self.writer.poll_send(context, &mut self.io)).await
    }

    /// The connection, the bytes that were read behind the last response, and the guard.
    pub fn into_parts(self) -> (IO, Bytes, G) {
        (self.io, self.buffer.bytes.freeze(), self.guard)
    }

    fn fail(&mut self, error: Http1Error) -> Http1Error {
        self.reading = Reading::Failed;
        error
    }

    fn end_if_complete(&mut self) {
        if let Reading::Body(body) = &self.reading
            && body.has_ended()
        {
            self.reading = Reading::Idle;
            // Bytes after a response belong to no request.
            self.keeps_alive &= self.buffer.bytes.is_empty();
        }
    }

    fn poll_piece(
        &mut self,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Http1Error>>> {
        loop {
            if let Some(error) = self.failure.take() {
                return Poll::Ready(Some(Err(error)));
            }
            let Reading::Body(body) = &mut self.reading else { return Poll::Ready(None) };
            match body.decode(&mut self.buffer.bytes)? {
                BodyPiece::Data(data) => return Poll::Ready(Some(Ok(Frame::data(data)))),
                BodyPiece::Trailers(fields) => {
                    return Poll::Ready(Some(Ok(Frame::trailers(fields))));
                }
                BodyPiece::End => return Poll::Ready(None),
                BodyPiece::Incomplete => {}
            }
            let Poll::Ready(count) = self.buffer.poll_fill(context, &mut self.io)? else {
                self.reader = self.is_sending().then(|| context.waker().clone());
                return Poll::Pending;
            };
            if let (0, Reading::Body(body)) = (count, &mut self.reading) {
                body.close()?;
            }
        }
    }
}

impl<IO, G, B> BodyConnection for Http1Stream<IO, G, B>
where
    IO: AsyncRead + AsyncWrite + Debug + Unpin,
    G: Debug,
    B: OutgoingBody + Debug,
{
    fn poll_frame(
        &mut self,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Http1Error>>> {
        let polled = self.poll_piece(context);
        let was_unwritten = std::mem::replace(&mut self.is_unwritten, polled.is_ready());
        match polled {
            // hyper drops what it has not written when a body fails.
            Poll::Ready(Some(Err(error))) if was_unwritten => {
                self.failure = Some(error);
                self.is_unwritten = false;
                context.waker().wake_by_ref();
                Poll::Pending
            }
            Poll::Ready(Some(Err(error))) => Poll::Ready(Some(Err(self.fail(error)))),
            Poll::Ready(_) => {
                self.end_if_complete();
                polled
            }
            Poll::Pending => Poll::Pending,
        }
    }

    fn has_ended(&self) -> bool {
        matches!(self.reading, Reading::Idle)
    }

    fn remaining(&self) -> Option<u64> {
        match &self.reading {
            Reading::Body(body) => body.remaining(),
            Reading::Idle => Some(0),
            Reading::Failed | Reading::Head => None,
        }
    }
}

/// A task that ends with its connection.
#[derive(Debug)]
struct SenderTask(AbortHandle);

impl Drop for SenderTask {
    fn drop(&mut self) {
        self.0.abort();
    }
}

#[cfg(test)]
mod tests;

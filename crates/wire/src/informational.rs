//! Informational responses (1xx, such as 103 Early Hints) on their way to a client.
//!
//! hyper sends none over HTTP/1.1. keygate writes them between hyper's own writes, where the next
//! byte begins a message: when hyper has nothing left to write, and before the final response.

pub mod http2;

use std::cell::{RefCell, RefMut};
use std::io;
use std::io::{IoSlice, Write};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker, ready};

use hyper::{HeaderMap, StatusCode, header};
use tokio::io::{AsyncRead, AsyncWrite};

use crate::fields;
use crate::forward_io;

/// Maximum buffered bytes: per connection (HTTP/1.1) or per request (HTTP/2). Further informational
/// responses are dropped.
const MAX_WAITING: usize = 16 << 10;

/// Forwards the informational responses of one request.
#[derive(Debug, Clone)]
pub enum InformationalSender {
    /// The client speaks HTTP/1.1.
    Http1(Http1Sender),
    /// The client speaks HTTP/2.
    Http2(http2::Http2Informational),
}

impl InformationalSender {
    /// Forwards an informational response.
    pub fn forward(&self, status: StatusCode, mut headers: HeaderMap) {
        // 100 is sent when the body is read, and 101 is a final response.
        if [StatusCode::CONTINUE, StatusCode::SWITCHING_PROTOCOLS].contains(&status) {
            return;
        }
        fields::remove_hop_by_hop(&mut headers);
        headers.remove(header::CONTENT_LENGTH); // would be the length of the final response
        match self {
            Self::Http1(request) => request.forward(status, &headers),
            Self::Http2(request) => request.forward(status, headers),
        }
    }

    /// Sends `100 Continue`.
    pub fn send_continue(&self) {
        match self {
            Self::Http1(_) => {} // hyper sends it
            Self::Http2(request) => request.send_continue(),
        }
    }
}

/// The informational responses that wait to be written to one client.
#[derive(Debug, Clone, Default)]
pub struct Http1Informational(Rc<RefCell<Http1Queue>>);

#[derive(Debug, Default)]
struct Http1Queue {
    waiting: Vec<u8>,
    /// The number of the current request. Responses for earlier requests are late and dropped.
    request: u64,
    /// Whether the final response has begun.
    has_response: bool,
    waker: Option<Waker>,
}

/// One request on a connection.
#[derive(Debug, Clone)]
pub struct Http1Sender {
    queue: Http1Informational,
    request: u64,
}

impl Http1Informational {
    fn state(&self) -> RefMut<'_, Http1Queue> {
        self.0.borrow_mut()
    }

    /// Begins a request.
    pub fn begin_request(&self) -> InformationalSender {
        let mut state = self.state();
        state.request = state.request.wrapping_add(1);
        state.has_response = false;
        InformationalSender::Http1(Http1Sender { queue: self.clone(), request: state.request })
    }

    /// Begins the final response: nothing may come between its head and its end.
    pub fn begin_response(&self) {
        self.state().has_response = true;
    }
}

impl Http1Sender {
    /// Queues a response, unless the final response has begun or the queue is full.
    pub fn forward(&self, status: StatusCode, headers: &HeaderMap) {
        let text = text_of(status, headers);
        let mut state = self.queue.state();
        let is_current = state.request == self.request && !state.has_response;
        if is_current && state.waiting.len().saturating_add(text.len()) <= MAX_WAITING {
            state.waiting.extend(text);
            if let Some(waker) = state.waker.take() {
                waker.wake();
            }
        }
    }
}

fn text_of(status: StatusCode, headers: &HeaderMap) -> Vec<u8> {
    let reason = status.canonical_reason().unwrap_or_default();
    let mut text = Vec::new();
    let _ = write!(text, "HTTP/1.1 {} {reason}\r\n", status.as_u16()); // a Vec never fails
    for (name, value) in headers {
        text.extend([name.as_str().as_bytes(), b": ", value.as_bytes(), b"\r\n"].concat());
    }
    text.extend(b"\r\n");
    text
}

/// A client's connection, with informational responses between hyper's writes.
#[derive(Debug)]
pub struct WithInformational<IO> {
    io: IO,
    queue: Http1Informational,
    /// A response of which a part may be written.
    writing: Vec<u8>,
    /// Whether hyper has nothing left to write, so that the next byte begins a message.
    is_between: bool,
}

impl<IO> WithInformational<IO> {
    /// Writes the responses of `queue` to `io`.
    pub fn new(io: IO, queue: Http1Informational) -> Self {
        Self { io, queue, writing: Vec::new(), is_between: true }
    }

    /// The connection.
    pub fn into_inner(self) -> IO {
        self.io
    }

    /// Called before hyper writes: waiting responses are written first, or dropped.
    fn before_write(&mut self) {
        let mut state = self.queue.state();
        if std::mem::take(&mut self.is_between) {
            self.writing.append(&mut state.waiting);
        } else if state.has_response {
            state.waiting.clear();
        }
    }

    fn between_writes(&mut self, context: &Context<'_>) {
        self.is_between = true;
        let mut state = self.queue.state();
        // If the client does not read, responses wait in the queue, which is bounded.
        if !state.has_response && self.writing.is_empty() {
            self.writing.append(&mut state.waiting);
        }
        state.waker.get_or_insert_with(|| context.waker().clone()).clone_from(context.waker());
    }
}

impl<IO: AsyncWrite + Unpin> WithInformational<IO> {
    fn poll_waiting(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        while !self.writing.is_empty() {
            let written = ready!(Pin::new(&mut self.io).poll_write(context, &self.writing))?;
            if written == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            self.writing.drain(..written.min(self.writing.len()));
        }
        Poll::Ready(Ok(()))
    }
}

impl<IO: AsyncRead + Unpin> AsyncRead for WithInformational<IO> {
    forward_io!((io) poll_read);
}

impl<IO: AsyncWrite + Unpin> AsyncWrite for WithInformational<IO> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.before_write();
        ready!(self.poll_waiting(context))?;
        Pin::new(&mut self.io).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.before_write();
        ready!(self.poll_waiting(context))?;
        Pin::new(&mut self.io).poll_write_vectored(context, slices)
    }

    forward_io!((io) is_write_vectored, poll_shutdown);

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.between_writes(context);
        ready!(self.poll_waiting(context))?;
        Pin::new(&mut self.io).poll_flush(context)
    }
}

#[cfg(test)]
mod tests {
    use std::task::Waker;

    use super::*;
    use tokio::io::{AsyncReadExt, DuplexStream, duplex};

    const HINTS: &str = "HTTP/1.1 103 Early Hints\r\n\r\n";

    /// A connection with room for `room` unread bytes, its queue, and its client.
    fn connection(
        room: usize,
    ) -> (WithInformational<DuplexStream>, Http1Informational, DuplexStream) {
        let (io, client) = duplex(room);
        let queue = Http1Informational::default();
        (WithInformational::new(io, queue.clone()), queue, client)
    }

    fn hint(informational: &InformationalSender) {
        informational.forward(StatusCode::EARLY_HINTS, HeaderMap::new());
    }

    fn context() -> Context<'static> {
        Context::from_waker(Waker::noop())
    }

    /// Writes as hyper does. Returns how many bytes were written.
    fn write(connection: &mut WithInformational<DuplexStream>, bytes: &[u8]) -> usize {
        match Pin::new(connection).poll_write(&mut context(), bytes) {
            Poll::Ready(written) => written.unwrap(),
            Poll::Pending => 0,
        }
    }

    fn flush(connection: &mut WithInformational<DuplexStream>) {
        let _ = Pin::new(connection).poll_flush(&mut context()); // pending without a reader
    }

    async fn take(client: &mut DuplexStream, count: usize) -> String {
        let mut bytes = vec![0; count];
        client.read_exact(&mut bytes).await.unwrap();
        String::from_utf8(bytes).unwrap()
    }

    #[tokio::test]
    async fn a_hint_waits_for_the_end_of_the_previous_response() {
        let (mut connection, queue, mut client) = connection(8);
        assert_eq!(write(&mut connection, b"previous response"), 8);
        hint(&queue.begin_request());
        assert_eq!(take(&mut client, 8).await, "previous");
        assert_eq!(write(&mut connection, b" respons"), 8, "the rest of the first write");
        assert_eq!(take(&mut client, 8).await, " respons");
        assert_eq!(write(&mut connection, b"e"), 1);
        flush(&mut connection);
        assert_eq!(take(&mut client, 8).await, "eHTTP/1.");
    }

    #[tokio::test]
    async fn a_hint_is_dropped_if_its_response_directly_follows_the_previous_one() {
        let (mut connection, queue, mut client) = connection(8);
        assert_eq!(write(&mut connection, b"previous response"), 8);
        hint(&queue.begin_request());
        queue.begin_response();
        assert_eq!(take(&mut client, 8).await, "previous");
        // hyper has the next response in the same buffer.
        assert_eq!(write(&mut connection, b" response, and another"), 8);
        assert_eq!(take(&mut client, 8).await, " respons");
        assert_eq!(write(&mut connection, b"e, and a"), 8);
        flush(&mut connection);
        assert_eq!(take(&mut client, 8).await, "e, and a");
        let _next = queue.begin_request();
        flush(&mut connection);
        drop(connection);
        assert_eq!(client.read(&mut [0]).await.unwrap(), 0);
    }

    #[tokio::test]
    async fn a_late_hint_is_dropped() {
        let (mut connection, queue, mut client) = connection(100);
        let first = queue.begin_request();
        queue.begin_response();
        hint(&first);
        let _second = queue.begin_request();
        hint(&first);
        flush(&mut connection);
        assert_eq!(write(&mut connection, b"201 OK"), 6);
        drop(connection);
        assert_eq!(take(&mut client, 6).await, "201 OK");
        assert_eq!(client.read(&mut [0]).await.unwrap(), 0);
    }

    #[tokio::test]
    async fn the_buffer_for_a_client_that_reads_nothing_is_bounded() {
        let (mut connection, queue, _client) = connection(8);
        let informational = queue.begin_request();
        for _ in 0..10_000 {
            hint(&informational);
            flush(&mut connection);
        }
        let kept = connection.writing.len() + queue.state().waiting.len();
        assert!((HINTS.len()..=2 * MAX_WAITING).contains(&kept), "{kept} bytes");
    }
}

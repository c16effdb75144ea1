//! Interim answers on their way to a client of HTTP/1.1.
//!
//! hyper writes none. They are put between its writes, where it is known that the next byte begins a
//! message: when hyper has nothing left to write, and before it writes the answer.

use std::io::{self, IoSlice, Write};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker, ready};

use hyper::{HeaderMap, StatusCode};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::{Follower, MAX_WAITING};

/// What waits to be written to one client.
#[derive(Debug, Clone, Default)]
pub(in crate::proxy) struct Interim(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    waiting: Vec<u8>,
    /// Which request is being answered. The answers to those before come too late.
    request: u64,
    /// The answer itself is on its way.
    is_answered: bool,
    waker: Option<Waker>,
}

/// One request on a connection.
#[derive(Debug, Clone)]
pub(in crate::proxy) struct OfRequest {
    interim: Interim,
    request: u64,
}

impl Interim {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A request begins.
    pub(in crate::proxy) fn begin(&self) -> Follower {
        let mut state = self.state();
        state.request = state.request.wrapping_add(1);
        state.is_answered = false;
        Follower::Http1(OfRequest { interim: self.clone(), request: state.request })
    }

    /// The request has its answer: nothing may come between that and its end.
    pub(in crate::proxy) fn end(&self) {
        self.state().is_answered = true;
    }
}

impl OfRequest {
    pub(super) fn pass_on(&self, status: StatusCode, headers: &HeaderMap) {
        let text = text_of(status, headers);
        let mut state = self.interim.state();
        let is_in_time = state.request == self.request && !state.is_answered;
        if is_in_time && state.waiting.len().saturating_add(text.len()) <= MAX_WAITING {
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
    let _ = write!(text, "HTTP/1.1 {} {reason}\r\n", status.as_u16()); // memory takes it all
    for (name, value) in headers {
        text.extend([name.as_str().as_bytes(), b": ", value.as_bytes(), b"\r\n"].concat());
    }
    text.extend(b"\r\n");
    text
}

/// A client's connection, with what is put between hyper's writes.
#[derive(Debug)]
pub(in crate::proxy) struct WithInterim<IO> {
    io: IO,
    interim: Interim,
    /// What has begun to be written.
    writing: Vec<u8>,
    /// hyper has nothing left to write: what comes next begins a message.
    is_between: bool,
}

impl<IO> WithInterim<IO> {
    pub(in crate::proxy) fn new(io: IO, interim: Interim) -> Self {
        Self { io, interim, writing: Vec::new(), is_between: true }
    }

    pub(in crate::proxy) fn into_inner(self) -> IO {
        self.io
    }

    /// hyper begins to write something: what waits goes first, or never.
    fn before_write(&mut self) {
        let mut state = self.interim.state();
        if std::mem::take(&mut self.is_between) {
            self.writing.append(&mut state.waiting);
        } else if state.is_answered {
            state.waiting.clear();
        }
    }

    fn between_writes(&mut self, context: &Context<'_>) {
        self.is_between = true;
        let mut state = self.interim.state();
        // A client that takes nothing has what it has; the rest waits, and there is an end to that.
        if !state.is_answered && self.writing.is_empty() {
            self.writing.append(&mut state.waiting);
        }
        if !state.waker.as_ref().is_some_and(|waker| waker.will_wake(context.waker())) {
            state.waker = Some(context.waker().clone());
        }
    }
}

impl<IO: AsyncWrite + Unpin> WithInterim<IO> {
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

impl<IO: AsyncRead + Unpin> AsyncRead for WithInterim<IO> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_read(context, buffer)
    }
}

impl<IO: AsyncWrite + Unpin> AsyncWrite for WithInterim<IO> {
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

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.between_writes(context);
        ready!(self.poll_waiting(context))?;
        Pin::new(&mut self.io).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, DuplexStream, duplex};

    use super::*;

    const HINTS: &str = "HTTP/1.1 103 Early Hints\r\n\r\n";

    /// A connection that takes `room` bytes before its client reads, and that client.
    fn connection(room: usize) -> (WithInterim<DuplexStream>, Interim, DuplexStream) {
        let (io, client) = duplex(room);
        let interim = Interim::default();
        (WithInterim::new(io, interim.clone()), interim, client)
    }

    fn hint(follower: &Follower) {
        follower.pass_on(StatusCode::EARLY_HINTS, HeaderMap::new());
    }

    fn context() -> Context<'static> {
        Context::from_waker(Waker::noop())
    }

    /// Writes as hyper does; how much was taken.
    fn write(connection: &mut WithInterim<DuplexStream>, bytes: &[u8]) -> usize {
        match Pin::new(connection).poll_write(&mut context(), bytes) {
            Poll::Ready(written) => written.unwrap(),
            Poll::Pending => 0,
        }
    }

    fn flush(connection: &mut WithInterim<DuplexStream>) {
        let _ = Pin::new(connection).poll_flush(&mut context()); // pending: the client takes nothing
    }

    async fn take(client: &mut DuplexStream, count: usize) -> String {
        let mut bytes = vec![0; count];
        client.read_exact(&mut bytes).await.unwrap();
        String::from_utf8(bytes).unwrap()
    }

    #[tokio::test]
    async fn a_hint_waits_for_the_end_of_the_answer_before() {
        let (mut connection, interim, mut client) = connection(8);
        assert_eq!(write(&mut connection, b"the answer before"), 8);
        hint(&interim.begin());
        assert_eq!(take(&mut client, 8).await, "the answ");
        assert_eq!(write(&mut connection, b"er befor"), 8, "which hyper had left");
        assert_eq!(take(&mut client, 8).await, "er befor");
        assert_eq!(write(&mut connection, b"e"), 1);
        flush(&mut connection);
        assert_eq!(take(&mut client, 8).await, "eHTTP/1.");
    }

    #[tokio::test]
    async fn a_hint_whose_answer_is_behind_the_answer_before_is_not_written() {
        let (mut connection, interim, mut client) = connection(8);
        assert_eq!(write(&mut connection, b"the answer before"), 8);
        hint(&interim.begin());
        interim.end();
        assert_eq!(take(&mut client, 8).await, "the answ");
        // hyper has the next answer behind it, in the same buffer.
        assert_eq!(write(&mut connection, b"er before, and another"), 8);
        assert_eq!(take(&mut client, 8).await, "er befor");
        assert_eq!(write(&mut connection, b"e, and a"), 8);
        flush(&mut connection);
        assert_eq!(take(&mut client, 8).await, "e, and a");
        drop(connection);
        assert_eq!(client.read(&mut [0]).await.unwrap(), 0);
    }

    #[tokio::test]
    async fn a_hint_that_comes_too_late_is_not_written() {
        let (mut connection, interim, mut client) = connection(100);
        let first = interim.begin();
        interim.end();
        hint(&first);
        let _second = interim.begin();
        hint(&first);
        flush(&mut connection);
        assert_eq!(write(&mut connection, b"answer"), 6);
        drop(connection);
        assert_eq!(take(&mut client, 6).await, "answer");
        assert_eq!(client.read(&mut [0]).await.unwrap(), 0);
    }

    #[tokio::test]
    async fn what_is_kept_for_a_client_that_takes_nothing_is_bounded() {
        let (mut connection, interim, _client) = connection(8);
        let follower = interim.begin();
        for _ in 0..10_000 {
            hint(&follower);
            flush(&mut connection);
        }
        let kept = connection.writing.len() + interim.state().waiting.len();
        assert!((HINTS.len()..=2 * MAX_WAITING).contains(&kept), "{kept} bytes");
    }
}

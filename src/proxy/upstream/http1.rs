//! HTTP/1.1 connections to a server, one request at a time, and the pool of idle ones.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::rc::Rc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use hyper::body::Incoming;
use hyper::client::conn::{TrySendError, http1};
use hyper::header::{self, HeaderValue};
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use tokio::sync::oneshot;

use super::dial::{ConnectionGuard, Io};
use crate::proxy::io_events::{IoEvents, WithIoEvents};
use crate::proxy::message::body::{OutgoingRequest, RequestBody};

/// Maximum bytes that are read from a connection at once, and queued for it. A response whose head
/// is larger is a 502. Pieces of hyper's 400 KiB exceed the second-level cache: with them a download
/// over HTTP/2 took 650 µs of CPU for each MiB instead of 567.
const MAX_BUFFER: usize = 128 << 10;

/// An HTTP/1.1 connection to a server.
#[derive(Debug)]
pub(crate) struct Http1Connection {
    sender: http1::SendRequest<RequestBody>,
    received: Received,
    opened: Instant,
    /// Whether it may serve another request. A request for an upgrade always opens a connection, so
    /// the pool would grow with each one that the server declines.
    is_reusable: bool,
}

/// The server's side of a connection or stream that has become a tunnel.
#[derive(Debug)]
pub(crate) struct Tunnel {
    pub(crate) io: Box<dyn Io>,
    /// Bytes that were read after the response head.
    pub(crate) read: Bytes,
    /// Counts the connection; `None` for a stream of HTTP/2.
    pub(crate) guard: Option<ConnectionGuard>,
}

/// Whether the server has sent a byte since the last request began.
#[derive(Debug, Clone, Default)]
struct Received(Rc<Cell<bool>>);

impl IoEvents for Received {
    fn on_read(&self, _bytes: &[u8]) {
        self.0.set(true);
    }
}

impl Http1Connection {
    /// Starts HTTP/1.1 on a connection. If it ends by an upgrade, `upgraded` gets the tunnel.
    ///
    /// # Errors
    /// Returns an error if the connection has failed.
    pub(crate) async fn start(
        io: Box<dyn Io>,
        guard: ConnectionGuard,
        upgraded: Option<oneshot::Sender<Tunnel>>,
    ) -> hyper::Result<Self> {
        let received = Received::default();
        let is_reusable = upgraded.is_none();
        let io = TokioIo::new(WithIoEvents::new(io, received.clone()));
        let mut builder = http1::Builder::new();
        builder.max_buf_size(MAX_BUFFER);
        let (sender, mut connection) = builder.handshake(io).await?;
        tokio::task::spawn_local(async move {
            if let Err(error) = poll_fn(|context| connection.poll_without_shutdown(context)).await {
                tracing::debug!(%error, "upstream connection ended");
            }
            if let Some(upgraded) = upgraded {
                let parts = connection.into_parts();
                let io = parts.io.into_inner().into_inner();
                let tunnel = Tunnel { io, read: parts.read_buf, guard: Some(guard) };
                let _ = upgraded.send(tunnel); // fails if the server refused the upgrade
            }
        });
        Ok(Self { sender, received, opened: Instant::now(), is_reusable })
    }

    /// Sends a request and waits for the head of the response.
    pub(crate) fn send(
        &mut self,
        mut request: OutgoingRequest,
    ) -> impl Future<Output = Result<Response<Incoming>, TrySendError<Request<RequestBody>>>> + use<>
    {
        self.received.0.set(false);
        // `TE` is a hop-by-hop field, so `Connection` must name it (RFC 9110, section 10.1.4).
        if request.headers().contains_key(header::TE) {
            let connection = request.headers_mut().entry(header::CONNECTION);
            connection.or_insert(HeaderValue::from_static("te"));
        }
        if let Some(informational) = request.body().informational() {
            informational.forward_for(&mut request);
        }
        self.sender.try_send_request(*request)
    }

    /// Whether the server has sent a byte since the last request began.
    pub(crate) fn has_received(&self) -> bool {
        self.received.0.get()
    }

    fn is_older_than(&self, age: Option<Duration>) -> bool {
        age.is_some_and(|age| self.opened.elapsed() >= age)
    }
}

/// The idle HTTP/1.1 connections to all servers of an upstream. Clones share them.
#[derive(Debug, Clone, Default)]
pub(crate) struct IdleConnections(Rc<RefCell<Vec<Rc<Http1Pool>>>>);

impl IdleConnections {
    /// A pool for one more server.
    pub(crate) fn add_pool(&self) -> Rc<Http1Pool> {
        let pool = Rc::<Http1Pool>::default();
        self.0.borrow_mut().push(Rc::clone(&pool));
        pool
    }

    /// Closes one of the connections, at the next turn of its task. Returns whether there was one.
    pub(crate) fn close_one(&self) -> bool {
        self.0.borrow().iter().any(|pool| pool.close_oldest())
    }
}

/// The idle HTTP/1.1 connections to a server.
#[derive(Debug, Default)]
pub(crate) struct Http1Pool(RefCell<Vec<IdleConnection>>);

#[derive(Debug)]
struct IdleConnection {
    http1: Http1Connection,
    since: Instant,
}

impl Http1Pool {
    /// Takes the connection that was used last and is ready. A connection is not ready while it
    /// still sends a request whose response came early.
    pub(crate) fn take(&self, max_age: Option<Duration>) -> Option<Http1Connection> {
        let mut idle = self.0.borrow_mut();
        while let Some(position) = idle
            .iter()
            .rposition(|idle| idle.http1.sender.is_ready() || idle.http1.sender.is_closed())
        {
            let http1 = idle.remove(position).http1;
            if !http1.sender.is_closed() && !http1.is_older_than(max_age) {
                return Some(http1);
            }
        }
        None
    }

    /// Keeps a connection for the next request, if it is reusable, open and not too old.
    pub(crate) fn put(&self, http1: Http1Connection, max_age: Option<Duration>) {
        if http1.is_reusable && !http1.sender.is_closed() && !http1.is_older_than(max_age) {
            self.0.borrow_mut().push(IdleConnection { http1, since: Instant::now() });
        }
    }

    /// Closes the connection that was not used for longest. Returns whether there was one.
    fn close_oldest(&self) -> bool {
        let mut idle = self.0.borrow_mut();
        let oldest = idle.iter().position(|idle| idle.http1.sender.is_ready());
        oldest.map(|position| idle.remove(position)).is_some()
    }

    /// Drops connections that are closed, too old, or idle for `max_idle`.
    pub(crate) fn drop_stale(&self, max_idle: Duration, max_age: Option<Duration>) {
        let now = Instant::now();
        self.0.borrow_mut().retain(|idle| {
            !idle.http1.sender.is_closed()
                && !idle.http1.is_older_than(max_age)
                && now.saturating_duration_since(idle.since) < max_idle
        });
    }
}

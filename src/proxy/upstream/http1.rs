//! HTTP/1.1 connections to a server, one request at a time, and the pool of idle ones.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use bytes::Bytes;
use hyper::Response;
use keygate_wire::incoming::{BodyConnection, Http1Error, Incoming, ServerBody};
use keygate_wire::permit::ClientKey;

use super::dial::{ConnectionGuard, Io};
use crate::proxy::message::body::{OutgoingRequest, RequestBody};

/// Maximum number of idle connections that a request looks at. Connections of other clients do not
/// serve it, and may be many.
const MAX_LOOKED_AT: usize = 64;

/// A connection to a server that carries requests of clients.
type Http1Stream =
    keygate_wire::http1::stream::Http1Stream<Box<dyn Io>, ConnectionGuard, RequestBody>;

/// An HTTP/1.1 connection to a server.
#[derive(Debug)]
pub(crate) struct Http1Connection {
    /// Shared with the body of the response, until its end.
    stream: Rc<RefCell<Http1Stream>>,
    opened: Instant,
    /// Whether it may serve another request. A request for an upgrade always opens a connection, so
    /// the pool would grow with each one that the server declines.
    is_reusable: bool,
    /// The only client whose requests may follow; `None`: all.
    owner: Cell<Option<ClientKey>>,
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

impl Http1Connection {
    /// Starts HTTP/1.1 on a connection.
    pub(crate) fn new(io: Box<dyn Io>, guard: ConnectionGuard, is_reusable: bool) -> Self {
        let stream = Rc::new(RefCell::new(Http1Stream::new(io, guard)));
        Self { stream, opened: Instant::now(), is_reusable, owner: Cell::new(None) }
    }

    /// Keeps the connection for requests of one client.
    pub(crate) fn set_owner(&self, client: ClientKey) {
        self.owner.set(Some(client));
    }

    /// Begins a request. Returns the request, to be sent again, if it has no body.
    ///
    /// # Errors
    /// Returns an error if the request has an invalid `Content-Length`.
    pub(crate) fn begin(
        &self,
        request: OutgoingRequest,
    ) -> Result<Option<OutgoingRequest>, Http1Error> {
        self.stream.borrow_mut().begin(request)
    }

    /// Sends the request, and waits for the head of the response.
    pub(crate) fn poll_response(
        &self,
        context: &mut Context<'_>,
    ) -> Poll<Result<Response<Incoming>, Http1Error>> {
        let response = ready!(self.stream.borrow_mut().poll_response(context))?;
        Http1Stream::continue_sending(&self.stream);
        let body = if self.stream.borrow().has_ended() {
            Incoming::Empty
        } else {
            Incoming::Server(ServerBody::new(Rc::clone(&self.stream) as _))
        };
        Poll::Ready(Ok(response.map(|()| body)))
    }

    /// Whether the server has sent a byte since the last request began.
    pub(crate) fn has_received(&self) -> bool {
        self.stream.borrow().has_received
    }

    /// The connection, after the server has switched to another protocol.
    ///
    /// # Errors
    /// Returns an error if the rest of the request cannot be sent.
    pub(crate) async fn into_tunnel(self) -> Result<Option<Tunnel>, Http1Error> {
        let Some(stream) = Rc::into_inner(self.stream) else { return Ok(None) };
        let mut stream = stream.into_inner();
        stream.finish_sending().await?;
        let (io, read, guard) = stream.into_parts();
        Ok(Some(Tunnel { io, read, guard: Some(guard) }))
    }

    /// Whether a request is still being sent, because its response came early.
    fn is_sending(&self) -> bool {
        self.stream.borrow().is_sending()
    }

    /// Whether an idle connection is open.
    fn is_open(&self) -> bool {
        self.stream.borrow_mut().is_open()
    }

    /// Whether an idle connection is open. Frees its buffer, which was up to [`MAX_BUFFER`](keygate_wire::http1::MAX_BUFFER) large.
    fn is_open_without_buffer(&self) -> bool {
        let mut stream = self.stream.borrow_mut();
        stream.free_buffer();
        stream.is_open()
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

    /// Closes one of the connections. Returns whether there was one.
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
    /// Takes the connection that was used last, is ready, and has no other owner than `client`. A
    /// connection is not ready while it still sends a request whose response came early.
    pub(crate) fn take(
        &self,
        client: ClientKey,
        max_age: Option<Duration>,
    ) -> Option<Http1Connection> {
        let mut idle = self.0.borrow_mut();
        let is_usable = |http1: &Http1Connection| {
            http1.owner.get().is_none_or(|owner| owner == client) && !http1.is_sending()
        };
        loop {
            let newest = idle.len().saturating_sub(MAX_LOOKED_AT);
            let position = idle.get(newest..)?.iter().rposition(|idle| is_usable(&idle.http1))?;
            let position = newest + position;
            let http1 = idle.remove(position).http1;
            if !http1.is_older_than(max_age) && http1.is_open() {
                return Some(http1);
            }
        }
    }

    /// Keeps a connection for the next request, if it is reusable, open and not too old.
    pub(crate) fn put(&self, http1: Http1Connection, max_age: Option<Duration>) {
        let may_be_reused = http1.is_reusable && http1.stream.borrow().may_be_reused();
        if may_be_reused && !http1.is_older_than(max_age) {
            self.0.borrow_mut().push(IdleConnection { http1, since: Instant::now() });
        }
    }

    /// Closes the connection that was not used for longest. Returns whether there was one.
    fn close_oldest(&self) -> bool {
        let mut idle = self.0.borrow_mut();
        let oldest = idle.iter().position(|idle| !idle.http1.is_sending());
        oldest.map(|position| idle.remove(position)).is_some()
    }

    /// Drops connections that are closed, too old, or idle for `max_idle`.
    pub(crate) fn drop_stale(&self, max_idle: Duration, max_age: Option<Duration>) {
        let now = Instant::now();
        self.0.borrow_mut().retain(|idle| {
            !idle.http1.is_older_than(max_age)
                && now.saturating_duration_since(idle.since) < max_idle
                && (idle.http1.is_sending() || idle.http1.is_open_without_buffer())
        });
    }
}
